/*
 * tables_sm90.cuh: a mask and a bias of 16 bits in a tile of the backward pass. A warp has 16 keys
 * of ROWS rows and copies its elements to shared memory a tile ahead, 16 bytes at a time:
 *
 *     bias    [ROWS][16 keys]. Read as transposed matrices: a lane has its elements then
 *     mask    [ROWS][16 keys], bytes, which become part of the bias: behind it, or without a bias
 *             in the second half of its place
 *
 * The address of 16 bytes of a row of the bias turns with the row, so that no two of a matrix share
 * a bank.
 */
#pragma once
#include "cuda/backward/params.h"
#include "cuda/kernel/backward/items.cuh"
#include "cuda/kernel/ptx/tensor.cuh"
#include "cuda/kernel/rows/flags.cuh"

/* How kernels read masks and biases: element by element, by tables, or as the problem has it. */
enum TileReads { READ_GATHERED = 1, READ_COPIED = 2, READ_EITHER = 3 };

/* Copies ROWS rows from `row` on of a tensor, and the last row for those behind it: WIDTH bytes
 * each, from `from` on in row 0, of which `there` exist. All lanes of the warp. */
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
        if (r < ROWS) {
            ptx::copy_async_16(to + r * WIDTH + turned * 16,
                               from + (bytes > 0 ? min(row + r, last_row) : 0) * row_step, bytes);
        }
    }
}

/* Loads elements 8 j .. 8 j + 7 of a thread (ScoreTile) of a bias, packed. All lanes. */
__device__ __forceinline__ void load_bias(uint32_t (&x)[4], uint32_t bias, int j)
{
    const int lane = ptx::thread() % 32, row = lane / 16 * 8 + lane % 8,
              turned = lane / 8 % 2 ^ row / 4 % 2;
    mma::load_4<true>(x, bias + row * 32 + turned * 16 + j * 16 * 32);
}

/* Puts minus infinity (never) in place of the elements of two that a mask hides. at: the byte of
 * flags for the first of them; the next byte is for the second. */
__device__ __forceinline__ uint32_t hide_two(uint32_t bias, uint32_t flags, int at, uint32_t never)
{
    const uint32_t visible = ptx::permute(flags, 0, at == 0 ? 0x9988 : 0xbbaa);
    return (bias & visible) | (never & ~visible);
}

/* Makes a mask part of the bias, minus infinity where it hides; without a bias 0 elsewhere. never:
 * minus infinity twice, in the 16 bits of the bias's type. repeats: the mask's last row is that of
 * all. Each lane has rows of its own. */
template <int ROWS>
__device__ __forceinline__ void hide_masked(uint32_t bias, uint32_t mask, bool repeats, bool biased,
                                            uint32_t never)
{
    const int lane = ptx::thread() % 32;
#pragma unroll 1
    for (int r = lane; r < ROWS; r += 32) {
        const uint4 x = ptx::load_shared_16(mask + (repeats ? ROWS - 1 : r) * 16);
        __syncwarp();
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

/* Where read_bits has element e of 32. */
__device__ __forceinline__ constexpr int bit_of(int e)
{
    return e % 4 * 8 + e / 4;
}

/* Reads a bit for each of a thread's elements (ScoreTile) in 64 rows of a mask: 1 where it shows.
 * A transposed matrix of 8 rows gives a lane bytes of two neighbouring keys and two rows; eight of
 * them side by side in the bits of bytes are a word, and two lanes have what a lane needs. at: the
 * lane's row of the first 32, its 16 keys; further: bytes to that of the next 32. All lanes. */
__device__ __forceinline__ uint32_t read_bits(uint32_t at, uint32_t further)
{
    const int lane = ptx::thread() % 32, from = lane / 8 * 4 + lane % 4;
    uint32_t x[2][4], word = 0;
    mma::load_4<true>(x[0], at);
    mma::load_4<true>(x[1], at + further);
    const uint32_t any =
        (x[0][0] | x[0][1] | x[0][2] | x[0][3]) | (x[1][0] | x[1][1] | x[1][2] | x[1][3]);
    if (__any_sync(~0u, any & ~0x01010101)) { /* rare: most masks are of 0 and 1 */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i / 4][i % 4] = byte_flags(x[i / 4][i % 4]) >> 7;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        word += x[i / 4][i % 4] << i;
    }
    const uint32_t low = __shfl_sync(~0u, word, from), high = __shfl_sync(~0u, word, from + 16);
    return ptx::permute(low, high, lane & 4 ? 0x7531 : 0x6420);
}

/* Makes exponents of 32 rows, or 64, that a mask hides minus infinity; bits: of 64 rows, of which
 * the first 32 are behind each other in each byte. A byte's bits come one after the other: one
 * instruction makes predicates of seven. All lanes. */
template <int ROWS> __device__ __forceinline__ void hide_exponents(float *s, uint32_t bits)
{
    constexpr int EACH = ROWS / 8; /* bits of a byte */
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        const int e = i % EACH * 4 + i / EACH;
        s[e] = bits >> bit_of(e) & 1 ? s[e] : -INFINITY;
    }
}

/* Adds a bias of eight elements, packed, to exponents. */
template <bool BF16> __device__ __forceinline__ void add_bias(float *s, const uint32_t (&x)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 b = ptx::unpack_half<BF16>(x[i]);
        s[2 * i] = fmaf(b.x, 1.4426950408889634f, s[2 * i]);
        s[2 * i + 1] = fmaf(b.y, 1.4426950408889634f, s[2 * i + 1]);
    }
}

/* Adds ALiBi to exponents of rows FROM .. FROM + ROWS - 1 of a tile. distance: of element 0, its
 * position minus that of its key. */
template <int FROM, int ROWS, int N>
__device__ __forceinline__ void add_slope(float (&s)[N], float slope, float distance)
{
#pragma unroll
    for (int e = FROM / 2; e < (FROM + ROWS) / 2; e++) {
        const float far = distance + (float)(e / 4 * 8 + e % 2 - e / 2 % 2 * 8);
        s[e] = fmaf(slope, fabsf(far), s[e]);
    }
}

/* A thread's part of a tile: element e is of key + 8 (e / 2 % 2) and of row + 8 (e / 4) + e % 2. */
struct ScoreTile {
    const attn_cuda_backward_params &a;
    const attn_sequence &sequence;
    int head, key, row; /* of element 0 */
    uint32_t tables;    /* in shared memory: the warp's (GradMemory) */

    __device__ __forceinline__ int key_of(int e) const
    {
        return key + e / 2 % 2 * 8;
    }
    __device__ __forceinline__ int row_of(int e) const
    {
        return row + e / 4 * 8 + e % 2;
    }
    /* Element (row, key) of a mask or bias. Indices are clamped: lengths may lie in the GPU's
     * memory. */
    __device__ __forceinline__ const char *at(const attn_tensor &t, const char *first,
                                              int64_t row_step, int64_t key_step, int e) const
    {
        return first + min((int64_t)row_of(e), t.shape[2] - 1) * row_step +
               min((int64_t)key_of(e), t.shape[3] - 1) * key_step;
    }
    __device__ __forceinline__ const char *first_of(const attn_tensor &t) const
    {
        return t.data == NULL ? NULL : attn_at_broadcast(&t, sequence.index, head, 0, 0);
    }

    /* Whether there is a table, of a bias or of a mask, and whether its elements are bf16. */
    __device__ __forceinline__ bool has_table() const
    {
        return a.steps.bias == ATTN_CUDA_COPIED_2 || a.steps.mask_copied;
    }
    __device__ __forceinline__ bool has_wide_table() const
    {
        return a.steps.bias != ATTN_CUDA_COPIED_2 || a.grads.problem.bias.dtype == ATTN_BF16;
    }
    /* Where the warp's bias and mask lie in shared memory, if they are copied. */
    __device__ __forceinline__ uint32_t bias_table() const
    {
        return tables;
    }
    template <int ROWS> __device__ __forceinline__ uint32_t mask_table() const
    {
        return tables + 16 * ROWS * (a.steps.bias == ATTN_CUDA_COPIED_2 ? 2 : 1);
    }

    /* Copies the warp's bias and mask of the tile of ROWS rows to shared memory, or asks for them
     * where their elements are read one by one. All lanes, which have read those of the tile
     * before. */
    template <int ROWS, TileReads READS> __device__ __forceinline__ void fetch() const
    {
        const attn_problem &p = a.grads.problem;
        constexpr bool COPIES = (READS & READ_COPIED) != 0, ALL = READS == READ_COPIED;
        if constexpr (COPIES) {
            __syncwarp();
        }
        if (COPIES && a.steps.bias == ATTN_CUDA_COPIED_2) {
            copy_rows<ROWS, 32>(bias_table(), p.bias, a.steps.bias_row);
        } else if (!ALL && p.bias.data != NULL) {
            prefetch_rows(p.bias, a.steps.bias_row, a.steps.bias_step);
        }
        if (COPIES && a.steps.mask_copied && a.steps.mask_row == 0) {
            copy_rows<1, 16>(mask_table<ROWS>() + (ROWS - 1) * 16, p.mask, 0);
        } else if (COPIES && a.steps.mask_copied) {
            copy_rows<ROWS, 16>(mask_table<ROWS>(), p.mask, a.steps.mask_row);
        } else if (!ALL && p.mask.data != NULL) {
            prefetch_rows(p.mask, a.steps.mask_row, a.steps.mask_step);
        }
        if constexpr (COPIES) {
            ptx::copy_async_commit();
        }
    }
    /* The warp's 16 keys, WIDTH bytes. */
    template <int ROWS, int WIDTH>
    __device__ __forceinline__ void copy_rows(uint32_t to, const attn_tensor &t,
                                              int64_t row_step) const
    {
        const int lane = ptx::thread() % 32, first_key = key - lane / 4;
        const int64_t left = max(t.shape[3] - first_key, (int64_t)0);
        copy_table<ROWS, WIDTH>(to, first_of(t) + (left > 0 ? first_key : 0) * (WIDTH / 16),
                                row_step, left * (WIDTH / 16), row - lane % 4 * 2, t.shape[2] - 1);
    }
    /* Waits for copies. All lanes. */
    static __device__ __forceinline__ void await_copies()
    {
        ptx::copy_async_wait<0>();
        __syncwarp();
    }
    /* The same, and makes the mask part of the bias. wide: elements of the table are bf16. */
    template <int ROWS> __device__ __forceinline__ void await_tables(bool wide) const
    {
        await_copies();
        if (a.steps.mask_copied) {
            const bool biased = a.steps.bias == ATTN_CUDA_COPIED_2;
            hide_masked<ROWS>(bias_table(), mask_table<ROWS>(), a.steps.mask_row == 0, biased,
                              wide ? 0xff80ff80 : 0xfc00fc00);
            __syncwarp();
        }
    }
    /* Each lane asks for the warp's 16 keys of two rows, which lie in one line, or two. */
    __device__ __forceinline__ void prefetch_rows(const attn_tensor &t, int64_t row_step,
                                                  int64_t key_step) const
    {
        const int lane = ptx::thread() % 32;
        const char *const first = first_of(t);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = row - lane % 4 * 2 + lane + i / 2 * 32, k = key - lane / 4 + i % 2 * 15;
            ptx::prefetch(first + min((int64_t)r, t.shape[2] - 1) * row_step +
                          min((int64_t)k, t.shape[3] - 1) * key_step);
        }
    }
};
