/*
 * grad.h: the products of the backward pass on tiles, and its members (table_grad.h). Included by
 * body.h, with its parameters.
 */
#include "cpu/ukernel/pairs/grad.h"

enum {
    ROW_BLOCK = ATTN_MAX_ROW_BLOCK,
    /* with splits the tile unit falls asleep (docs/cpu.md), so tiles are few and long */
    GRAD_TILE = PARTS == 1 ? 32 : 128
};

/* Products of parts step by step: dS depends on them linearly, and stands more roundings than a
 * score. */
static void grad_dp(void *dp, const void *v, int64_t at, const void *d_o_t, int64_t dv, int64_t n,
                    int lanes)
{
    (void)lanes; /* whole strips */
    const factors f = score_factors(v, at, d_o_t, dv);
    store_product(dp, &f, n, false, true);
}

static void grad_rows(void *g, const void *p, int64_t at, const void *x, int64_t cols, int64_t n,
                      int first, int last)
{
    const vec one = v_set1(1);
    const int strip_index = first / STRIP;
    for (int64_t c = 0; c < cols; c += 2 * TILE) {
        const factors f = {
            .a = (const uint16_t *)p + strip_index * PARTS * P_PART + at * STRIP,
            .b = (const uint16_t *)x + strip_index * PARTS * TILE * cols * 2 + c * 2,
            .a_stride = STRIP * 2,
            .a_part = P_PART,
            .a_step = PARTS * P_PART,
            .a_rows = TILE * STRIP,
            .b_stride = cols * 4,
            .b_part = TILE * cols * 2,
            .b_step = PARTS * TILE * cols * 2,
            .steps = last / STRIP - strip_index,
        };
        if (PARTS == 1) {
            add_product((float *)g + c, cols, pad32(n), one, one, &f, true);
        } else {
            add_tall_product((float *)g + c, cols, pad32(n), &f);
        }
    }
}

static const attn_ukernel_grad grad = {
    .vector = 2 * TILE,
    .row_block = ROW_BLOCK,
    .key_tile = GRAD_TILE,
    .key_step = KEY_STEP,
    .row_step = STRIP,
    .x_bytes = x_bytes,
    .pack_both = pack_both,
    .dp = grad_dp,
    .softmax = grad_softmax_f32,
    .softcap = grad_softcap_f32,
    .split = grad_split,
    .clear = grad_clear,
    .rows = grad_rows,
    .rows_careful = grad_rows_careful,
    .put = grad_put_f32,
    .drop = drop,
};
