/*
 * members.h: members of a table that body.h and scalar.h define alike, from functions FN(..) on
 * real, for panels that are rows of real.
 */
#ifndef ATTN_CPU_MEMBERS_H
#define ATTN_CPU_MEMBERS_H

#define ATTN_TABLE_KERNELS                      \
    .key_block = ATTN_KEY_BLOCK,                \
    .segment = ATTN_SEGMENT,                    \
    .key_tile = ATTN_KEY_BLOCK,                 \
    .key_step = 1,                              \
    .real_size = (int)sizeof(real),             \
    .rows_are_panels = true,                    \
    .begin = FN(no_state),                      \
    .end = FN(no_state),                        \
    .k_bytes = FN(k_bytes),                     \
    .pack_k = FN(pack_k),                       \
    .pack_v = FN(pack_v),                       \
    .pack_q = FN(pack_q),                       \
    .qk = FN(qk),                               \
    .bias = FN(bias),                           \
    .score = FN(score),                         \
    .mask = FN(mask),                           \
    .softmax = FN(softmax),                     \
    .qk_softmax = FN(qk_softmax),               \
    .pv = FN(pv),                               \
    .clean_v = FN(clean_v),                     \
    .finite = FN(finite),                       \
    .store = FN(store),                         \
    .logs = FN(logs),                           \
    .join = FN(join),                           \
    .copy = FN(copy)

#define ATTN_TABLE_GRAD_KERNELS                 \
    .row_block = ATTN_ROW_BLOCK,                \
    .key_tile = ATTN_KEY_BLOCK,                 \
    .key_step = 8,                              \
    .x_bytes = FN(x_bytes),                     \
    .pack_both = FN(pack_both),                 \
    .dp = FN(qk),                               \
    .dots = FN(grad_dots),                      \
    .softmax = FN(grad_softmax),                \
    .softcap = FN(grad_softcap),                \
    .clear = FN(grad_clear),                    \
    .rows = FN(grad_rows),                      \
    .clean_x = FN(clean_x),                     \
    .put = FN(grad_put),                        \
    .drop = FN(grad_drop)

#endif
