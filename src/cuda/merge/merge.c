/*
 * merge.c: attn_merge and its gradients on a GPU, host side: one launch on the caller's stream.
 */
#include "cuda/merge/merge.h"
#include "core/error.h"
#include "cuda/merge/params.h"

/* Finds the first kernel of a kind that takes so many parts. */
static int find(int64_t parts, int kind)
{
    int kernel = 0;
    while (attn_cuda_kernels[kernel].family != ATTN_CUDA_MERGES ||
           attn_cuda_kernels[kernel].loads != kind || attn_cuda_kernels[kernel].keys < parts) {
        kernel++;
    }
    return kernel;
}

/* Fills in rows and parts of a merge whose result has the rows of `like`. */
static attn_status describe(attn_cuda_merge_params *params, const attn_merge_args *args,
                            const attn_tensor *like)
{
    if (args->parts > ATTN_CUDA_MOST_PARTS) {
        return attn_fail(ATTN_ERR_UNSUPPORTED, "parts = %lld: a GPU merges at most %d at once",
                         (long long)args->parts, (int)ATTN_CUDA_MOST_PARTS);
    }
    if (__builtin_mul_overflow(like->shape[0] * like->shape[1], like->shape[2], &params->rows)) {
        return attn_fail(ATTN_ERR_OVERFLOW, "the rows of o do not fit in 64 bits");
    }
    params->parts = (int32_t)args->parts;
    params->wide = like->dtype == ATTN_F64;
    for (int32_t i = 0; i < params->parts; i++) {
        params->part[i] = (attn_cuda_merge_part){.o = args->part_o[i], .lse = args->part_lse[i]};
        params->wide |= args->part_o[i].dtype == ATTN_F64;
    }
    return ATTN_OK;
}

/* Launches a warp for each row; warps loop over rows beyond the largest grid. */
static attn_status launch(const attn_cuda *cuda, attn_cuda_merge_params *params, int kind,
                          void *stream)
{
    const int kernel = find(params->parts, kind);
    const int64_t each = attn_cuda_kernels[kernel].rows,
                  ctas = params->rows / each + (params->rows % each > 0);
    return attn_cuda_launch_loop(cuda, kernel, ctas, params, stream);
}

attn_status attn_cuda_merge(const void *device, const attn_merge_args *args)
{
    attn_cuda_merge_params params;
    TRY(describe(&params, args, &args->o));
    params.o = args->o, params.lse = args->lse;
    return launch(device, &params, ATTN_CUDA_MERGE_RESULTS, args->stream);
}

attn_status attn_cuda_round(const attn_cuda *cuda, const attn_tensor *to, const attn_tensor *from,
                            void *stream)
{
    const attn_tensor absent = {0};
    const attn_merge_args one = {.parts = 1, .part_o = from, .part_lse = &absent};
    attn_cuda_merge_params params;
    TRY(describe(&params, &one, to));
    params.o = *to, params.lse = absent;
    return launch(cuda, &params, ATTN_CUDA_MERGE_RESULTS, stream);
}

attn_status attn_cuda_merge_backward(const void *device, const attn_merge_backward_args *args)
{
    attn_cuda_merge_params params;
    TRY(describe(&params, args->forward, &args->d_o));
    params.o = args->d_o, params.lse = args->d_lse;
    for (int32_t i = 0; i < params.parts; i++) {
        params.part[i].d_o = args->part_d_o ? args->part_d_o[i] : (attn_tensor){0};
        params.part[i].d_lse = args->part_d_lse ? args->part_d_lse[i] : (attn_tensor){0};
    }
    return launch(device, &params, ATTN_CUDA_MERGE_GRADIENTS, args->stream);
}
