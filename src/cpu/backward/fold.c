/*
 * fold.c: see fold.h.
 */
#include "cpu/backward/fold.h"
#include "core/half.h"

enum { MOST_CHUNKS = 8 };

static int64_t distance(const attn_tensor *tensor, int axis)
{
    return tensor->stride[axis] < 0 ? -tensor->stride[axis] : tensor->stride[axis];
}

/* The axis of more than one index with the largest stride among those of a set, or -1. */
static int widest_axis(const attn_tensor *tensor, int set)
{
    int widest = -1;
    for (int a = 0; a < 4; a++) {
        if ((set >> a & 1) && tensor->shape[a] > 1 &&
            (widest < 0 || distance(tensor, a) > distance(tensor, widest))) {
            widest = a;
        }
    }
    return widest;
}

/* Elements from the lowest to the highest along a set of axes. */
static int64_t span_of(const attn_tensor *tensor, int set)
{
    int64_t span = 1;
    for (int a = 0; a < 4; a++) {
        span += set >> a & 1 ? (tensor->shape[a] - 1) * distance(tensor, a) : 0;
    }
    return span;
}

/* All axes without batch or head, or both, where a step leads out of the memory of all narrower
 * axes. */
static int without_wide_axes(const attn_tensor *tensor)
{
    int set = 15, axis = widest_axis(tensor, set);
    while ((axis == 0 || axis == 1) &&
           distance(tensor, axis) >= span_of(tensor, set & ~(1 << axis))) {
        set &= ~(1 << axis);
        axis = widest_axis(tensor, set);
    }
    return set;
}

/* The greatest common divisor of the steps along a set of axes; 0 without steps. */
static int64_t common_step(const attn_tensor *tensor, int set)
{
    int64_t common = 0;
    for (int a = 0; a < 4; a++) {
        int64_t other = (set >> a & 1) && tensor->shape[a] > 1 ? distance(tensor, a) : 0;
        while (other != 0) {
            const int64_t rest = common % other;
            common = other, other = rest;
        }
    }
    return common;
}

/* The set without batch or head where all their steps together are less than one of any other
 * axis: their memory interleaves. */
static int without_narrow_axes(const attn_tensor *tensor, int set)
{
    for (int a = 0; a < 2; a++) {
        const int rest = set & ~(1 << a);
        if ((set >> a & 1) && tensor->shape[a] > 1 &&
            (tensor->shape[a] - 1) * distance(tensor, a) < common_step(tensor, rest)) {
            set = rest;
        }
    }
    return set;
}

attn_fold attn_fold_plan(const attn_tensor *tensor, int64_t blocks, int64_t linear)
{
    const int set = without_narrow_axes(tensor, without_wide_axes(tensor));
    const int64_t common = common_step(tensor, set);
    attn_fold fold = {.chunks = blocks < MOST_CHUNKS ? blocks : MOST_CHUNKS, .span = 1};
    for (int a = 0; a < 4; a++) {
        fold.step[a] = (set >> a & 1) && tensor->shape[a] > 1 ? tensor->stride[a] / common : 0;
        const int64_t reach = (tensor->shape[a] - 1) * fold.step[a];
        fold.span += reach < 0 ? -reach : reach;
        fold.first -= reach < 0 ? reach : 0;
    }
    for (int a = 0; a < 2; a++) {
        fold.owners[a] = set >> a & 1 ? 1 : tensor->shape[a];
    }
    if (fold.span > linear || fold.chunks < 1) {
        fold.chunks = 1;
    }
    return fold;
}

attn_fold_part attn_fold_owner(const attn_fold *fold, const attn_tensor *tensor, int64_t owner)
{
    const int64_t b = owner / fold->owners[1], h = owner % fold->owners[1];
    return (attn_fold_part){b, fold->owners[0] > 1 ? b + 1 : tensor->shape[0], h,
                            fold->owners[1] > 1 ? h + 1 : tensor->shape[1]};
}

void attn_fold_store(const attn_fold *fold, const attn_tensor *tensor, char *workspace,
                     int64_t owner)
{
    double *const sums = attn_fold_sums(fold, workspace, owner, 0);
    const attn_fold_part part = attn_fold_owner(fold, tensor, owner);
    for (int64_t chunk = 1; chunk < fold->chunks; chunk++) {
        const double *more = attn_fold_sums(fold, workspace, owner, chunk);
        for (int64_t i = 0; i < fold->span; i++) {
            sums[i] += more[i];
        }
    }
    for (int64_t b = part.b; b < part.b_end; b++) {
        for (int64_t h = part.h; h < part.h_end; h++) {
            for (int64_t i = 0; i < tensor->shape[2]; i++) {
                for (int64_t j = 0; j < tensor->shape[3]; j++) {
                    attn_element_from_f64(attn_at(tensor, b, h, i, j), tensor->dtype,
                                          sums[attn_fold_at(fold, b, h, i, j)]);
                }
            }
        }
    }
}
