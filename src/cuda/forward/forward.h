/*
 * forward.h: the contents of a GPU context, and the plan of a forward pass on it. Private to
 * src/cuda.
 */
#ifndef ATTN_CUDA_FORWARD_H
#define ATTN_CUDA_FORWARD_H

#include "cuda/cuda.h"
#include "cuda/driver.h"

/* Kernels of one source, compiled into one image. */
typedef enum attn_cuda_family {
    ATTN_CUDA_SM90,
    ATTN_CUDA_SM90_STEPS,
    ATTN_CUDA_SM90_WIDE,
    ATTN_CUDA_SM90_PAGED,
    ATTN_CUDA_SM80,
    ATTN_CUDA_GENERIC,
    ATTN_CUDA_FAMILIES
} attn_cuda_family;

/* A kernel of kernels.inc. */
typedef struct attn_cuda_kernel {
    const char *name;
    attn_cuda_family family;
    int32_t dtype;
    int32_t d, dv;      /* head dims up to; 0 = any */
    int32_t rows, keys; /* of a tile */
    int32_t threads, shared_bytes;
    int32_t loads; /* ATTN_CUDA_THREADS but on forward_sm90 */
    bool single;   /* for problems of at most `keys` keys, and no odd ones (plan.c) */
} attn_cuda_kernel;

enum {
    ATTN_CUDA_KERNELS = 0
#define ATTN_FORWARD_SINGLE(...) +1
#define ATTN_FORWARD_SM90(...) +1
#define ATTN_FORWARD_MERGE(...) +1
#define ATTN_FORWARD_SM90_STEPS(...) +1
#define ATTN_FORWARD_SM90_WIDE(...) +1
#define ATTN_FORWARD_WIDE_MERGE(...) +1
#define ATTN_FORWARD_SM90_PAGED(...) +1
#define ATTN_FORWARD_SM80(...) +1
#define ATTN_FORWARD_GENERIC(...) +1
#include "cuda/kernels.inc"
};

extern const attn_cuda_kernel attn_cuda_kernels[ATTN_CUDA_KERNELS];

struct attn_cuda {
    const attn_driver *driver;
    cu_device device;
    /* for threads without a current one: the creator's, or the primary one */
    cu_context context;
    bool primary;                                            /* context was retained here */
    int capability, multiprocessors, l2_bytes, shared_bytes; /* shared: that a CTA may have */
    cu_library images[ATTN_CUDA_FAMILIES];                   /* NULL if not for this GPU */
    /* NULL likewise, or if it needs more shared memory */
    cu_kernel kernels[ATTN_CUDA_KERNELS];
    char name[160];
};

typedef struct attn_cuda_plan {
    int kernel, merge; /* indices into attn_cuda_kernels; merge: of splits of keys, or -1 */
    char why[256];
    uint32_t grid[3], merge_grid; /* grid[0] == 0: there is nothing to do */
    bool counted;                 /* items are handed out by a counter, if there is a workspace */
    uint64_t workspace_bytes;     /* that would help; 0 = none */
    attn_cuda_forward_params params; /* all but the tensor maps */
} attn_cuda_plan;

/* Pure. Errors: unsupported. */
attn_status attn_cuda_plan_make(attn_cuda_plan *plan, const attn_cuda *cuda,
                                const attn_problem *problem);

/* How many heads of a group share a tile of forward_sm90, and into how many splits keys are cut. */
void attn_cuda_schedule_rows(attn_cuda_schedule *schedule, const attn_cuda_kernel *kernel,
                             const attn_problem *problem);

/* Items, grid and workspace of a plan that has its kernel. Errors: unsupported. */
attn_status attn_cuda_schedule_make(attn_cuda_plan *plan, const attn_cuda *cuda,
                                    const attn_problem *problem);

/* The plan for a call with that workspace, NULL: none. */
void attn_cuda_plan_place(attn_cuda_plan *plan, const attn_cuda *cuda, void *workspace);

/* 16-byte pieces of rows: elements side by side, all else at multiples of 16 bytes. */
bool attn_cuda_is_aligned(const attn_tensor *tensor);

/* Whether there is more between Q K^T and softmax than a positive scale and intervals of keys. */
bool attn_cuda_has_steps(const attn_problem *problem);

/* The steps as forward_sm90 takes them. */
attn_cuda_steps attn_cuda_steps_of(const attn_problem *problem);

/* Why forward_sm90 cannot do these steps, or NULL. */
const char *attn_cuda_steps_lack(const attn_problem *problem);

/* Tiles, operations and bytes of the plan; 0 if they depend on lengths or origins in the GPU's
 * memory. */
void attn_cuda_plan_costs(const attn_cuda_plan *plan, const attn_cuda *cuda,
                          const attn_problem *problem, attn_plan *out);

/* The embedded images (images.c). */
extern const unsigned char attn_image_forward_sm90[], attn_image_forward_sm90_steps[],
    attn_image_forward_sm90_wide[], attn_image_forward_sm90_paged[], attn_image_forward_sm80[],
    attn_image_forward_generic[];

#endif
