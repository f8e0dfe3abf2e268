/*
 * mask_generic.cu: a mask of bits or of integers as one of bytes, one of bytes as bits by lane, and
 * rows of a bias at multiples of 16 bytes, on any GPU from sm_80 on.
 */
#include "cuda/kernel/rows/flags.cuh"
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

/* Writes rows, a piece of `each` elements a thread. read(row, first): 16 bytes of one from element
 * `first` on. */
template <class Read>
__device__ __forceinline__ void write_pieces(const attn_cuda_mask_params &a, int each,
                                             const Read &read)
{
    const attn_tensor &to = a.to;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * a.pieces;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / a.pieces, first = i % a.pieces * each, query = row % to.shape[2],
                      head = row / to.shape[2] % to.shape[1],
                      batch = row / to.shape[2] / to.shape[1];
        *(uint4 *)attn_at(&to, batch, head, query, first) =
            read(attn_at(&a.from, batch, head, query, 0), first);
    }
}

__device__ __forceinline__ void write_bytes(const attn_cuda_mask_params &a)
{
    write_pieces(a, ATTN_CUDA_MASK_PIECE, [&](const char *row, int64_t first) {
        return read_piece(a.from, row, first, a.to.shape[3]);
    });
}

/* 16 bytes of elements of a row from `first` on, `step` bytes apart; behind the last one 0. */
template <class Element>
__device__ __forceinline__ uint4 read_elements(const char *row, int64_t step, int64_t first,
                                               int64_t columns)
{
    constexpr int EACH = 16 / sizeof(Element), PER_WORD = 4 / sizeof(Element);
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t column = first + i;
        const uint32_t x = column < columns ? *(const Element *)(row + column * step) : 0;
        words[i / PER_WORD] |= x << i % PER_WORD * 16;
    }
    return {words[0], words[1], words[2], words[3]};
}

/* Rows of elements of 2 or 4 bytes. */
__device__ __forceinline__ void write_rows(const attn_cuda_mask_params &a)
{
    const int64_t columns = a.to.shape[3];
    if (a.from.dtype == ATTN_F32) {
        const int64_t step = a.from.stride[3] * 4;
        write_pieces(a, 4, [&](const char *row, int64_t first) {
            return read_elements<uint32_t>(row, step, first, columns);
        });
    } else {
        const int64_t step = a.from.stride[3] * 2;
        write_pieces(a, 8, [&](const char *row, int64_t first) {
            return read_elements<uint16_t>(row, step, first, columns);
        });
    }
}

/* 16 bytes of a row from `first` on; behind the last key 0. */
__device__ __forceinline__ uint4 bytes_of(const char *row, int64_t first, int64_t columns)
{
    if (first + ATTN_CUDA_MASK_PIECE <= columns) {
        return *(const uint4 *)(row + first);
    }
    uint32_t words[4] = {};
#pragma unroll 1
    for (int i = 0; first + i < columns; i++) {
        words[i / 4] |= (uint32_t)(row[first + i] != 0) << i % 4 * 8;
    }
    return {words[0], words[1], words[2], words[3]};
}

/* Each lane's bits (attn_cuda_lanes) of a mask of bytes, by a warp for 16 rows and 128 keys. */
__device__ __forceinline__ void write_lanes(const attn_cuda_mask_params &a)
{
    const attn_tensor &from = a.from, &to = a.to;
    const int lane = threadIdx.x % 32;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32; i < a.rows * a.pieces;
         i += (int64_t)gridDim.x * (THREADS / 32)) {
        const int64_t blocks = to.shape[2] / ATTN_CUDA_LANES_ROWS, block = i / a.pieces,
                      query = block % blocks * ATTN_CUDA_LANES_ROWS,
                      head = block / blocks % to.shape[1], batch = block / blocks / to.shape[1],
                      key = i % a.pieces * ATTN_CUDA_LANES_KEYS;
        uint4 x[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int64_t at = query + lane / 4 + n / 2 * 8, row = min(at, from.shape[2] - 1);
            x[n] = bytes_of(attn_at(&from, batch, head, row, 0), key + lane % 4 * 32 + n % 2 * 16,
                            from.shape[3]);
        }
        *(uint2 *)(attn_at(&to, batch, head, query, key * 2) + lane * 8) = quad_bits(x);
    }
}

#define ATTN_MASK(name, kind)                                               \
    extern "C" __global__ __launch_bounds__(THREADS) void attn_mask_##name( \
        const __grid_constant__ attn_cuda_mask_params a)                    \
    {                                                                       \
        write_##name(a);                                                    \
    }
#include "cuda/kernels.inc"
