/*
 * backward.h: the plan of a backward pass on a GPU: a list of launches. Private to src/cuda.
 */
#ifndef ATTN_CUDA_BACKWARD_H
#define ATTN_CUDA_BACKWARD_H

#include "core/arena.h"
#include "cuda/backward/params.h"
#include "cuda/gpu.h"

/* delta, keys and rows, perhaps again for some blocks, and for each of bias, slopes and sinks sums
 * of scores and their end */
enum { ATTN_CUDA_GRAD_LAUNCHES = 4 + 3 * 2 };

/* A kernel, and the part of its arguments that is its own. */
typedef struct attn_cuda_grad_launch {
    int kernel;
    uint32_t grid, layers; /* CTAs side by side, and so many times (0: once) */
    attn_cuda_grad_items items;
    int32_t pieces;
    bool early; /* begins before the end of the launch ahead, which it waits for itself */
    attn_cuda_grad_sum sum; /* sum: without its place */
} attn_cuda_grad_launch;

typedef struct attn_cuda_grad_plan {
    attn_cuda_grad_launch launch[ATTN_CUDA_GRAD_LAUNCHES]; /* in this order */
    int launches;
    int kernel;  /* kernel of the products, which the plan names */
    bool fast;   /* by backward_sm90, with sums of dQ in the workspace */
    bool split;  /* its form for f32, by parts in the workspace */
    bool single; /* the same in one launch */
    bool mma;    /* by backward_sm80 */
    bool rounds; /* the kernel that adds to dQ rounds it (kernel/backward/round_sm90.cuh) */
    bool early;  /* launches behind delta's begin so: d > 128, by pairs of CTAs, is slower then,
                  * but for the ordered kernel beside delta_ahead */
    char why[256];
    int64_t items;
    uint64_t lse_offset, delta_offset, partial_offset, bad_keys_offset, bad_rows_offset,
        turns_offset, sums_offset, key_turns_offset, key_sums_offset;
    uint64_t next_chunk_offset;                         /* of delta_ahead */
    uint64_t q_parts_offset, d_o_parts_offset;          /* split */
    uint64_t starts_offset;                             /* of cu_seqlens in order */
    uint64_t peaks_offset, reach_offset, capped_offset; /* sizes for f16; 0: none */
    int64_t shares;                                     /* fast: items.shares */
    attn_cuda_grad_rests rests;                         /* fast: items.rests */
    /* words from bad_keys_offset on, zero at first: notes, peaks, capped, ticket, a turn for each
     * tile of rows and for each block of keys. Cleared by a launch of their own, or by delta, if
     * params.clear_words says so. */
    size_t clear_words;
    uint64_t workspace_bytes;
    attn_cuda_backward_params params; /* arguments of all launches, without the tensor maps */
} attn_cuda_grad_plan;

/* Spreads the heads of a group over items of keys, of an ordered kernel: how many, and how many run
 * side by side. An item has a few hundred microseconds of rows; twice as many where each block sees
 * all of them, since blocks follow each other closely then. */
void attn_cuda_grad_spread(attn_cuda_grad_items *items, const attn_problem *problem,
                           const attn_cuda_kernel *kernel);

/* The kernel of LSE and delta that runs beside the ordered one (kernel/backward/delta_sm90.cuh), on
 * a quarter of the multiprocessors, since one that has a CTA of it has nothing else; beside pairs
 * of CTAs on fewer, by pairs. Sets its arguments. -1: there is none, or too few rows for a chunk on
 * each multiprocessor, or pair of them, or too many for their numbers. */
int attn_cuda_grad_ahead(attn_cuda_grad_plan *plan, const attn_cuda *cuda);

/* The rests of items of an ordered kernel, of which `runs` run side by side: about as many as that,
 * if items are long enough. The bits are the same. */
attn_cuda_grad_rests attn_cuda_grad_rests_of(const attn_problem *problem,
                                             const attn_cuda_kernel *kernel, int64_t runs);

/* f32 by parts, with d columns each. The reason for which it cannot be done, or NULL. */
const char *attn_cuda_split_lacks(const attn_gradients *grads);

/* True if one launch does it: a head has 64 rows and 64 keys at most. Its arguments. */
bool attn_cuda_split_is_single(const attn_gradients *grads);
attn_cuda_grad_single attn_cuda_split_single(const attn_gradients *grads);

/* The places of parts in the workspace, and which tensors are read 16 bytes at a time. */
void attn_cuda_split_plan(attn_cuda_grad_plan *plan, attn_arena *arena, int32_t d);

/* The parts of a tensor as one of bf16, with three heads for each of its own. */
attn_tensor attn_cuda_split_parts(const attn_tensor *tensor, void *parts, int32_t d);

/* Score steps and dropout have kernels of their own. */
bool attn_cuda_grad_is_stepped(const attn_problem *problem);
/* True if the mask is the same for all rows of an item of keys, and backward_sm90 leaves out the
 * keys that it hides: without a bias and softcap, in 16 bits. */
bool attn_cuda_grad_hides_keys(const attn_problem *problem);
/* True if backward_sm90 reads a mask or a bias element by element. */
bool attn_cuda_grad_gathers(const attn_problem *problem);
/* attn_cuda_steps_of, but a mask is copied only if the bias is, and has 16 bits. */
attn_cuda_steps attn_cuda_grad_steps(const attn_problem *problem);

/* The mask or bias, one of which is there, as the TMA has it: with one of each axis along which
 * it is the same. False if tiles of it cannot come so. */
bool attn_cuda_grad_table(const attn_problem *problem, attn_tensor *table);

/* True if the gradient of the bias, an element for each score, has kernels of its own
 * (kernel/backward/elements_sm90.cuh). */
bool attn_cuda_grad_has_elements(const attn_gradients *grads);

/* The kernel of a family for a part of the results (ATTN_CUDA_GRAD_ ..); that of backward_sm90 with
 * sums of dQ in the workspace, or the one that rounds them; that of backward_sm80, of f32 also
 * where P or dO are more exact than q. -1: none. */
int attn_cuda_grad_kernel(const attn_problem *problem, attn_cuda_family family, int32_t part);
int attn_cuda_grad_ordered(const attn_problem *problem, int32_t part);
int attn_cuda_grad_mma(const attn_gradients *grads, int32_t part);

/* The reasons for which backward_sm90 and backward_sm80 cannot do the problem, or NULL. */
const char *attn_cuda_grad_wgmma_lacks(const attn_gradients *grads, const attn_cuda *cuda);
const char *attn_cuda_grad_mma_lacks(const attn_gradients *grads, const attn_cuda *cuda);

/* True if the ordered kernel rounds dQ of whole sequences itself (kernel/backward/round_sm90.cuh).
 * The bits are the same. */
bool attn_cuda_grad_rounds(const attn_gradients *grads, const attn_band *band,
                           const attn_cuda *cuda);

/* True if rows of dQ, dK and dV are written 16 bytes at a time, where they are wanted. */
bool attn_cuda_grad_is_stored(const attn_gradients *grads);

/* The tensors whose rows backward_sm80 copies as they are, 16 bytes at a time (ATTN_CUDA_ALIGNED_
 * ..). */
int32_t attn_cuda_grad_aligned(const attn_gradients *grads);

/* Pure. Errors: unsupported, overflow. */
attn_status attn_cuda_grad_plan_make(attn_cuda_grad_plan *plan, const attn_cuda *cuda,
                                     const attn_gradients *grads);

/* Tiles, operations and bytes; 0 if they depend on lengths or origins in the GPU's memory. */
void attn_cuda_grad_costs(const attn_cuda_grad_plan *plan, attn_plan *out);

#endif
