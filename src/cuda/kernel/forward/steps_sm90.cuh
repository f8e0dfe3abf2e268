/*
 * steps_sm90.cuh: forward_sm90's steps from products of Q and K to scores (C9 of attn.h): scale,
 * softcap, bias, ALiBi, mask, by each warp for its 16 rows of a tile. Which steps there are is
 * asked at run time, once a block for each.
 *
 *     bias    copied to shared memory (cp.async) while the products before it are under way: room
 *             of the warp's own, 16 rows of BN elements; f32 or the bias' own 16-bit type
 *     mask    read meanwhile, to a bit for each of the thread's scores
 *
 * Elements lie in the accumulators as wgmma.cuh says: a thread's columns are 8 j + 2 (lane % 4) and
 * the one after it, its rows lane / 4 and the one 8 further. Kernels without steps, and those with
 * one that is part of the exponents (scores_sm90.cuh), have other Steps.
 */
#pragma once
#include "cuda/kernel/forward/shape_sm90.cuh"
#include "cuda/kernel/ptx/tma.cuh"
#include "cuda/kernel/rows/rows.cuh"
#include "cuda/kernel/rows/softcap.cuh"

/* What is fetched for a block: nothing. */
struct NoSteps {
    __device__ __forceinline__ void fetch_bias(const attn_cuda_forward_params &, int)
    {
    }
    __device__ __forceinline__ void fetch_mask(const attn_cuda_forward_params &, int)
    {
    }
};

/* Exponents that are the same in every block. */
struct LinearSteps {
    __device__ __forceinline__ Linear exponents(const attn_cuda_forward_params &a, int) const
    {
        return {a.scale_log2};
    }
    /* Whether the block that begins at `key` needs maxima, for all that its scores may tell. */
    __device__ __forceinline__ bool look(int) const
    {
        return false;
    }
    /* Products of a block that needs them, before masks. */
    template <int N>
    __device__ __forceinline__ void prepare(const Linear &, int, float (&)[N]) const
    {
    }
    /* From a block that is done. */
    __device__ __forceinline__ void learn(const Linear &)
    {
    }
};

template <class S, int SCORES = S::SCORES> struct Steps : NoSteps, LinearSteps {
    __device__ __forceinline__ Steps(const Memory<S> &)
    {
    }
    template <class Warp>
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &, const Item &,
                                          const Warp &)
    {
    }
};

/* KEYS elements (8, 16) of a mask from `row` on as bits; those from `there` on are 0. */
template <int KEYS>
__device__ __forceinline__ uint32_t mask_bits(const attn_cuda_steps &x, const char *row, int there)
{
    uint32_t bits = 0;
    if (x.mask_copied && there >= KEYS) {
        const uint2 low = *(const uint2 *)row,
                    high = KEYS > 8 ? *(const uint2 *)(row + KEYS / 2) : low;
        const uint32_t words[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
        for (int w = 0; w < KEYS / 4; w++) { /* bit 7 of bytes that are not 0, then side by side */
            const uint32_t flags = (((words[w] & 0x7f7f7f7f) + 0x7f7f7f7f) | words[w]) & 0x80808080;
            bits |= flags * 0x204081 >> 28 << 4 * w;
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < min(there, KEYS); i++) {
            bits |= (uint32_t)(row[i * x.mask_step] != 0) << i;
        }
    }
    return bits;
}

template <class S> struct Steps<S, ATTN_CUDA_STEPPED> : LinearSteps {
    static constexpr int PITCH = 4 * S::BN; /* bytes of a row of f32 */
    const Memory<S> &memory;
    uint32_t visible[2]; /* of its keys in the block: by the mask tensor, then by all */

    __device__ __forceinline__ Steps(const Memory<S> &memory_) : memory(memory_)
    {
    }
    __device__ __forceinline__ const StepsNote &note() const
    {
        return memory.note(threadIdx.x / 32 - 4);
    }
    /* The warp's room for a block's bias. */
    __device__ __forceinline__ uint32_t tile() const
    {
        return memory.o(threadIdx.x / 32 - 4);
    }

    /* Row 0 of the warp in a tensor of scores; *rows: see above. Extents are not checked against
     * lengths on a GPU, hence the clamp. */
    static __device__ __forceinline__ const char *first(const attn_tensor &t, const Item &item,
                                                        int row, int *rows)
    {
        const int last = (int)t.shape[2] - 1, at = min(row, last);
        *rows = last - at;
        return attn_at_broadcast(&t, item.sequence.index, item.head, at, 0);
    }

    template <class Warp>
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &a, const Item &item,
                                          const Warp &warp)
    {
        const attn_problem &p = a.problem;
        const int first_row = (int)item.first_row + warp.first;
        if (threadIdx.x % 32 == 0) {
            StepsNote &x = memory.note(threadIdx.x / 32 - 4);
            x.position = first_row + item.sequence.diagonal;
            if (S::BIAS && a.steps_sm90.bias != ATTN_CUDA_NONE) {
                x.bias = first(p.bias, item, first_row, &x.bias_rows);
                if (S::STAGED) { /* O of the last item is still read from there */
                    tma::wait_stores_read();
                }
            }
            if (a.steps_sm90.mask) {
                x.mask = first(p.mask, item, first_row, &x.mask_rows);
            }
            if (a.steps_sm90.alibi) {
                const char *at = attn_at_broadcast(&p.alibi, item.sequence.index, item.head, 0, 0);
                x.slope = load_real<float>(at, p.alibi.dtype);
            }
        }
        __syncwarp();
    }

    /* Starts copying the bias of the block that begins at `key`. The block before it is done. */
    __device__ __forceinline__ void fetch_bias(const attn_cuda_forward_params &a, int key)
    {
        if (!S::BIAS || a.steps_sm90.bias == ATTN_CUDA_NONE) {
            return;
        }
        __syncwarp(); /* all have read theirs */
        if (a.steps_sm90.bias == ATTN_CUDA_GATHERED) {
            gather_bias(a, key);
        } else if (a.steps_sm90.bias == ATTN_CUDA_COPIED_4) {
            copy_bias<4>(a, key);
        } else {
            copy_bias<2>(a, key);
        }
        ptx::copy_async_commit();
    }

    /* Where 16 bytes of a row lie: no two of the threads that read together share a bank. */
    template <int SIZE> static __device__ __forceinline__ uint32_t place(int row, int piece)
    {
        return row * (S::BN * SIZE) + (piece ^ (SIZE == 4 ? 2 * (row & 3) : row & 7)) * 16;
    }

    template <int SIZE>
    __device__ __forceinline__ void copy_bias(const attn_cuda_forward_params &a, int key)
    {
        constexpr int PIECES = S::BN * SIZE / 16, STEP = PIECES < 32 ? 32 / PIECES : 1;
        const int lane = ptx::opaque(threadIdx.x % 32), piece = lane % PIECES;
        const int64_t row_bytes = a.steps_sm90.bias_row, column = key + piece * (16 / SIZE);
        const int inside = (int)min(a.problem.bias.shape[3] - column, (int64_t)16 / SIZE) * SIZE;
        const StepsNote &x = note();
        const char *from = x.bias + column * SIZE;
        const int rows = row_bytes == 0 ? 1 : 16; /* one for all */
#pragma unroll 4
        for (int row = lane / PIECES; row < rows; row += STEP) {
            const char *at = from + min(row, x.bias_rows) * row_bytes;
            ptx::copy_async_16(tile() + place<SIZE>(row, piece), inside > 0 ? at : x.bias,
                               max(inside, 0));
        }
    }

    /* Any type and strides, element by element, as f32. */
    __device__ __forceinline__ void gather_bias(const attn_cuda_forward_params &a, int key)
    {
        const attn_tensor &t = a.problem.bias;
        const StepsNote &x = note();
        const int lane = ptx::opaque(threadIdx.x % 32);
#pragma unroll(S::D >= 128 ? 1 : 4)
        for (int i = lane; i < 16 * S::BN; i += 32) {
            const int row = i / S::BN, column = i % S::BN;
            const int64_t at = min((int64_t)key + column, t.shape[3] - 1) * a.steps_sm90.bias_step;
            const char *from = x.bias + min(row, x.bias_rows) * a.steps_sm90.bias_row + at;
            ptx::store_shared_4(tile() + place<4>(row, column / 4) + column % 4 * 4,
                                load_real<float>(from, t.dtype));
        }
    }

    /* The mask tensor's bits of the block that begins at `key`: each lane of a quad reads its
     * quarter of the keys for the quad's two rows, and gets its own columns' bits of all
     * quarters. */
    __device__ __forceinline__ void fetch_mask(const attn_cuda_forward_params &a, int key)
    {
        constexpr int KEYS = S::BN / 4;
        static_assert(KEYS == 16 || KEYS == 8, "bits of two rows in a word");
        if (!a.steps_sm90.mask) {
            return;
        }
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
        visible[0] = visible[1] = 0;
#pragma unroll
        for (int q = 0; q < 4; q++) { /* 8 keys to a byte: two of them are this lane's */
            const uint32_t word = __shfl_sync(~0u, quarter, (lane & 28) + q) >> 2 * (lane % 4);
            const uint32_t pairs = (word & 0x03030303) * 0x01041040 >> 24; /* side by side */
            visible[0] |= (pairs & 15) << KEYS / 4 * q;
            visible[1] |= (pairs >> 4) << KEYS / 4 * q;
        }
    }

    /* Products of the block that begins at `key` -> scores. masked: by geometry. */
    template <int N>
    __device__ __forceinline__ void apply(const attn_cuda_forward_params &a, const WarpRows &warp,
                                          int key, bool masked, float (&s)[N])
    {
        const attn_cuda_steps &x = a.steps_sm90;
        if (x.softcap) {
            softcap_scores(x, s);
        }
        if (S::BIAS && x.bias != ATTN_CUDA_NONE) {
            ptx::copy_async_wait<0>();
            __syncwarp();
            const bool one_row = x.bias != ATTN_CUDA_GATHERED && x.bias_row == 0;
            if (x.bias != ATTN_CUDA_COPIED_2) {
                add_bias_4(x.bias_factor, one_row, s);
            } else if (a.problem.bias.dtype == ATTN_BF16) {
                add_bias_2<true>(x.bias_factor, one_row, s);
            } else {
                add_bias_2<false>(x.bias_factor, one_row, s);
            }
        }
        if (x.alibi) {
            add_alibi(x.alibi_factor, key, s);
        }
        if (x.scaled) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                s[i] *= x.scale;
            }
        }
        if (x.mask || masked) {
            apply_mask(x.mask, warp, key, masked, s);
        } else {
            visible[0] = visible[1] = ~0u;
        }
    }

    template <int N>
    __device__ __forceinline__ void add_bias_4(float factor, bool one_row, float (&s)[N]) const
    {
        const int lane = ptx::opaque(threadIdx.x % 32);
        const uint32_t at = tile() + lane % 2 * 8 + place<4>(one_row ? 0 : lane / 4, lane / 2 % 2);
        const uint32_t next = one_row ? 0 : 8 * PITCH;
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const int j = i / 4;
            const float2 b = ptx::load_shared_8((at ^ j % 4 * 32) + j / 4 * 128 + i / 2 % 2 * next);
            s[i] = fmaf(s[i], factor, b.x);
            s[i + 1] = fmaf(s[i + 1], factor, b.y);
        }
    }

    template <bool BF16, int N>
    __device__ __forceinline__ void add_bias_2(float factor, bool one_row, float (&s)[N]) const
    {
        const int lane = ptx::opaque(threadIdx.x % 32);
        const uint32_t at = tile() + lane % 4 * 4 + place<2>(one_row ? 0 : lane / 4, 0);
        const uint32_t next = one_row ? 0 : 8 * PITCH / 2;
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const int j = i / 4;
            const uint32_t pair =
                ptx::load_shared_4((at ^ j % 8 * 16) + j / 8 * 128 + i / 2 % 2 * next);
            const float2 b = ptx::unpack_half<BF16>(pair);
            s[i] = fmaf(s[i], factor, b.x);
            s[i + 1] = fmaf(s[i + 1], factor, b.y);
        }
    }

    /* A bias of -inf masks whatever the product was: where it was NaN, so is the score until here.
     * Asked only where scores are looked at. */
    template <int N>
    __device__ __forceinline__ void hide(const attn_cuda_forward_params &a, float (&s)[N]) const
    {
        const attn_cuda_steps &x = a.steps_sm90;
        if (S::BIAS && x.bias != ATTN_CUDA_NONE) {
            const bool one_row = x.bias != ATTN_CUDA_GATHERED && x.bias_row == 0;
            float bias[N];
#pragma unroll
            for (int i = 0; i < N; i++) {
                bias[i] = 0;
            }
            if (x.bias != ATTN_CUDA_COPIED_2) {
                add_bias_4(0, one_row, bias);
            } else if (a.problem.bias.dtype == ATTN_BF16) {
                add_bias_2<true>(0, one_row, bias);
            } else {
                add_bias_2<false>(0, one_row, bias);
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                s[i] = bias[i] == -INFINITY ? -INFINITY : s[i];
            }
        }
    }

    /* -slope |distance| is x = slope column - slope distance of column 0 where the distance is
     * positive, and -x elsewhere. Blocks left of the diagonal, which are most, need no sign. */
    template <int N> __device__ __forceinline__ void add_alibi(float factor, int key, float (&s)[N])
    {
        const int lane = ptx::opaque(threadIdx.x % 32);
        const int64_t position = note().position - key,
                      first = position + (lane / 4 - 2 * (lane % 4));
        const float slope = note().slope,
                    start[2] = {(float)first * -slope, (float)(first + 8) * -slope};
        if (position >= 2 * N - 1) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                s[i] =
                    fmaf(s[i], factor, fmaf(slope, (float)(i / 4 * 8 + i % 2), start[i / 2 % 2]));
            }
        } else {
            const float sign = slope < 0 ? 1 : -1;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float x = fmaf(slope, (float)(i / 4 * 8 + i % 2), start[i / 2 % 2]);
                s[i] = fmaf(s[i], factor, fabsf(x) * sign);
            }
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

    /* Whether row r sees less than half of a block of 2 N keys. */
    template <int N> __device__ __forceinline__ bool few(int r) const
    {
        int count = __popc(visible[r] & (uint32_t)((1ull << N / 2) - 1));
        count += __shfl_xor_sync(~0u, count, 1);
        count += __shfl_xor_sync(~0u, count, 2);
        return count < N;
    }
};
