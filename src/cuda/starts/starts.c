/*
 * starts.c: see starts.h.
 */
#include "cuda/starts/starts.h"
#include "core/error.h"
#include "cuda/starts/params.h"

uint64_t attn_cuda_starts_bytes(const attn_problem *problem)
{
    return problem->varlen ? 2 * (uint64_t)(problem->batch + 1) * sizeof(int64_t) : 0;
}

attn_status attn_cuda_starts_order(const attn_cuda *cuda, attn_problem *problem, void *memory,
                                   void *stream)
{
    const int64_t count = problem->batch + 1;
    int64_t *const to = memory;
    attn_cuda_starts_params params = {.from = {problem->cu_q, problem->cu_k},
                                      .rows = {problem->q, problem->k},
                                      .to = {to, to + count},
                                      .count = count};
    const uint32_t grid[3] = {2, 1, 1};
    if (!problem->varlen) {
        return ATTN_OK;
    }
    problem->cu_q = attn_tensor_bshd(params.to[0], ATTN_I64, count, 1, 1, 1);
    problem->cu_k = attn_tensor_bshd(params.to[1], ATTN_I64, count, 1, 1, 1);
    return attn_cuda_launch(cuda, attn_cuda_find(ATTN_CUDA_STARTS, 0), grid, &params, stream);
}
