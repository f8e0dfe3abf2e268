/*
 * refused_registers.cu: the consumers of a forward_sm90 kernel without wgmma::keep, so that the
 * registers of P are handed out while its products still read them; tools/cuda-image must refuse
 * it. Never run.
 */
#include "cuda/kernel/mma/wgmma.cuh"

#define keep(registers, never) fence()
#include "cuda/kernel/forward/clean_sm90.cuh"
#include "cuda/kernel/forward/consume_sm90.cuh"

using S = Shape<ATTN_BF16, 128, 2, 128, 232, true, ATTN_CUDA_WHOLE>;

extern "C" __global__
    __launch_bounds__(384, 1) void careless(const __grid_constant__ attn_cuda_forward_params a)
{
    extern __shared__ unsigned char shared[];
    const Memory<S> memory = {shared, ptx::shared_address(shared)};
    if (threadIdx.x < 128) {
        ptx::registers_lower<S::PRODUCER_REGISTERS>();
    } else {
        ptx::registers_raise<S::REGISTERS>();
        consume<S>(a, memory);
    }
}
