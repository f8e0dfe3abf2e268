/*
 * mask_generic.cu: a mask of bits or of integers as one of bytes, on any GPU from sm_80 on. A
 * thread 16 keys of a row.
 */
#include "cuda/mask/params.h"

enum { THREADS = 256 };

/* Bytes of 16 keys from `first` on; behind the last key 0. */
__device__ __forceinline__ uint4 read_piece(const attn_tensor &from, const char *row, int64_t first,
                                            int64_t columns)
{
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; word++) {
        words[word] = 0;
#pragma unroll
        for (int byte = 0; byte < 4; byte++) {
            const int64_t key = first + 4 * word + byte;
            const bool shown =
                key < columns && attn_mask_shows(row, from.stride[3], from.dtype, key);
            words[word] |= (uint32_t)shown << 8 * byte;
        }
    }
    return {words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ void write_bytes(const attn_cuda_mask_params &a)
{
    const attn_tensor &to = a.to;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * a.pieces;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / a.pieces, first = i % a.pieces * ATTN_CUDA_MASK_PIECE,
                      query = row % to.shape[2], head = row / to.shape[2] % to.shape[1],
                      batch = row / to.shape[2] / to.shape[1];
        const char *from = attn_at(&a.from, batch, head, query, 0);
        *(uint4 *)attn_at(&to, batch, head, query, first) =
            read_piece(a.from, from, first, to.shape[3]);
    }
}

#define ATTN_MASK(name)                                                     \
    extern "C" __global__ __launch_bounds__(THREADS) void attn_mask_##name( \
        const __grid_constant__ attn_cuda_mask_params a)                    \
    {                                                                       \
        write_##name(a);                                                    \
    }
#include "cuda/kernels.inc"
