/*
 * refused_serial.cu: a product of the tensor cores across a function's boundary, which the compiler
 * serialises (C7510); tools/cuda-image must refuse it. Never run.
 */
#include "cuda/kernel/mma/wgmma.cuh"

static __device__ __noinline__ void product(float (&d)[32], uint64_t a, uint64_t b)
{
    wgmma::Product<true, 64>::ss(d, a, b, 1);
}

extern "C" __global__ __launch_bounds__(128, 1) void serial(float *x, uint64_t a, uint64_t b)
{
    float d[32] = {};
    wgmma::fence();
    product(d, a, b);
    wgmma::commit();
    wgmma::wait<0>();
    for (int i = 0; i < 32; i++) {
        x[threadIdx.x * 32 + i] = d[i];
    }
}
