/*
 * mask_sm90.cuh: a mask tensor in forward_sm90's score steps (steps_sm90.cuh): of a block of keys a
 * bit for each of the thread's scores.
 *
 *     one row for all    each lane reads a key in 32, and the warp votes
 *     rows that differ   each lane of a quad reads its quarter of the keys for the quad's two rows,
 *                        from shared memory, where the block's bytes were copied (cp.async) a block
 *                        ahead; where a bias has that room, or copies cannot be, from the tensor
 *     .. for many heads  a launch before made the bits of each lane (masked_sm90.cuh)
 *
 * Blocks of 128 keys are for copied rows, or one row for all.
 */
#pragma once
#include "cuda/kernel/forward/shape_sm90.cuh"
#include "cuda/kernel/ptx/tma.cuh"
#include "cuda/kernel/rows/flags.cuh"
#include "cuda/kernel/rows/rows.cuh"
#include <type_traits>

/* Makes bits of KEYS elements (8, 16) of a mask. */
template <int KEYS> __device__ __forceinline__ uint32_t word_bits(const uint4 &x)
{
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    uint32_t bits = 0;
#pragma unroll
    for (int w = 0; w < KEYS / 4; w++) { /* flags side by side */
        bits |= byte_flags(words[w]) * 0x204081 >> 28 << 4 * w;
    }
    return bits;
}

/* Reads KEYS elements of a mask from `row` on; those from `there` on are 0. */
template <int KEYS>
__device__ __forceinline__ uint32_t mask_bits(const attn_cuda_steps &x, const char *row, int there)
{
    uint32_t bits = 0;
    if (x.mask_copied && there >= KEYS) {
        const uint2 low = *(const uint2 *)row,
                    high = KEYS > 8 ? *(const uint2 *)(row + KEYS / 2) : low;
        bits = word_bits<KEYS>(make_uint4(low.x, low.y, high.x, high.y));
    } else {
#pragma unroll 1
        for (int i = 0; i < min(there, KEYS); i++) {
            bits |= (uint32_t)(row[i * x.mask_step] != 0) << i;
        }
    }
    return bits;
}

/* The lane's number, computed where it is used. */
template <class Number> __device__ __forceinline__ Number lane_number()
{
    if constexpr (std::is_unsigned_v<Number>) {
        return (uint32_t)ptx::opaque(threadIdx.x) % 32;
    } else {
        return ptx::opaque(threadIdx.x % 32);
    }
}

/* Bits of a row's number that turn the places of its pieces of 16 bytes: of rows of 64 bytes
 * masks are read by pieces, of 128 bytes too, of 256 bytes a bias by matrices of 8 rows. */
template <int ROW> constexpr int ROW_TURN = ROW == 64 ? 0 : ROW == 128 ? 1 : 7;

/* The place of 16 bytes of a row of ROW bytes in shared memory: lanes that read together share no
 * bank. */
template <int ROW> __device__ __forceinline__ uint32_t row_place(int row, int piece)
{
    return row * ROW + (piece ^ (row & ROW_TURN<ROW>)) * 16;
}

/* Copies a warp's 16 rows of a block of a tensor of scores to shared memory, ROW bytes each, from
 * byte `at` of rows of `width` bytes on; beyond them 0. origin: of row 0; rows: after that one.
 * Number: as MaskSteps has it. */
template <int ROW, class Number = int>
__device__ __forceinline__ void copy_rows(uint32_t to, const char *origin, int64_t at,
                                          int64_t width, int64_t row_bytes, int rows)
{
    constexpr int PIECES = ROW / 16, STEP = 32 / PIECES, TURN = ROW_TURN<ROW>;
    const Number lane = lane_number<Number>(), piece = lane % PIECES, first = lane / PIECES;
    to += row_place<ROW>(first, piece), at += piece * 16;
    if (rows >= 15 && width - at >= ROW - piece * 16 && row_bytes != 0) { /* all are there */
        const char *from = origin + first * row_bytes + at;
#pragma unroll
        for (int i = 0; i < 16; i += STEP, from += STEP * row_bytes) {
            ptx::copy_async_16((to ^ (i & TURN) * 16) + i * ROW, from);
        }
        return;
    }
    const int inside = (int)min(max(width - at, (int64_t)0), (int64_t)16);
#pragma unroll 1
    for (int i = 0; i < (row_bytes == 0 ? 1 : 16); i += STEP) { /* one row: any lane's */
        const char *from = origin + min(first + i, rows) * row_bytes + at;
        ptx::copy_async_16((to ^ (i & TURN) * 16) + i * ROW, inside > 0 ? from : origin, inside);
    }
}

template <class S> struct MaskSteps {
    static constexpr int KEYS = S::BN / 4; /* keys in a quarter of a block */
    /* Numbers of lanes and keys. Without a sign they take fewer instructions to divide. */
    using Number = std::conditional_t<S::MASKED, uint32_t, int>;
    const Memory<S> &memory;
    uint32_t visible[2]; /* bits of its keys in the block: by the mask tensor, then by all rules */

    __device__ __forceinline__ explicit MaskSteps(const Memory<S> &memory_) : memory(memory_)
    {
    }
    __device__ __forceinline__ const StepsNote &note() const
    {
        return memory.note(threadIdx.x / 32 - 4);
    }
    /* The warp's room for a block's bias, and for the mask of the block that begins at `key`. */
    __device__ __forceinline__ uint32_t tile() const
    {
        return memory.o(threadIdx.x / 32 - 4);
    }
    __device__ __forceinline__ uint32_t tile(int key) const
    {
        return tile() + (Number)key / S::BN % 2 * (16 * S::BN);
    }
    /* The address of the warp's row 0 in a tensor of scores; *rows: rows from there on. Clamped,
     * since extents are not checked against lengths on a GPU. */
    static __device__ __forceinline__ const char *first(const attn_tensor &t, const Item &item,
                                                        int row, int *rows)
    {
        const int last = (int)t.shape[2] - 1, at = min(row, last);
        *rows = last - at;
        return attn_at_broadcast(&t, item.sequence.index, item.head, at, 0);
    }
    /* True if the mask is copied to shared memory. */
    static __device__ __forceinline__ bool copies_mask(const attn_cuda_steps &x)
    {
        return S::SCORES == ATTN_CUDA_MASKED ? x.mask_row != 0
                                             : S::BIAS && S::BN == 64 && x.mask_copied &&
                                                   x.mask_row != 0 && x.bias == ATTN_CUDA_NONE;
    }
    /* Waits until the warp's room is free, from which O of the last item is still read: each lane
     * for the rows that it sent. */
    __device__ __forceinline__ void begin_room(const attn_cuda_forward_params &a) const
    {
        if (S::STAGED && a.steps_sm90.masks) {
            tma::wait_stores_read();
        }
        __syncwarp();
    }
    /* Called before the first block, which begins at `key`. */
    __device__ __forceinline__ void begin_copies(const attn_cuda_forward_params &a, int key)
    {
        if (copies_mask(a.steps_sm90)) {
            copy_mask(a, key);
            ptx::copy_async_commit();
        }
    }

    /* Copies the mask's bytes of 16 rows; 0 beyond its columns. */
    __device__ __forceinline__ void copy_mask(const attn_cuda_forward_params &a, int key)
    {
        const StepsNote &x = note();
        if (S::SCORES == ATTN_CUDA_MASKED && key <= x.whole) { /* no question is left */
            static_assert(S::SCORES != ATTN_CUDA_MASKED || S::BN == 128, "8 lanes for a row");
            const uint32_t lane = lane_number<uint32_t>(), row = (uint32_t)a.steps_sm90.mask_row;
            const uint32_t to = tile(key) + row_place<S::BN>(lane / 8, lane % 8);
            const char *from = x.mask + (lane / 8 * row + lane % 8 * 16 + key);
#pragma unroll
            for (int i = 0; i < 16; i += 4, from += 4 * row) {
                ptx::copy_async_16(to + i * S::BN, from);
            }
            return;
        }
        copy_rows<S::BN, Number>(tile(key), x.mask, key, a.problem.mask.shape[3],
                                 a.steps_sm90.mask_row, x.mask_rows);
    }

    /* Reads the bits of a mask with one row for all: each lane reads a key in 32. */
    __device__ __forceinline__ void vote_mask(const attn_cuda_forward_params &a, int key)
    {
        const Number lane = lane_number<Number>();
        if (S::BN == 128 && a.steps_sm90.mask_copied && a.problem.mask.shape[3] - key >= S::BN) {
            vote_words(*(const uint32_t *)(note().mask + key + 4 * lane));
            return;
        }
        const int rest = (int)(a.problem.mask.shape[3] - key) - lane;
        const bool whole = a.problem.mask.shape[3] == 1;
        const char *at = note().mask + (key + lane) * a.steps_sm90.mask_step;
        visible[0] = 0;
#pragma unroll(S::BN == 128 ? 1 : S::BN / 32)
        for (int i = 0; i < S::BN / 32; i++) {
            const bool sees = (whole || 32 * i < rest) && at[32 * i * a.steps_sm90.mask_step] != 0;
            const uint32_t word = __ballot_sync(~0u, sees) >> 2 * (lane % 4);
            visible[0] |= ((word & 0x03030303) * 0x01041040 >> 24) << 8 * i;
        }
        visible[1] = visible[0];
    }
    /* The same of a block of 128 keys, four of them in each lane's word. */
    __device__ __forceinline__ void vote_words(uint32_t four)
    {
        const Number lane = lane_number<Number>();
        uint32_t votes[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            votes[i] = __ballot_sync(~0u, (four & 255 << 8 * i) != 0);
        }
        const bool second = lane & 1; /* keys 4 i + {2, 3} are those of odd lanes */
        const uint32_t even = (second ? votes[2] : votes[0]) >> lane % 4 / 2 & 0x55555555,
                       odd = (second ? votes[3] : votes[1]) >> lane % 4 / 2 & 0x55555555;
        visible[0] = visible[1] = even | odd << 1;
    }

    /* Exchanges bits within a quad: each lane has a quarter of the keys, row 0 in the low half of
     * `quarter` and row 1 in the high half, and gets those of its own columns. */
    __device__ __forceinline__ void share_bits(uint32_t quarter)
    {
        const int lane = ptx::opaque(threadIdx.x % 32);
        visible[0] = visible[1] = 0;
#pragma unroll
        for (int q = 0; q < 4; q++) { /* a byte has 8 keys, of which this lane has two */
            const uint32_t word = __shfl_sync(~0u, quarter, (lane & 28) + q) >> 2 * (lane % 4);
            const uint32_t pairs = (word & 0x03030303) * 0x01041040 >> 24; /* side by side */
            visible[0] |= (pairs & 15) << KEYS / 4 * q;
            visible[1] |= (pairs >> 4) << KEYS / 4 * q;
        }
    }
    /* Reads the bits of a mask that was copied. */
    __device__ __forceinline__ void read_copied(int key)
    {
        const Number lane = lane_number<Number>();
        ptx::copy_async_wait<S::SCORES == ATTN_CUDA_MASKED ? 0 : 1>();
        __syncwarp();
        if constexpr (S::BN == 128) {
            const uint32_t at = tile(key) + row_place<S::BN>(lane / 4, lane % 4 * 2);
            uint4 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = ptx::load_shared_16((at ^ i % 2 * 16) + i / 2 * 8 * S::BN);
            }
            const uint2 bits = quad_bits(x);
            visible[0] = bits.x, visible[1] = bits.y;
        } else {
            const uint32_t at = tile(key) + lane * 16;
            const uint32_t low = word_bits<KEYS>(ptx::load_shared_16(at));
            share_bits(low | word_bits<KEYS>(ptx::load_shared_16(at + 8 * 64)) << 16);
        }
    }
    __device__ __forceinline__ uint32_t read_bits(const attn_cuda_forward_params &a, int key) const
    {
        const int lane = ptx::opaque(threadIdx.x % 32), column = key + KEYS * (lane % 4);
        const int there =
            (int)min(max(a.problem.mask.shape[3] - column, (int64_t)0), (int64_t)KEYS);
        const StepsNote &x = note();
        uint32_t quarter = 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const char *row = x.mask + min(lane / 4 + 8 * r, x.mask_rows) * a.steps_sm90.mask_row;
            const bool whole = a.problem.mask.shape[3] == 1;
            const uint32_t bits =
                whole ? (*row != 0 ? (1u << KEYS) - 1 : 0)
                      : mask_bits<KEYS>(a.steps_sm90, row + column * a.steps_sm90.mask_step, there);
            quarter |= bits << 16 * r;
        }
        return quarter;
    }

    /* Reads the mask tensor's bits of the block that begins at `key`: each lane of a quad reads its
     * quarter of the keys for the quad's two rows and gets the bits of its own columns. */
    __device__ __forceinline__ void fetch_mask(const attn_cuda_forward_params &a, int key)
    {
        static_assert(KEYS <= 16 || S::SCORES == ATTN_CUDA_MASKED, "bits of two rows in a word");
        if (!a.steps_sm90.mask) {
            return;
        }
        if (a.steps_sm90.mask_row == 0) {
            vote_mask(a, key);
        } else if (S::SCORES == ATTN_CUDA_MASKED || copies_mask(a.steps_sm90)) {
            read_copied(key);
        } else if constexpr (S::SCORES != ATTN_CUDA_MASKED) {
            share_bits(read_bits(a, key));
        }
    }

    template <int N>
    __device__ __forceinline__ void apply_mask(bool tensor, const WarpRows &warp, int key,
                                               bool masked, float (&s)[N])
    {
        constexpr uint32_t ALL = (uint32_t)((1ull << N / 2) - 1);
        const int at = ptx::opaque(threadIdx.x % 32) / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            visible[r] = tensor ? visible[r] : ALL;
            if (masked) {
                const int2 see = warp.bounds[at + 8 * r];
                visible[r] &= keys_before(see.y - key) & ~keys_before(see.x - key);
            }
        }
        if (__all_sync(~0u, (visible[0] & visible[1] & ALL) == ALL)) {
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i] = visible[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1 ? s[i] : -INFINITY;
        }
    }

    /* True if row r sees less than half of a block of 2 N keys. */
    template <int N> __device__ __forceinline__ bool few(int r) const
    {
        int count = __popc(visible[r] & (uint32_t)((1ull << N / 2) - 1));
        count += __shfl_xor_sync(~0u, count, 1);
        count += __shfl_xor_sync(~0u, count, 2);
        return count < N;
    }
};
