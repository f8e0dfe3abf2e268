/*
 * shape.h: the shared memory of each kernel in bytes. The host launches with it (forward/plan.c);
 * the kernels lay it out and assert that both agree. C and CUDA; macros, because initialisers in
 * C11 take constants. dtype: of the inputs; d: head dims up to; bn: keys of a block.
 */
#ifndef ATTN_CUDA_SHAPE_H
#define ATTN_CUDA_SHAPE_H

/* Operands are tiles of 16-bit elements; f32 comes as three bf16 parts. */
#define ATTN_TILE_BYTES(dtype, rows, d) (((dtype) == ATTN_F32 ? 3 : 1) * (rows) * (d)*2)
/* Columns of a tile of forward_sm90, which come in chunks of 64. */
#define ATTN_WIDE(d) (((d) + 63) / 64 * 64)
/* Whether tiles are more than one chunk, and whole ones; wide kernels have boxes of a chunk. */
#define ATTN_SM90_JOINS(d, dv) \
    ((d) > 64 && (d) <= 256 && (dv) <= 256 && (d) % 64 == 0 && (dv) % 64 == 0)
/* f32 tiles of K and V as loaded, before they are split. */
#define ATTN_RAW_BYTES(dtype, d, bn) ((dtype) == ATTN_F32 ? 2 * (bn) * (d)*4 : 0)

/* Bytes lost to aligning to 1024, since a launch aligns to less. */
#define ATTN_SM90_ALIGN 1024
/* Barriers and posts; then bounds, two numbers for each row. */
#define ATTN_SM90_CONTROL 704
/* A warp's room for its 16 rows of O, which it has by TMA up to d = 128; with score steps the same
 * room is for a block's bias in f32, but f32 at d = 128 leaves none; with a mask or a bias of 16
 * bits alone for two blocks of it. */
#define ATTN_SM90_STAGE_BYTES(d, dv, loads) \
    ((loads) != ATTN_CUDA_THREADS && (d) <= 128 && (dv) <= 128 ? 16 * ATTN_WIDE(dv) * 2 : 0)
#define ATTN_SM90_BIAS_BYTES(dtype, d, bn) ((dtype) == ATTN_F32 && (d) == 128 ? 0 : 16 * (bn)*4)
#define ATTN_SM90_SCORE_BYTES(dtype, d, bn, scores)                      \
    ((scores) == ATTN_CUDA_STEPPED  ? ATTN_SM90_BIAS_BYTES(dtype, d, bn) \
     : (scores) == ATTN_CUDA_MASKED ? 2 * 16 * (bn)                      \
     : (scores) == ATTN_CUDA_BIASED ? 2 * 16 * (bn)*2                    \
                                    : 0)
#define ATTN_SM90_WARP_BYTES(dtype, d, dv, bn, loads, scores)                          \
    (ATTN_SM90_SCORE_BYTES(dtype, d, bn, scores) > ATTN_SM90_STAGE_BYTES(d, dv, loads) \
         ? ATTN_SM90_SCORE_BYTES(dtype, d, bn, scores)                                 \
         : ATTN_SM90_STAGE_BYTES(d, dv, loads))
/* A warp's notes on its item's score steps. */
#define ATTN_SM90_NOTE_BYTES 40
#define ATTN_SM90_IS_MASKED(scores) \
    ((scores) == ATTN_CUDA_MASKED || (scores) == ATTN_CUDA_MASKED_LANES)
#define ATTN_SM90_HAS_NOTES(scores) \
    ((scores) == ATTN_CUDA_STEPPED || (scores) == ATTN_CUDA_BIASED || ATTN_SM90_IS_MASKED(scores))
/* kernel/forward/shape_sm90.cuh: Q, two stages of K and V, O or bias, raw tiles, control, bounds,
 * notes. */
#define ATTN_SM90_BYTES(dtype, d, dv, groups, bn, loads, scores)      \
    (ATTN_TILE_BYTES(dtype, 64 * (groups) + 2 * (bn), ATTN_WIDE(d)) + \
     ATTN_TILE_BYTES(dtype, 2 * (bn), ATTN_WIDE(dv)) +                \
     4 * (groups) *                                                   \
         (ATTN_SM90_WARP_BYTES(dtype, d, dv, bn, loads, scores) +     \
          (ATTN_SM90_HAS_NOTES(scores) ? ATTN_SM90_NOTE_BYTES : 0)) + \
     ATTN_RAW_BYTES(dtype, d, bn) + ATTN_SM90_CONTROL + 64 * (groups)*8 + ATTN_SM90_ALIGN)

/* The same for head dims beyond 256, d_v up to 512: Q of 64 rows; one stage of K and V, or two of K
 * if V is a view of it, and what two groups tell each other of 64 rows: two numbers of each kind.
 * Tiles have 64 keys, elements 16 bits. */
#define ATTN_SM90_SWAP_BYTES (6 * 64 * 8)
#define ATTN_SM90_WIDE_BYTES(dtype, d, loads)                                              \
    (ATTN_TILE_BYTES(dtype, 64, ATTN_WIDE(d)) * 2 +                                        \
     ATTN_TILE_BYTES(dtype, 64, ATTN_CUDA_IS_VIEW(loads) ? ATTN_WIDE(d) : 512) +           \
     (ATTN_CUDA_IS_VIEW(loads) ? ATTN_SM90_SWAP_BYTES : 0) + ATTN_SM90_CONTROL + 128 * 8 + \
     ATTN_SM90_ALIGN)

/* kernel/forward/single_sm90.cuh: K and V. */
#define ATTN_SINGLE_BYTES(dtype, d, bn) (ATTN_TILE_BYTES(dtype, 2 * (bn), d) + ATTN_SM90_ALIGN)

/* kernel/forward/forward_sm80.cuh: Q; two stages of K and V, or one of f32 and raw tiles;
 * bounds. */
#define ATTN_SM80_BYTES(dtype, d, warps, bn)                                          \
    (ATTN_TILE_BYTES(dtype, 16 * (warps) + ((dtype) == ATTN_F32 ? 2 : 4) * (bn), d) + \
     ATTN_RAW_BYTES(dtype, d, bn) + 16 * (warps)*8)

/* kernel/forward/forward_generic.cu: QT, KT, S, V; m, l, alpha. */
#define ATTN_GENERIC_BYTES(real) ((2 * 32 * 65 + 64 * 65 + 64 * 64 + 3 * 64) * (int)sizeof(real))

/* kernel/forward/few_shape.cuh: for each warp stages of 16 keys of K and V, with four factors a key
 * if they are codes; places of their rows, and as many entries of a table as stages. */
#define ATTN_FEW_IS_PLAIN(code) ((code) == ATTN_BF16 || (code) == ATTN_F16)
#define ATTN_FEW_BITS(code) (ATTN_FEW_IS_PLAIN(code) ? 16 : (code) == ATTN_I4X2 ? 4 : 8)
#define ATTN_FEW_STAGE(code, d) \
    (2 * 16 * (d)*ATTN_FEW_BITS(code) / 8 + (ATTN_FEW_IS_PLAIN(code) ? 0 : 4 * 16 * 4))
#define ATTN_FEW_BYTES(code, d, warps, stages) \
    ((warps) * ((stages)*ATTN_FEW_STAGE(code, d) + (2 + (stages)) * 16 * 8))

/* The same with Q of a tile of several sequences' rows. */
#define ATTN_FEW_SHARED_ROWS 32
#define ATTN_FEW_SHARED_BYTES(code, d, warps, stages) \
    (ATTN_FEW_BYTES(code, d, warps, stages) + ATTN_FEW_SHARED_ROWS * (d)*2)

/* kernel/backward/tile_generic.cuh: operands or rows; P, g; LSE, delta. */
#define ATTN_GRAD_BYTES(real) ((2 * 32 * 65 + 2 * 64 * 65 + 2 * 64) * (int)sizeof(real))

/* kernel/backward/shape_sm80.cuh: two tiles of fixed rows; stages of two tiles of `step` rows, and
 * of f32 up to d = 128 these as loaded; LSE and delta. */
#define ATTN_GRAD_SM80_STAGES(dtype) ((dtype) == ATTN_F32 ? 1 : 2)
#define ATTN_GRAD_SM80_RAW_BYTES(dtype, d, step) ((d) > 128 ? 0 : ATTN_RAW_BYTES(dtype, d, step))
#define ATTN_GRAD_SM80_BYTES(dtype, d, fixed, step)                                       \
    (ATTN_TILE_BYTES(dtype, 2 * (fixed) + 2 * ATTN_GRAD_SM80_STAGES(dtype) * (step), d) + \
     ATTN_GRAD_SM80_RAW_BYTES(dtype, d, step) + ATTN_GRAD_SM80_STAGES(dtype) * 2 * (step)*4)

/* kernel/backward/shape_sm90.cuh: `fixed` rows of K and V together, stages of two tiles of `step`
 * rows, `scores` bytes of P, dS and sums of dQ, barriers, LSE and delta; a box's rows (TMA). */
#define ATTN_GRAD_BOX 64
#define ATTN_GRAD_SM90_BYTES(d, fixed, step, stages, scores)                                  \
    ((fixed) * (d)*2 + (stages)*2 * (step) * (d)*2 + (scores) + 128 + (stages)*2 * (step)*4 + \
     ATTN_SM90_ALIGN)

/* Of 8 warps: 16 keys of a bias and of a mask, or of one of them (kernel/backward/tables_sm90.cuh).
 * Then barriers of dO, which has a stage less than Q. The room of those with tables and without. */
#define ATTN_GRAD_TABLE_BYTES(step) (8 * 16 * (step) * ((step) > 64 ? 2 : 3))
#define ATTN_GRAD_APART_BYTES 32
#define ATTN_GRAD_ROOM(d, step, tabled) \
    (128 * (step)*2 + (step) * (d)*4 +  \
     ((tabled) ? ATTN_GRAD_TABLE_BYTES(step) + ATTN_GRAD_APART_BYTES - (step) * (d)*2 : 0))
/* The same where a tile of a mask, or of a bias of 16 bits, comes by TMA, and its barriers. */
#define ATTN_GRAD_MASK_ROOM(d, step) (ATTN_GRAD_ROOM(d, step, false) + (step)*128 + 16)
#define ATTN_GRAD_BIAS_ROOM(d, step) \
    (ATTN_GRAD_ROOM(d, step, false) + (step)*256 + 16 + ATTN_GRAD_APART_BYTES - (step) * (d)*2)

/* kernel/backward/sums_sm90.cuh: stages; the second one's K and V, and tables. */
#define ATTN_GRAD_SUM_STAGES(d) ((d) > 128 ? 1 : 2)
#define ATTN_GRAD_SUM_ROOM(d, step) \
    ((ATTN_GRAD_SUM_STAGES(d) - 1) * 2 * 128 * (d)*2 + ATTN_GRAD_TABLE_BYTES(step))

/* kernel/backward/wide_sm90.cuh, beside `step` rows of dO once: P, dS of the CTA twice and of the
 * other one; a quarter of dQ; half of the other's K; barriers of both. */
#define ATTN_GRAD_PAIR_BYTES 48
#define ATTN_GRAD_WIDE_ROOM(d, step)                                                              \
    (4 * 64 * (step)*2 + (step) * (d) + 64 * (d) + ATTN_GRAD_PAIR_BYTES + ATTN_GRAD_APART_BYTES - \
     (step) * (d)*2)

/* kernel/backward/elements_sm90.cuh: a ring of pairs of tiles of 128 rows or keys; a bias; LSE and
 * delta twice; posts; barriers. The first byte is a multiple of 128. */
#define ATTN_GRAD_ELEMENT_PAIRS(d) ((d) > 64 ? 3 : 4)
#define ATTN_GRAD_ELEMENT_ALIGN (1024 - 128)
#define ATTN_GRAD_ELEMENT_BYTES(d)                                                             \
    (ATTN_GRAD_ELEMENT_PAIRS(d) * 2 * 128 * (d)*2 + 128 * 128 * 2 + 2 * 2 * 128 * 4 + 2 * 64 + \
     ATTN_GRAD_ELEMENT_ALIGN)

/* kernel/backward/parts_sm90.cuh: K and V of 128 keys, Q and dO of `step` rows, dS, all in parts;
 * sums of dQ; barriers, two times LSE and delta. */
#define ATTN_GRAD_PARTS_BYTES(d, step)                                                    \
    (3 * (2 * 128 * (d)*2 + 2 * (step) * (d)*2 + 128 * (step)*2) + (step) * (d)*4 + 128 + \
     2 * 2 * (step)*4 + ATTN_SM90_ALIGN)

/* kernel/backward/single_f32_sm90.cuh: K, Q, dO and dS of 64 x 64 in parts; LSE and delta; K, Q,
 * dO, O and V as they come. */
#define ATTN_GRAD_SINGLE_BYTES \
    (3 * 4 * 64 * 64 * 2 + 2 * 64 * 4 + 5 * 64 * 64 * 4 + ATTN_SM90_ALIGN)

/* Sums of dK and dV of an item's keys, and four more of each of 256 threads
 * (kernel/backward/shares_sm90.cuh). */
#define ATTN_GRAD_SHARE_FLOATS(d, keys) (2 * (keys) * (d) + 4 * 256)

#endif
