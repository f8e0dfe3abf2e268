/* params.h: arguments of the kernels of the backward pass, by value. C and CUDA. */
#ifndef ATTN_CUDA_BACKWARD_PARAMS_H
#define ATTN_CUDA_BACKWARD_PARAMS_H

#include "cuda/params.h"

/* kernel/backward/delta_sm90.cuh, delta_ahead: threads; rows of a warp's unit; units of a chunk. */
#define ATTN_GRAD_AHEAD_THREADS 1024
#define ATTN_GRAD_UNIT_ROWS 32
#define ATTN_GRAD_CHUNK_UNITS (ATTN_GRAD_AHEAD_THREADS / 32)

/* Threads of kernels with ALiBi and dropout: with a helper (kernel/backward/helper_sm90.cuh). */
#define ATTN_GRAD_LIGHT_THREADS(d) ((d) == 64 ? 512 : 384)

/* Items of keys that end late: their last rows are items of their own, rests, which are drawn when
 * no other item is left, long ones first, so that CTAs end together (kernel/backward/
 * rests_sm90.cuh). They are those of the first `blocks` blocks of the last `heads` heads of all
 * sequences. The rest of the last head begins with its tile `from`, that of each head before it
 * step / 16 tiles later. */
typedef struct attn_cuda_grad_rests {
    int32_t heads, blocks; /* 0: there are none */
    int32_t from, step;
} attn_cuda_grad_rests;

/* Work items of a backward pass: blocks of rows of a query head, or of keys of a head
 * (kernel/backward/items.cuh). */
typedef struct attn_cuda_grad_items {
    bool keys;
    int32_t block;         /* rows or keys of an item */
    int64_t blocks, heads; /* of one head (dense); of one sequence */
    int64_t section; /* dense: heads whose blocks run side by side, of those of all sequences */
    /* Of keys: items that have the query heads of a group, at most; rows that each is to have of
     * its heads; rows of a head that a block of keys sees, at most (attn_cuda_grad_heads). */
    int64_t shares, least, span;
    int64_t count; /* of a launch whose CTAs draw items (kernel/backward/run_sm90.cuh) */
    attn_cuda_grad_rests rests; /* beside these */
} attn_cuda_grad_items;

/* n / by, rounded up. */
ATTN_CORE int64_t attn_cuda_grad_blocks(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

/* The items of a kernel that owns blocks of keys, or of rows, of so many heads, and their number.
 */
ATTN_CORE attn_cuda_grad_items attn_cuda_grad_items_of(const attn_problem *problem, bool keys,
                                                       int64_t heads, int32_t block, double *count)
{
    const int64_t n = keys ? problem->k.shape[1] : problem->q.shape[1];
    attn_cuda_grad_items items = {0};
    items.keys = keys, items.block = block, items.blocks = attn_cuda_grad_blocks(n, block);
    items.heads = heads, items.section = problem->batch * heads, items.shares = 1;
    *count = !problem->varlen ? (double)problem->batch * (double)heads * (double)items.blocks
             : n > 0          ? (double)heads * (double)(n / block + problem->batch + 2)
                              : 0;
    return items;
}

/* Parts of 64 columns of an item of backward_generic. */
ATTN_CORE int32_t attn_cuda_grad_pieces(const attn_problem *problem, bool keys)
{
    const int64_t d = problem->d, dv = problem->dv;
    return (int32_t)attn_cuda_grad_blocks(keys && dv > d ? dv : d, 64);
}

/* Query heads of a group that an item of keys has: as many as give it `least` rows, since an item
 * has a start and an end, and not more, since blocks of keys follow each other through the rows of
 * its heads, which are to stay in the L2 cache meanwhile. rows: of the sequence, on which alone the
 * order of sums may depend. */
ATTN_CORE int64_t attn_cuda_grad_heads(const attn_cuda_grad_items *items, int64_t group,
                                       int64_t rows)
{
    const int64_t seen = rows < items->span ? rows : items->span,
                  enough = seen > 0 ? (items->least + seen - 1) / seen : group,
                  heads = enough < group ? enough : group, shares = (group + heads - 1) / heads;
    return (group + shares - 1) / shares;
}

/* Which sums of dS a gradient of a bias, of slopes or of sinks takes
 * (kernel/backward/sums_generic.cuh). */
enum {
    ATTN_CUDA_ELEMENTS,
    ATTN_CUDA_BY_ROWS,
    ATTN_CUDA_BY_KEYS,
    ATTN_CUDA_SLOPES,
    ATTN_CUDA_SINKS
};

typedef struct attn_cuda_grad_sum {
    attn_tensor out;
    int32_t kind;
    double *partial; /* a sum for each row, or for each key, of each query head */
} attn_cuda_grad_sum;

/* The members of a problem that a kernel for heads of one tile takes
 * (kernel/backward/single_f32_sm90.cuh). */
typedef struct attn_cuda_grad_single {
    int32_t d, dv;
    float scale;
    bool has_d_lse;
    attn_band band;
    attn_cuda_place k, q, v, d_o, o, lse, d_lse; /* d_lse: that of lse if there is none */
    attn_cuda_place d_v, d_k, d_q;               /* without data: none */
} attn_cuda_grad_single;

/* Arguments of each kernel of a backward pass. */
typedef struct attn_cuda_backward_params {
    attn_gradients grads;
    int64_t rows;      /* of all heads */
    void *lse, *delta; /* of all rows, in the type of sums: [batch of q][head][row] */
    attn_cuda_grad_items items;
    int32_t pieces; /* backward_generic: of an item, each with 64 columns */
    /* Sequences are as long as the tensors, without origins, and groups in one share. Then the band
     * of each. */
    bool whole;
    /* The mask hides the same keys from all rows of an item, and the kernel of 16 bits leaves them
     * out (kernel/backward/hidden_sm90.cuh). */
    bool hides_keys;
    attn_band band;
    attn_cuda_grad_sum sum;
    /* backward_sm90, backward_sm80: exponents of 2 for a product of q and k. */
    float scale_log2;
    /* For each item of backward_generic of keys, and of rows, whether kernels on tensor cores leave
     * it undone. */
    unsigned char *bad_keys, *bad_rows;
    /* kernel/backward/ordered_sm90.cuh: the next item; for each tile of rows of a query head its
     * turn and its sums of dQ. slots: tiles of a head. */
    uint32_t *ticket, *turns;
    float *sums;
    int64_t slots;
    /* items.shares > 1: for each block of keys of a KV head its turn and its sums of dK and dV
     * (kernel/backward/shares_sm90.cuh); or the same for each rest (rests_sm90.cuh). key_slots:
     * blocks of a head. */
    uint32_t *key_turns;
    float *key_sums;
    int64_t key_slots;
    /* backward_sm90 in f16 (kernel/backward/range_sm90.cuh): for each sequence and KV head bits of
     * the largest |dO_i| and |O_i|, 0 at first; the size of each row. NULL: another type */
    uint32_t *peaks;
    float *reach;
    /* The same with softcap: for each row the sum of P (1 - derivative of the cap) over elements
     * whose derivative is below 1/2, in units of 2^-24; 0 at first. */
    uint32_t *capped;
    attn_tensor_map q_map, k_map, v_map, d_o_map;
    union {
        struct {
            attn_cuda_steps steps; /* kernel/backward/steps_sm90.cuh */
            /* Kernels whose tiles of a mask or bias come by TMA: two keys of a mask are one
             * element. Whether it has rows of its own for each head, and for each sequence. */
            bool table_heads, table_batches;
            attn_tensor_map table_map;
        };
        struct { /* .._rounded: the maps by which results leave */
            attn_tensor_map dq_map, dk_map, dv_map;
        };
        attn_cuda_grad_single single; /* heads of one tile, which have no score steps */
    };
    /* 1 / softcap, and the factor of what dropout keeps, if it keeps something, else 1 */
    float inverse_cap, kept;
    attn_cuda_dropout dropout;
    /* backward_sm90 in f32 (kernel/backward/parts_sm90.cuh): parts of Q and dO. */
    unsigned char *q_parts, *d_o_parts;
    /* Tensors whose rows are copied 16 bytes at a time (ATTN_CUDA_ALIGNED_ ..): by backward_sm80,
     * and by backward_sm90 in f32, where ALIGNED_Q stands for Q, O and dO. */
    int32_t aligned;
    /* delta of backward_sm90: words to clear (kernel/backward/clear_sm90.cuh). */
    int64_t clear_words;
    uint32_t *clear;
    bool has_origins; /* sequences have, so that dropout begins anywhere */
    /* The ordered kernel begins beside delta_ahead, with so many CTAs; 0: behind delta. Units of
     * a query head; for each of these CTAs the chunk that it does next. */
    uint32_t ahead, units;
    uint32_t *next_chunk;
} attn_cuda_backward_params;

#ifdef __cplusplus
static_assert(sizeof(attn_cuda_backward_params) <= 4096, "kernel parameters");
#else
_Static_assert(sizeof(attn_cuda_backward_params) <= 4096, "kernel parameters");
#endif

#endif
