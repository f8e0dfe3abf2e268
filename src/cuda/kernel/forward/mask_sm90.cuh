/*
 * mask_sm90.cuh: a mask tensor in forward_sm90's score steps (steps_sm90.cuh): of a block of keys a
 * bit for each of the thread's scores.
 *
 *     one row for all    each lane reads a key in 32, and the warp votes
 *     rows that differ   each lane of a quad reads its quarter of the keys for the quad's two rows,
 *                        from shared memory, where the block's bytes were copied (cp.async) a block
 *                        ahead; where a bias has that room, or copies cannot be, from the tensor
 */
#pragma once
#include "cuda/kernel/forward/shape_sm90.cuh"
#include "cuda/kernel/rows/rows.cuh"

/* Makes bits of KEYS elements (8, 16) of a mask. */
template <int KEYS> __device__ __forceinline__ uint32_t word_bits(const uint4 &x)
{
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    uint32_t bits = 0;
#pragma unroll
    /* bit 7 of bytes that are not 0, then these bits side by side */
    for (int w = 0; w < KEYS / 4; w++) {
        const uint32_t flags = (((words[w] & 0x7f7f7f7f) + 0x7f7f7f7f) | words[w]) & 0x80808080;
        bits |= flags * 0x204081 >> 28 << 4 * w;
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

template <class S> struct MaskSteps {
    static constexpr int KEYS = S::BN / 4; /* keys in a quarter of a block */
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
        return tile() + key / S::BN % 2 * (16 * S::BN);
    }
    /* True if the mask is copied to shared memory. */
    static __device__ __forceinline__ bool copies_mask(const attn_cuda_steps &x)
    {
        return S::BIAS && S::BN == 64 && x.mask_copied && x.mask_row != 0 &&
               x.bias == ATTN_CUDA_NONE;
    }

    /* Copies the mask's bytes of 16 rows; 0 beyond its columns. */
    __device__ __forceinline__ void copy_mask(const attn_cuda_forward_params &a, int key)
    {
        const StepsNote &x = note();
        const int lane = ptx::opaque(threadIdx.x % 32), column = key + lane % 4 * 16;
        const int inside = (int)min(max(a.problem.mask.shape[3] - column, (int64_t)0), (int64_t)16);
#pragma unroll
        for (int row = lane / 4; row < 16; row += 8) {
            const char *at = x.mask + min(row, x.mask_rows) * a.steps_sm90.mask_row + column;
            ptx::copy_async_16(tile(key) + row * 64 + lane % 4 * 16, inside > 0 ? at : x.mask,
                               inside);
        }
    }

    /* Reads the bits of a mask with one row for all: each lane reads a key in 32. */
    __device__ __forceinline__ void vote_mask(const attn_cuda_forward_params &a, int key)
    {
        const int lane = ptx::opaque(threadIdx.x % 32);
        const int rest = (int)(a.problem.mask.shape[3] - key) - lane;
        const bool whole = a.problem.mask.shape[3] == 1;
        const char *at = note().mask + (key + lane) * a.steps_sm90.mask_step;
        visible[0] = 0;
#pragma unroll
        for (int i = 0; i < S::BN / 32; i++) {
            const bool sees = (whole || 32 * i < rest) && at[32 * i * a.steps_sm90.mask_step] != 0;
            const uint32_t word = __ballot_sync(~0u, sees) >> 2 * (lane % 4);
            visible[0] |= ((word & 0x03030303) * 0x01041040 >> 24) << 8 * i;
        }
        visible[1] = visible[0];
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
    __device__ __forceinline__ uint32_t copied_bits(int key) const
    {
        const int lane = ptx::opaque(threadIdx.x % 32);
        const uint32_t at = tile(key) + lane * 16;
        ptx::copy_async_wait<1>();
        __syncwarp();
        const uint32_t low = word_bits<KEYS>(ptx::load_shared_16(at));
        return low | word_bits<KEYS>(ptx::load_shared_16(at + 8 * 64)) << 16;
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
        static_assert(KEYS == 16 || KEYS == 8, "bits of two rows in a word");
        if (!a.steps_sm90.mask) {
            return;
        }
        if (a.steps_sm90.mask_row == 0) {
            vote_mask(a, key);
        } else if (copies_mask(a.steps_sm90)) {
            share_bits(copied_bits(key));
        } else {
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
