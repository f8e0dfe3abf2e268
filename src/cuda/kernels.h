/*
 * kernels.h: the table of kernels, kernels.inc as data. Private to src/cuda.
 */
#ifndef ATTN_CUDA_KERNELS_H
#define ATTN_CUDA_KERNELS_H

#include "cuda/cuda.h"

/* Kernels of one source, compiled into one image. Those before ATTN_CUDA_SM80 are for sm_90
 * alone. */
typedef enum attn_cuda_family {
#define ATTN_FAMILY(family, source) ATTN_CUDA_##family,
#include "cuda/families.inc"
    ATTN_CUDA_FAMILIES
} attn_cuda_family;

/* Kernels of a backward pass by their results (kernel/backward). */
enum {
    ATTN_CUDA_GRAD_DELTA,
    ATTN_CUDA_GRAD_KEYS,
    ATTN_CUDA_GRAD_ROWS,
    ATTN_CUDA_GRAD_SCORES,
    ATTN_CUDA_GRAD_FINISH,
    ATTN_CUDA_GRAD_NOTED, /* dK, dV and dQ of blocks that others have noted */
    ATTN_CUDA_GRAD_PARTS,
    ATTN_CUDA_GRAD_ORDERED = ATTN_CUDA_GRAD_PARTS, /* dK, dV and sums of dQ */
    ATTN_CUDA_GRAD_ROUND,                          /* dQ from its sums */
    ATTN_CUDA_GRAD_SUMS,                           /* sums of dS */
    ATTN_CUDA_GRAD_SINGLE,                         /* dK, dV and dQ of a head of one tile */
    ATTN_CUDA_GRAD_ROUNDED,                        /* dK, dV and dQ */
    ATTN_CUDA_GRAD_AHEAD                           /* delta beside the launch behind */
};

/* Kernels of attn_merge. */
enum { ATTN_CUDA_MERGE_RESULTS, ATTN_CUDA_MERGE_GRADIENTS, ATTN_CUDA_MERGE_KINDS };

/* Kernels of masks. */
enum { ATTN_CUDA_MASK_BYTES, ATTN_CUDA_MASK_LANES, ATTN_CUDA_BIAS_ROWS };

/* Kernels of new rows. */
enum { ATTN_CUDA_APPEND_ROTATE, ATTN_CUDA_APPEND_STORE };

/* Kernels of single elements: scales and shifts of groups, codes, values, masks of dropout. */
enum {
    ATTN_CUDA_WRITE_SCALES,
    ATTN_CUDA_WRITE_CODES,
    ATTN_CUDA_WRITE_VALUES,
    ATTN_CUDA_WRITE_KEEP
};

/* A kernel of kernels.inc. */
typedef struct attn_cuda_kernel {
    const char *name;
    attn_cuda_family family;
    int32_t dtype;
    int32_t d, dv;      /* head dims up to; 0 = any */
    int32_t rows, keys; /* extents of a tile; of merges, rows of a CTA and most parts */
    int32_t threads, shared_bytes;
    int32_t loads; /* ATTN_CUDA_THREADS but on forward_sm90; backward: ATTN_CUDA_GRAD_ ..;
                    * merges: ATTN_CUDA_MERGE_ ..; new rows: ATTN_CUDA_APPEND_ ..;
                    * elements: ATTN_CUDA_WRITE_ .. */
    int32_t codes; /* ATTN_CUDA_FEW: type of K and V */
    bool single;   /* for problems of at most `keys` keys, and no odd ones (plan.c) */
    bool stays;    /* a CTA does one item after the other (kernel/backward/run_sm90.cuh,
                    * kernel/forward/few_run.cuh) */
} attn_cuda_kernel;

enum {
    ATTN_CUDA_KERNELS = 0
#define ATTN_FORWARD_SINGLE(...) +1
#define ATTN_FORWARD_SM90(...) +1
#define ATTN_FORWARD_MERGE(...) +1
#define ATTN_FORWARD_SM90_STEPS(...) +1
#define ATTN_FORWARD_SM90_DROPOUT(...) +1
#define ATTN_FORWARD_SM90_DROPOUT_STEPS(...) +1
#define ATTN_FORWARD_SM90_WIDE(...) +1
#define ATTN_FORWARD_WIDE_MERGE(...) +1
#define ATTN_FORWARD_SM90_PAGED(...) +1
#define ATTN_FORWARD_SM90_SOFTCAP(...) +3
#define ATTN_FORWARD_SM90_ALIBI(...) +3
#define ATTN_FORWARD_SM90_MASK(...) +4
#define ATTN_FORWARD_SM90_BIAS(...) +1
#define ATTN_FORWARD_SM80(...) +1
#define ATTN_FORWARD_SM80_DROPOUT(...) +1
#define ATTN_FORWARD_SM80_PRECISE(...) +1
#define ATTN_FORWARD_SM80_PRECISE_DROPOUT(...) +1
#define ATTN_FORWARD_GENERIC(...) +1
#define ATTN_FORWARD_CODES(...) +1
#define ATTN_FORWARD_FEW(...) +1
#define ATTN_FORWARD_FEW_ON(...) +1
#define ATTN_FORWARD_FEW_LINE(...) +1
#define ATTN_FORWARD_FEW_SHARED(...) +1
#define ATTN_FORWARD_FEW_FIND(...) +1
#define ATTN_FORWARD_FEW_MERGE(...) +1
#define ATTN_BACKWARD_GENERIC(...) +ATTN_CUDA_GRAD_PARTS
#define ATTN_BACKWARD_SM80(...) +2
#define ATTN_BACKWARD_SM80_STEPS(...) +2
#define ATTN_BACKWARD_SM90_DELTA(...) +1
#define ATTN_BACKWARD_SM90_AHEAD(...) +1
#define ATTN_BACKWARD_SM90_PAIRED_AHEAD(...) +1
#define ATTN_BACKWARD_SM90_ORDERED(...) +2
#define ATTN_BACKWARD_SM90_ROUNDED(...) +1
#define ATTN_BACKWARD_SM90_WIDE(...) +2
#define ATTN_BACKWARD_SM90_LIGHT(...) +2
#define ATTN_BACKWARD_SM90_ALIBI(...) +2
#define ATTN_BACKWARD_SM90_MASK(...) +2
#define ATTN_BACKWARD_SM90_BIAS(...) +2
#define ATTN_BACKWARD_SM90_DROPOUT(...) +2
#define ATTN_BACKWARD_SM90_TABLES(...) +2
#define ATTN_BACKWARD_SM90_STEPS_TABLES(...) +2
#define ATTN_BACKWARD_SM90_STEPS(...) +3
#define ATTN_BACKWARD_SM90_WIDE_STEPS(...) +3
#define ATTN_BACKWARD_SM90_ELEMENTS(...) +1
#define ATTN_BACKWARD_SM90_PARTS(...) +4
#define ATTN_APPEND(...) +1
#define ATTN_MASK(...) +1
#define ATTN_STARTS(...) +1
#define ATTN_ELEMENTS(...) +1
#define ATTN_MERGE(...) +ATTN_CUDA_MERGE_KINDS
#include "cuda/kernels.inc"
};

/* True for kernels of the forward pass in plain CUDA C. */
static inline bool attn_cuda_is_generic(const attn_cuda_kernel *kernel)
{
    return kernel->family == ATTN_CUDA_GENERIC || kernel->family == ATTN_CUDA_CODES;
}

/* CTAs of a cluster: pairs beyond d = 128, which have an item together
 * (kernel/backward/wide_sm90.cuh), or run beside such (delta_sm90.cuh). */
static inline int32_t attn_cuda_grad_ctas(const attn_cuda_kernel *kernel)
{
    return (kernel->family == ATTN_CUDA_BACKWARD_SM90 ||
            kernel->family == ATTN_CUDA_BACKWARD_SM90_STEPS) &&
                   kernel->d > 128 &&
                   (kernel->loads == ATTN_CUDA_GRAD_ORDERED ||
                    kernel->loads == ATTN_CUDA_GRAD_AHEAD)
               ? 2
               : 1;
}

extern const attn_cuda_kernel attn_cuda_kernels[ATTN_CUDA_KERNELS];

/* The first kernel of a family whose `loads` is `kind`; there must be one. */
int attn_cuda_find(attn_cuda_family family, int32_t kind);

#endif
