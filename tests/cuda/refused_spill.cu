/*
 * refused_spill.cu: a kernel whose registers spill; tools/cuda-image must refuse it. Never run.
 */
extern "C" __global__ __launch_bounds__(1024, 2) void spills(float *x)
{
    float y[64];
#pragma unroll
    for (int i = 0; i < 64; i++) {
        y[i] = x[threadIdx.x + 1024 * i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; i++) {
        x[threadIdx.x * 64 + i] = y[i] * y[63 - i];
    }
}
