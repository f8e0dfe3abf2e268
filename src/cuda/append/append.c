/*
 * append.c: see append.h.
 */
#include "cuda/append/append.h"
#include "core/codes.h"
#include "core/error.h"
#include "cuda/append/params.h"

static attn_cuda_factors factors_of(const attn_codes *codes, const attn_tensor *cache)
{
    return (attn_cuda_factors){*codes->scale, *codes->shift,
                               !attn_codes_own_scales(codes->scale, cache)};
}

/* Launches a kernel: a CTA a row; they loop over more rows than the largest grid has. */
static attn_status launch(const attn_cuda *cuda, attn_cuda_append_params *params, int kind,
                          void *stream)
{
    enum { MOST = 1 << 20 };
    const uint32_t grid[3] = {(uint32_t)(params->rows < MOST ? params->rows : MOST), 1, 1};
    return attn_cuda_launch(cuda, attn_cuda_find(ATTN_CUDA_APPENDS, kind), grid, params, stream);
}

attn_status attn_cuda_append(const attn_cuda *cuda, const attn_problem *problem,
                             const attn_rotated *rotated, void *stream)
{
    attn_cuda_append_params params = {.problem = *problem, .rotated = *rotated};
    TRY(attn_count_rows("q", &problem->q, 2, &params.rows));
    params.k = factors_of(&problem->k_codes, &problem->k);
    params.v = factors_of(&problem->v_codes, &problem->v);
    if (params.rows > 0 && rotated->bytes > 0) {
        TRY(launch(cuda, &params, ATTN_CUDA_APPEND_ROTATE, stream));
    }
    const bool append =
        attn_tensor_present(&problem->k_new) || attn_tensor_present(&problem->v_new);
    return params.rows > 0 && append ? launch(cuda, &params, ATTN_CUDA_APPEND_STORE, stream)
                                     : ATTN_OK;
}
