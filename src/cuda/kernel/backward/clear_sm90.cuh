/*
 * clear_sm90.cuh: words of the workspace that launches count and note in are 0 at first: the launch
 * of LSE and delta clears them, since one for them alone takes longer.
 */
#pragma once
#include "cuda/backward/params.h"

/* All threads of all CTAs, THREADS in each. */
template <int THREADS = 256>
__device__ __forceinline__ void clear_words(const attn_cuda_backward_params &a)
{
    const int64_t threads = THREADS * (int64_t)gridDim.x;
    for (int64_t i = THREADS * (int64_t)blockIdx.x + threadIdx.x; i < a.clear_words; i += threads) {
        a.clear[i] = 0;
    }
}
