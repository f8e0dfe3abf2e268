/*
 * tables_sm90.cuh: a mask and a bias of 16 bits in a tile of the backward pass. A warp has 16 keys
 * of ROWS rows and copies its elements to shared memory a tile ahead, 16 bytes at a time:
 *
 *     bias    [ROWS][16 keys]. Read as transposed matrices: a lane has its elements then
 *     mask    [ROWS][16 keys], bytes, which become part of the bias
 *
 * The address of 16 bytes of a row of the bias turns with the row, so that no two of a matrix share
 * a bank.
 */
#pragma once
#include "cuda/kernel/ptx/tensor.cuh"
#include "cuda/kernel/rows/flags.cuh"

/* Copies rows r0, r0 + 1, .. of `from`, WIDTH bytes each, of which `there` exist. rows: the number
 * of the last row. All lanes of the warp. */
template <int ROWS, int WIDTH>
__device__ __forceinline__ void copy_table(uint32_t to, const char *from, int64_t row_step,
                                           int64_t there, int64_t row, int64_t last_row)
{
    constexpr int PIECES = WIDTH / 16;
    const int lane = ptx::thread() % 32, piece = lane % PIECES, first = lane / PIECES;
    const int bytes = (int)min(max(there - piece * 16, (int64_t)0), (int64_t)16);
    from += bytes > 0 ? piece * 16 : 0;
#pragma unroll
    for (int i = 0; i < ROWS; i += 32 / PIECES) {
        const int r = first + i, turned = PIECES > 1 ? piece ^ r / 4 % 2 : piece;
        ptx::copy_async_16(to + r * WIDTH + turned * 16,
                           from + (bytes > 0 ? min(row + r, last_row) : 0) * row_step, bytes);
    }
}

/* Elements 8 j .. 8 j + 7 of a thread (steps_sm90.cuh) of a bias, packed. All lanes. */
__device__ __forceinline__ void load_bias(uint32_t (&x)[4], uint32_t bias, int j)
{
    const int lane = ptx::thread() % 32, row = lane / 16 * 8 + lane % 8,
              turned = lane / 8 % 2 ^ row / 4 % 2;
    mma::load_4<true>(x, bias + row * 32 + turned * 16 + j * 16 * 32);
}

/* Makes a bias of two elements, or hides those of them that a mask's flags do not have: byte `at`
 * is that of the first. */
__device__ __forceinline__ uint32_t hide_two(uint32_t bias, uint32_t flags, int at, uint32_t never)
{
    const uint32_t visible = ptx::permute(flags, 0, at == 0 ? 0x9988 : 0xbbaa);
    return (bias & visible) | (never & ~visible);
}

/* Puts a mask into the table of the bias, which is 0 if there is none: minus infinity. never: that
 * twice, as 16 bits of the bias's type. Each lane has rows of its own. */
template <int ROWS>
__device__ __forceinline__ void hide_masked(uint32_t bias, uint32_t mask, bool biased,
                                            uint32_t never)
{
    const int lane = ptx::thread() % 32;
#pragma unroll 1
    for (int r = lane; r < ROWS; r += 32) {
        const uint4 x = ptx::load_shared_16(mask + r * 16);
        const uint32_t flags[4] = {byte_flags(x.x), byte_flags(x.y), byte_flags(x.z),
                                   byte_flags(x.w)};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t at = bias + r * 32 + (i ^ r / 4 % 2) * 16;
            uint4 b = {};
            if (biased) {
                b = ptx::load_shared_16(at);
            }
            ptx::store_shared_16(at, {hide_two(b.x, flags[2 * i], 0, never),
                                      hide_two(b.y, flags[2 * i], 2, never),
                                      hide_two(b.z, flags[2 * i + 1], 0, never),
                                      hide_two(b.w, flags[2 * i + 1], 2, never)});
        }
    }
}
