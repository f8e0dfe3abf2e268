/*
 * kernels.c: the table of kernels.inc.
 */
#include "cuda/kernels.h"
#include "cuda/backward/params.h"
#include "cuda/merge/params.h"
#include "cuda/params.h"
#include "cuda/shape.h"

#define ATTN_FORWARD_SINGLE(name, dtype, d, bn, ctas)                                    \
    {"attn_forward_sm90_" #name,      ATTN_CUDA_SM90,    dtype, d,    d,    64, bn, 256, \
     ATTN_SINGLE_BYTES(dtype, d, bn), ATTN_CUDA_THREADS, 0,     true, false},
#define SM90_KERNEL(name, family, dtype, d, dv, groups, bn, loads, scores) \
    {"attn_forward_sm90_" #name,                                           \
     family,                                                               \
     dtype,                                                                \
     d,                                                                    \
     dv,                                                                   \
     64 * (groups),                                                        \
     bn,                                                                   \
     128 * ((groups) + 1),                                                 \
     ATTN_SM90_BYTES(dtype, d, dv, groups, bn, loads, scores),             \
     loads,                                                                \
     0,                                                                    \
     false,                                                                \
     false},
#define ATTN_FORWARD_SM90(name, dtype, d, dv, groups, bn, registers, turns, loads) \
    SM90_KERNEL(name, ATTN_CUDA_SM90, dtype, d, dv, groups, bn, loads, ATTN_CUDA_SCALED)
#define ATTN_FORWARD_SM90_STEPS(name, dtype, d, groups, bn, registers, turns, loads) \
    SM90_KERNEL(name, ATTN_CUDA_SM90_STEPS, dtype, d, d, groups, bn, loads, ATTN_CUDA_STEPPED)
#define MERGE_KERNEL(name, family, dtype, d, dv) \
    {"attn_forward_sm90_" #name,                 \
     family,                                     \
     dtype,                                      \
     d,                                          \
     dv,                                         \
     1,                                          \
     0,                                          \
     128,                                        \
     0,                                          \
     ATTN_CUDA_MERGE,                            \
     0,                                          \
     false,                                      \
     false},
#define ATTN_FORWARD_MERGE(name, dtype, d, dv) MERGE_KERNEL(name, ATTN_CUDA_SM90, dtype, d, dv)
#define ATTN_FORWARD_WIDE_MERGE(name, dtype, d, dv) \
    MERGE_KERNEL(name, ATTN_CUDA_SM90_WIDE, dtype, d, dv)
#define ATTN_FORWARD_SM90_PAGED(name, dtype, d, dv, groups, bn, registers, turns)      \
    SM90_KERNEL(name, ATTN_CUDA_SM90_PAGED, dtype, d, dv, groups, bn, ATTN_CUDA_PAGED, \
                ATTN_CUDA_SCALED)
#define SM90_LOADED(loads, family, scores, name, dtype, d, groups, bn, registers, turns) \
    SM90_KERNEL(name, family, dtype, d, d, groups, bn, loads, scores)
#define SM90_RAGGED(...) SM90_LOADED(ATTN_CUDA_RAGGED, __VA_ARGS__)
#define SM90_EACH(family, scores, name, ...)                                  \
    SM90_LOADED(ATTN_CUDA_WHOLE, family, scores, name, __VA_ARGS__)           \
    SM90_LOADED(ATTN_CUDA_RAGGED, family, scores, name##_ragged, __VA_ARGS__) \
    SM90_LOADED(ATTN_CUDA_PAGED, family, scores, name##_paged, __VA_ARGS__)
#define ATTN_FORWARD_SM90_SOFTCAP(...) \
    SM90_EACH(ATTN_CUDA_SM90_SOFTCAP, ATTN_CUDA_CAPPED, __VA_ARGS__)
#define ATTN_FORWARD_SM90_ALIBI(...) SM90_EACH(ATTN_CUDA_SM90_ALIBI, ATTN_CUDA_SLOPED, __VA_ARGS__)
/* Of bytes, and behind it, where forward.c finds it, the one of bits by lane. */
#define MASK_KERNELS(loads, name, ...)                                           \
    SM90_LOADED(loads, ATTN_CUDA_SM90_MASK, ATTN_CUDA_MASKED, name, __VA_ARGS__) \
    SM90_LOADED(loads, ATTN_CUDA_SM90_MASK, ATTN_CUDA_MASKED_LANES, name##_lanes, __VA_ARGS__)
#define ATTN_FORWARD_SM90_MASK(name, ...)            \
    MASK_KERNELS(ATTN_CUDA_WHOLE, name, __VA_ARGS__) \
    MASK_KERNELS(ATTN_CUDA_RAGGED, name##_ragged, __VA_ARGS__)
#define ATTN_FORWARD_SM90_BIAS(...) SM90_RAGGED(ATTN_CUDA_SM90_BIAS, ATTN_CUDA_BIASED, __VA_ARGS__)
#define ATTN_FORWARD_SM90_DROPOUT(...) \
    SM90_RAGGED(ATTN_CUDA_SM90_DROPOUT, ATTN_CUDA_SCALED, __VA_ARGS__)
#define ATTN_FORWARD_SM90_DROPOUT_STEPS(...) \
    SM90_RAGGED(ATTN_CUDA_SM90_DROPOUT_STEPS, ATTN_CUDA_STEPPED, __VA_ARGS__)
#define ATTN_FORWARD_SM90_WIDE(name, dtype, d, registers, loads) \
    {"attn_forward_sm90_" #name,                                 \
     ATTN_CUDA_SM90_WIDE,                                        \
     dtype,                                                      \
     d,                                                          \
     512,                                                        \
     64,                                                         \
     64,                                                         \
     384,                                                        \
     ATTN_SM90_WIDE_BYTES(dtype, d, loads),                      \
     loads,                                                      \
     0,                                                          \
     false,                                                      \
     false},
#define SM80_KERNEL(name, family, dtype, d, warps, bn, ctas) \
    {"attn_forward_sm80_" #name,                             \
     family,                                                 \
     dtype,                                                  \
     d,                                                      \
     d,                                                      \
     16 * (warps),                                           \
     bn,                                                     \
     32 * (warps),                                           \
     ATTN_SM80_BYTES(dtype, d, warps, bn),                   \
     ATTN_CUDA_THREADS,                                      \
     0,                                                      \
     false,                                                  \
     false},
#define ATTN_FORWARD_SM80(name, ...) SM80_KERNEL(name, ATTN_CUDA_SM80, __VA_ARGS__)
#define ATTN_FORWARD_SM80_DROPOUT(name, ...) \
    SM80_KERNEL(dropout_##name, ATTN_CUDA_SM80_DROPOUT, __VA_ARGS__)
#define ATTN_FORWARD_SM80_PRECISE(name, ...) \
    SM80_KERNEL(precise_##name, ATTN_CUDA_SM80_PRECISE, __VA_ARGS__)
#define ATTN_FORWARD_SM80_PRECISE_DROPOUT(name, ...) \
    SM80_KERNEL(precise_dropout_##name, ATTN_CUDA_SM80_PRECISE_DROPOUT, __VA_ARGS__)
#define GENERIC_KERNEL(name, family, storage, real)                                          \
    {"attn_forward_" #name, family, storage, 0,    0, 64, 64, 256, ATTN_GENERIC_BYTES(real), \
     ATTN_CUDA_THREADS,     0,      false,   false},
#define ATTN_FORWARD_GENERIC(name, storage, real) \
    GENERIC_KERNEL(name, ATTN_CUDA_GENERIC, storage, real)
#define ATTN_FORWARD_CODES(name, storage) GENERIC_KERNEL(name, ATTN_CUDA_CODES, storage, float)
#define FEW_KERNEL(name, family, dtype, code, d, rows, warps, stages, loads, stays) \
    {"attn_forward_few_" #name,                                                     \
     family,                                                                        \
     dtype,                                                                         \
     d,                                                                             \
     d,                                                                             \
     rows,                                                                          \
     16 * (warps),                                                                  \
     32 * (warps),                                                                  \
     ATTN_FEW_BYTES(code, d, warps, stages),                                        \
     loads,                                                                         \
     code,                                                                          \
     false,                                                                         \
     stays},
#define ATTN_FORWARD_FEW(name, dtype, code, d, rows, warps, stages, ctas) \
    FEW_KERNEL(name, ATTN_CUDA_FEW, dtype, code, d, rows, warps, stages, ATTN_CUDA_THREADS, false)
#define ATTN_FORWARD_FEW_ON(name, dtype, d, warps, stages, ctas) \
    FEW_KERNEL(name, ATTN_CUDA_FEW, dtype, dtype, d, 8, warps, stages, ATTN_CUDA_WHOLE, true)
#define ATTN_FORWARD_FEW_LINE(name, dtype, code, d, warps, stages, ctas, loads) \
    FEW_KERNEL(name, ATTN_CUDA_FEW_LINE, dtype, code, d, 8, warps, stages, loads, false)
#define ATTN_FORWARD_FEW_SHARED(name, dtype, d, warps, stages, ctas) \
    {"attn_forward_few_shared_" #name,                               \
     ATTN_CUDA_FEW_SHARED,                                           \
     dtype,                                                          \
     d,                                                              \
     d,                                                              \
     8,                                                              \
     16 * (warps),                                                   \
     32 * (warps),                                                   \
     ATTN_FEW_SHARED_BYTES(dtype, d, warps, stages),                 \
     ATTN_CUDA_THREADS,                                              \
     dtype,                                                          \
     false,                                                          \
     false},
#define FEW_HELPER(name, family, dtype, d, rows)                         \
    {"attn_forward_few_" #name, family, dtype, d,    d, rows, 0, 128, 0, \
     ATTN_CUDA_MERGE,           0,      false, false},
#define ATTN_FORWARD_FEW_FIND(name) FEW_HELPER(shared_##name, ATTN_CUDA_FEW_SHARED, 0, 0, 4)
#define ATTN_FORWARD_FEW_MERGE(name, dtype, d) FEW_HELPER(name, ATTN_CUDA_FEW, dtype, d, 1)
#define GRAD_KERNEL(name, dtype, bytes, part) \
    {"attn_backward_" #name,                  \
     ATTN_CUDA_BACKWARD_GENERIC,              \
     dtype,                                   \
     0,                                       \
     0,                                       \
     64,                                      \
     64,                                      \
     256,                                     \
     bytes,                                   \
     part,                                    \
     0,                                       \
     false,                                   \
     false},
#define ATTN_BACKWARD_GENERIC(name, dtype, real)                                    \
    GRAD_KERNEL(name##_delta, dtype, 0, ATTN_CUDA_GRAD_DELTA)                       \
    GRAD_KERNEL(name##_keys, dtype, ATTN_GRAD_BYTES(real), ATTN_CUDA_GRAD_KEYS)     \
    GRAD_KERNEL(name##_rows, dtype, ATTN_GRAD_BYTES(real), ATTN_CUDA_GRAD_ROWS)     \
    GRAD_KERNEL(name##_scores, dtype, ATTN_GRAD_BYTES(real), ATTN_CUDA_GRAD_SCORES) \
    GRAD_KERNEL(name##_finish, dtype, 0, ATTN_CUDA_GRAD_FINISH)                     \
    GRAD_KERNEL(name##_noted, dtype, ATTN_GRAD_BYTES(real), ATTN_CUDA_GRAD_NOTED)
#define GRAD_STAYING_KERNEL(name, family, dtype, d, rows, keys, threads, bytes, part, stays) \
    {"attn_backward_sm90_" #name,                                                            \
     family,                                                                                 \
     dtype,                                                                                  \
     d,                                                                                      \
     d,                                                                                      \
     rows,                                                                                   \
     keys,                                                                                   \
     threads,                                                                                \
     bytes,                                                                                  \
     part,                                                                                   \
     0,                                                                                      \
     false,                                                                                  \
     stays},
#define GRAD_KERNEL_OF(...) GRAD_STAYING_KERNEL(__VA_ARGS__, false)
#define GRAD_SM90_KERNEL(name, ...) GRAD_KERNEL_OF(name, ATTN_CUDA_BACKWARD_SM90, __VA_ARGS__)
#define ATTN_BACKWARD_SM90_DELTA(name, dtype, d) \
    GRAD_SM90_KERNEL(name, dtype, d, 8192 / (d), 0, 256, 0, ATTN_CUDA_GRAD_DELTA)
#define AHEAD_KERNEL(name, dtype, d)                                                     \
    GRAD_SM90_KERNEL(name, dtype, d, ATTN_GRAD_UNIT_ROWS, 0, ATTN_GRAD_AHEAD_THREADS, 0, \
                     ATTN_CUDA_GRAD_AHEAD)
#define ATTN_BACKWARD_SM90_AHEAD(...) AHEAD_KERNEL(__VA_ARGS__)
#define ATTN_BACKWARD_SM90_PAIRED_AHEAD(...) AHEAD_KERNEL(__VA_ARGS__)
#define PLAIN_ROOM(d, step) ATTN_GRAD_ROOM(d, step, false)
#define TABLES_ROOM(d, step) ATTN_GRAD_ROOM(d, step, true)
#define HELPED_KERNELS(name, family, room, threads, dtype, d, step, stages, stays) \
    GRAD_STAYING_KERNEL(name##_ordered, family, dtype, d, step, 128, threads,      \
                        ATTN_GRAD_SM90_BYTES(d, 256, step, stages, room(d, step)), \
                        ATTN_CUDA_GRAD_ORDERED, stays)                             \
    GRAD_KERNEL_OF(name##_round, family, dtype, d, step, 128, 256, 0, ATTN_CUDA_GRAD_ROUND)
#define ORDERED_KERNELS(name, family, room, ...) \
    HELPED_KERNELS(name, family, room, 384, __VA_ARGS__)
#define ATTN_BACKWARD_SM90_ORDERED(name, ...) \
    ORDERED_KERNELS(name, ATTN_CUDA_BACKWARD_SM90, PLAIN_ROOM, __VA_ARGS__)
#define ATTN_BACKWARD_SM90_ROUNDED(name, dtype, d, step, stages)                           \
    GRAD_STAYING_KERNEL(name##_rounded, ATTN_CUDA_BACKWARD_SM90, dtype, d, step, 128, 384, \
                        ATTN_GRAD_SM90_BYTES(d, 256, step, stages, PLAIN_ROOM(d, step)),   \
                        ATTN_CUDA_GRAD_ROUNDED, true)
#define WIDE_KERNELS(name, family, dtype, d, step, stages)                                   \
    GRAD_KERNEL_OF(name##_ordered, family, dtype, d, step, 128, 384,                         \
                   ATTN_GRAD_SM90_BYTES(d, 128, step, stages, ATTN_GRAD_WIDE_ROOM(d, step)), \
                   ATTN_CUDA_GRAD_ORDERED)                                                   \
    GRAD_KERNEL_OF(name##_round, family, dtype, d, step, 128, 256, 0, ATTN_CUDA_GRAD_ROUND)
#define ATTN_BACKWARD_SM90_WIDE(name, ...) WIDE_KERNELS(name, ATTN_CUDA_BACKWARD_SM90, __VA_ARGS__)
#define SUMS_KERNEL(name, dtype, d, step)                                                         \
    GRAD_KERNEL_OF(                                                                               \
        steps_##name##_sums, ATTN_CUDA_BACKWARD_SM90_STEPS, dtype, d, step, 128, 384,             \
        ATTN_GRAD_SM90_BYTES(d, 256, step, ATTN_GRAD_SUM_STAGES(d), ATTN_GRAD_SUM_ROOM(d, step)), \
        ATTN_CUDA_GRAD_SUMS)
#define ATTN_BACKWARD_SM90_WIDE_STEPS(name, dtype, d, step, stages)                   \
    WIDE_KERNELS(steps_##name, ATTN_CUDA_BACKWARD_SM90_STEPS, dtype, d, step, stages) \
    SUMS_KERNEL(name, dtype, d, step)
#define ATTN_BACKWARD_SM90_LIGHT(name, dtype, d, ...)                       \
    HELPED_KERNELS(light_##name, ATTN_CUDA_BACKWARD_SM90_LIGHT, PLAIN_ROOM, \
                   ATTN_GRAD_LIGHT_THREADS(d), dtype, d, __VA_ARGS__)
#define ATTN_BACKWARD_SM90_ALIBI(name, ...) \
    ORDERED_KERNELS(alibi_##name, ATTN_CUDA_BACKWARD_SM90_ALIBI, PLAIN_ROOM, __VA_ARGS__)
#define ATTN_BACKWARD_SM90_MASK(name, ...) \
    ORDERED_KERNELS(mask_##name, ATTN_CUDA_BACKWARD_SM90_MASK, ATTN_GRAD_MASK_ROOM, __VA_ARGS__)
#define ATTN_BACKWARD_SM90_BIAS(name, ...) \
    ORDERED_KERNELS(bias_##name, ATTN_CUDA_BACKWARD_SM90_BIAS, ATTN_GRAD_BIAS_ROOM, __VA_ARGS__)
#define ATTN_BACKWARD_SM90_DROPOUT(name, ...) \
    ORDERED_KERNELS(dropout_##name, ATTN_CUDA_BACKWARD_SM90_DROPOUT, PLAIN_ROOM, __VA_ARGS__)
#define ATTN_BACKWARD_SM90_TABLES(name, ...) \
    ORDERED_KERNELS(tables_##name, ATTN_CUDA_BACKWARD_SM90_TABLES, TABLES_ROOM, __VA_ARGS__)
#define ATTN_BACKWARD_SM90_STEPS_TABLES(name, ...)                                          \
    ORDERED_KERNELS(steps_tables_##name, ATTN_CUDA_BACKWARD_SM90_STEPS_TABLES, TABLES_ROOM, \
                    __VA_ARGS__)
#define ATTN_BACKWARD_SM90_STEPS(name, dtype, d, step, stages, stays)                        \
    ORDERED_KERNELS(steps_##name, ATTN_CUDA_BACKWARD_SM90_STEPS, PLAIN_ROOM, dtype, d, step, \
                    stages, stays)                                                           \
    SUMS_KERNEL(name, dtype, d, step)
#define ATTN_BACKWARD_SM90_ELEMENTS(name, dtype, d)                                            \
    GRAD_KERNEL_OF(elements_##name, ATTN_CUDA_BACKWARD_SM90_ELEMENTS, dtype, d, 128, 128, 384, \
                   ATTN_GRAD_ELEMENT_BYTES(d), ATTN_CUDA_GRAD_SUMS)
#define ATTN_BACKWARD_SM90_PARTS(name, d, step)                                                   \
    GRAD_KERNEL_OF(name##_delta, ATTN_CUDA_BACKWARD_SM90_F32, ATTN_F32, d, 1024 / (d), 0, 256, 0, \
                   ATTN_CUDA_GRAD_DELTA)                                                          \
    GRAD_STAYING_KERNEL(name##_ordered, ATTN_CUDA_BACKWARD_SM90_F32, ATTN_F32, d, step, 128, 384, \
                        ATTN_GRAD_PARTS_BYTES(d, step), ATTN_CUDA_GRAD_ORDERED, true)             \
    GRAD_KERNEL_OF(name##_round, ATTN_CUDA_BACKWARD_SM90_F32, ATTN_F32, d, step, 128, 256, 0,     \
                   ATTN_CUDA_GRAD_ROUND)                                                          \
    GRAD_KERNEL_OF(name##_single, ATTN_CUDA_BACKWARD_SM90_F32, ATTN_F32, d, 64, 64, 256,          \
                   ATTN_GRAD_SINGLE_BYTES, ATTN_CUDA_GRAD_SINGLE)
#define GRAD_SM80_KERNEL(name, family, dtype, d, rows, keys, fixed, step, halves, part) \
    {"attn_backward_sm80_" #name,                                                       \
     family,                                                                            \
     dtype,                                                                             \
     d,                                                                                 \
     d,                                                                                 \
     rows,                                                                              \
     keys,                                                                              \
     2 * (fixed) * (halves),                                                            \
     ATTN_GRAD_SM80_BYTES(dtype, d, fixed, step),                                       \
     part,                                                                              \
     0,                                                                                 \
     false,                                                                             \
     false},
#define GRAD_SM80_KERNELS(name, family, dtype, d, fixed, step, halves, ctas)          \
    GRAD_SM80_KERNEL(name##_keys, family, dtype, d, step, fixed, fixed, step, halves, \
                     ATTN_CUDA_GRAD_KEYS)                                             \
    GRAD_SM80_KERNEL(name##_rows, family, dtype, d, fixed, step, fixed, step, halves, \
                     ATTN_CUDA_GRAD_ROWS)
#define ATTN_BACKWARD_SM80(name, ...) GRAD_SM80_KERNELS(name, ATTN_CUDA_BACKWARD_SM80, __VA_ARGS__)
#define ATTN_BACKWARD_SM80_STEPS(name, ...) \
    GRAD_SM80_KERNELS(steps_##name, ATTN_CUDA_BACKWARD_SM80_STEPS, __VA_ARGS__)
#define ATTN_APPEND(name, kind) \
    {"attn_append_" #name, ATTN_CUDA_APPENDS, ATTN_F32, 0, 0, 1, 0, 256, 0, kind, 0, false, false},
#define ATTN_MASK(name, kind) \
    {"attn_mask_" #name, ATTN_CUDA_MASKS, ATTN_F32, 0, 0, 1, 0, 256, 0, kind, 0, false, false},
#define ATTN_STARTS(name) \
    {"attn_starts_" #name, ATTN_CUDA_STARTS, ATTN_F32, 0, 0, 1, 0, 256, 0, 0, 0, false, false},
#define ATTN_ELEMENTS(name, kind) \
    {"attn_elements_" #name,      \
     ATTN_CUDA_ELEMENTWISE,       \
     ATTN_F32,                    \
     0,                           \
     0,                           \
     1,                           \
     0,                           \
     256,                         \
     0,                           \
     kind,                        \
     0,                           \
     false,                       \
     false},
#define MERGES_KERNEL(name, parts, kind) \
    {"attn_merge_" #name,                \
     ATTN_CUDA_MERGES,                   \
     ATTN_F32,                           \
     0,                                  \
     0,                                  \
     8,                                  \
     parts,                              \
     256,                                \
     0,                                  \
     kind,                               \
     0,                                  \
     false,                              \
     false},
#define ATTN_MERGE(name, parts)                         \
    MERGES_KERNEL(name, parts, ATTN_CUDA_MERGE_RESULTS) \
    MERGES_KERNEL(name##_gradients, parts, ATTN_CUDA_MERGE_GRADIENTS)
const attn_cuda_kernel attn_cuda_kernels[ATTN_CUDA_KERNELS] = {
#include "cuda/kernels.inc"
};

int attn_cuda_find(attn_cuda_family family, int32_t kind)
{
    int kernel = 0;
    while (attn_cuda_kernels[kernel].family != family || attn_cuda_kernels[kernel].loads != kind) {
        kernel++;
    }
    return kernel;
}
