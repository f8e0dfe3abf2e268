/*
 * forward.h: the plan of a forward pass on a GPU. Private to src/cuda.
 */
#ifndef ATTN_CUDA_FORWARD_H
#define ATTN_CUDA_FORWARD_H

#include "core/append.h"
#include "cuda/forward/codes.h"
#include "cuda/gpu.h"

typedef struct attn_cuda_plan {
    int kernel, merge; /* indices into attn_cuda_kernels; merge: of splits of keys, or -1 */
    char why[256];
    uint32_t grid[3], merge_grid[2]; /* grid[0] == 0: there is nothing to do */
    bool counted;             /* items are handed out by a counter, if there is a workspace */
    int run;                  /* splits of a CTA of forward_few */
    attn_tensor lanes;        /* of the mask (cuda/mask/mask.h), if there is a workspace */
    uint64_t lanes_offset;    /* in attention's part of that; 0: none */
    attn_tensor rounded;      /* O once more, in a narrower type; data == NULL: no */
    attn_rotated rotated;     /* at the workspace's start; its bytes must be there */
    uint64_t own_offset;      /* of attention's part of the workspace */
    uint64_t workspace_bytes; /* all bytes that the call takes; 0 = none */
    attn_cuda_forward_params params; /* all but the tensor maps */
} attn_cuda_plan;

/* Pure. workspace: at a multiple of 64; NULL: none, or not yet. Errors: unsupported, overflow. */
attn_status attn_cuda_plan_make(attn_cuda_plan *plan, const attn_cuda *cuda,
                                const attn_problem *problem, void *workspace);

enum { ATTN_CUDA_COUNTED = 1 << 30 }; /* most elements that kernels count in 32 bits */

/* Of columns and packed sequences, for kernels of both passes. Errors: unsupported. */
attn_status attn_cuda_check_counts(const attn_problem *problem);

bool attn_cuda_is_quantised(const attn_problem *problem);

/* The kernel of forward_few for the problem, whose tile holds all rows of a KV head, or the largest
 * one; or -1. */
int attn_cuda_find_few(const attn_cuda *cuda, const attn_problem *problem);

/* The reason for which forward_few cannot do a problem, or NULL. */
const char *attn_cuda_few_lacks(const attn_problem *problem, const attn_cuda *cuda);

/* True if keys are in pages that sequences share, and scores do not know positions. */
bool attn_cuda_may_share(const attn_cuda *cuda, const attn_problem *problem);

/* Launches in place of forward_few's: kernel; ahead of it `find` of a grid. kernel < 0: none. */
typedef struct attn_cuda_shared_plan {
    int kernel, find;
    uint32_t grid;
} attn_cuda_shared_plan;

/* The launches of a placed plan where sequences may share pages, and what they take besides. */
attn_cuda_shared_plan attn_cuda_share(const attn_cuda *cuda, const attn_cuda_plan *plan,
                                      attn_cuda_sharing *to);

/* True for kernels of forward_few whose CTAs can do several splits of their rows. */
bool attn_cuda_few_can_join(const attn_cuda_kernel *kernel);

/* True for those of them whose CTAs add up what their splits leave. */
bool attn_cuda_few_adds(const attn_cuda_kernel *kernel);

/* The splits that a CTA of forward_few is to do: bits are the same. */
int attn_cuda_few_run(const attn_cuda *cuda, const attn_cuda_kernel *kernel,
                      const attn_problem *problem, const attn_cuda_schedule *schedule);

/* CTAs of a plan of forward_few that knows the splits of each: fewer where a CTA goes on from one
 * item to another. */
uint32_t attn_cuda_few_grid(const attn_cuda_plan *plan, const attn_cuda *cuda);

/* The kernel for that: the plan's, or one of the same bits. */
int attn_cuda_few_launched(const attn_cuda_plan *plan, const attn_cuda *cuda);

/* What forward_few's CTAs take of a placed plan's problem. */
attn_cuda_few attn_cuda_few_of(const attn_cuda_plan *plan);

/* A row of a tensor: its steps in bytes. */
attn_cuda_place attn_cuda_place_of(const attn_tensor *tensor);

/* Sets the number of heads of a group that share a tile of forward_sm90, and of splits of the
 * keys. */
void attn_cuda_schedule_rows(attn_cuda_schedule *schedule, const attn_cuda_kernel *kernel,
                             const attn_problem *problem);

/* The same of forward_few, where all heads of a group share a tile. */
void attn_cuda_schedule_few(attn_cuda_schedule *schedule, const attn_cuda_kernel *kernel,
                            const attn_problem *problem);

/* How keys in pages are loaded. */
attn_cuda_pages attn_cuda_pages_of(const attn_problem *problem, const attn_cuda_kernel *kernel);

/* Items, grid and workspace of a plan that has its kernel. Errors: unsupported. */
attn_status attn_cuda_schedule_make(attn_cuda_plan *plan, const attn_cuda *cuda,
                                    const attn_problem *problem);

/* The plan for a call whose attention has that workspace, NULL: none. */
void attn_cuda_plan_place(attn_cuda_plan *plan, const attn_cuda *cuda, void *workspace);

/* True if the plan's kernel copies rows of masks and biases 16 bytes at a time where they are
 * aligned. */
bool attn_cuda_copies_scores(const attn_cuda_plan *plan);

/* True if more than a positive scale and intervals of keys lies between Q K^T and softmax. */
bool attn_cuda_has_steps(const attn_problem *problem);

/* True if forward_sm90 leaves the scale to the exponents beside a mask tensor, as without one. */
bool attn_cuda_folds_scale(const attn_problem *problem);

/* The kind of forward_sm90's kernels for the problem: ATTN_CUDA_SCALED .. ATTN_CUDA_SLOPED. */
int32_t attn_cuda_scores_of(const attn_problem *problem);

/* True if forward_sm90 takes the problem as whole sequences, where it has a kernel for these. Not
 * where masks ask for another order of items or show fewer keys (shares_scores, shown_keys), nor
 * where a score step takes 2 to 7 % less time without (docs/notebook/cuda-scores.md). */
bool attn_cuda_suits_whole(const attn_problem *problem);

/* The steps as forward_sm90 takes them. */
attn_cuda_steps attn_cuda_steps_of(const attn_problem *problem);

/* Dropout as kernels take it. */
attn_cuda_dropout attn_cuda_dropout_of(const attn_dropout *dropout);

/* The reason for which forward_sm90 cannot do these steps, or NULL. */
const char *attn_cuda_steps_lack(const attn_problem *problem);

/* Tiles, operations and bytes of the plan; 0 if they depend on lengths or origins in the GPU's
 * memory. */
void attn_cuda_plan_costs(const attn_cuda_plan *plan, const attn_cuda *cuda,
                          const attn_problem *problem, attn_plan *out);

#endif
