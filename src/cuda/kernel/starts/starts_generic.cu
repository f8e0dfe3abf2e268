/*
 * starts_generic.cu: starts of sequences that do not decrease, nor go beyond the rows, on any GPU
 * from sm_80 on. A CTA for those of Q, one for those of K; a thread has one of each 256 in turn.
 */
#include "cuda/starts/params.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* The largest of a warp's numbers up to each lane's. */
__device__ __forceinline__ int64_t largest_so_far(int64_t x)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int64_t before = __shfl_sync(~0u, x, lane < step ? lane : lane - step);
        x = before > x ? before : x;
    }
    return x;
}

__device__ __forceinline__ void write_order(const attn_cuda_starts_params &a)
{
    __shared__ int64_t ends[WARPS];
    const int side = blockIdx.x, warp = threadIdx.x / 32;
    int64_t most = 0; /* of the numbers before */
    for (int64_t first = 0; first < a.count; first += THREADS) {
        const int64_t i = first + threadIdx.x;
        int64_t x = i < a.count ? attn_first_row(&a.from[side], &a.rows[side], i) : 0;
        x = largest_so_far(x > most ? x : most);
        if (threadIdx.x % 32 == 31) {
            ends[warp] = x;
        }
        __syncthreads();
        for (int n = 0; n < WARPS; n++) {
            x = n < warp && ends[n] > x ? ends[n] : x;
            most = ends[n] > most ? ends[n] : most;
        }
        __syncthreads();
        if (i < a.count) {
            a.to[side][i] = x;
        }
    }
}

#define ATTN_STARTS(name)                                                     \
    extern "C" __global__ __launch_bounds__(THREADS) void attn_starts_##name( \
        const __grid_constant__ attn_cuda_starts_params a)                    \
    {                                                                         \
        write_##name(a);                                                      \
    }
#include "cuda/kernels.inc"
