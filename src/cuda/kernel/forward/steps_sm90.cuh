/*
 * steps_sm90.cuh: forward_sm90's steps from products of Q and K to scores (C9 of attn.h): scale,
 * softcap, bias, ALiBi, mask, by each warp for its 16 rows of a tile. Which steps there are is
 * asked at run time, once a block for each.
 *
 *     bias    copied to shared memory (cp.async) while the products before it are under way: room
 *             of the warp's own, 16 rows of BN elements; f32 or the bias' own 16-bit type
 *     mask    read meanwhile, or copied to that room a block ahead where there is no bias
 *             (mask_sm90.cuh)
 *
 * Elements lie in the accumulators as wgmma.cuh says: a thread's columns are 8 j + 2 (lane % 4) and
 * the one after it, its rows lane / 4 and the one 8 further. Kernels without steps, and those with
 * one that is part of the exponents (scores_sm90.cuh), have other Steps.
 */
#pragma once
#include "cuda/kernel/forward/mask_sm90.cuh"
#include "cuda/kernel/ptx/tma.cuh"
#include "cuda/kernel/rows/rows.cuh"
#include "cuda/kernel/rows/softcap.cuh"

/* Operands fetched for a block: none. */
struct NoSteps {
    __device__ __forceinline__ void begin_copies(const attn_cuda_forward_params &, int)
    {
    }
    __device__ __forceinline__ void fetch_copies(const attn_cuda_forward_params &, int, bool)
    {
    }
    __device__ __forceinline__ void fetch_mask(const attn_cuda_forward_params &, int)
    {
    }
};

/* Exponents of a block; they are the same in every block. */
struct LinearSteps {
    __device__ __forceinline__ Linear exponents(const attn_cuda_forward_params &a, int) const
    {
        return {a.scale_log2};
    }
    /* True if the block needs maxima, whatever its scores are. */
    __device__ __forceinline__ bool look(const Linear &) const
    {
        return false;
    }
    /* Computes scores from the products of a block that needs steps, before masks. */
    template <int N>
    __device__ __forceinline__ void prepare(const Linear &, int, float (&)[N]) const
    {
    }
    /* Notes results of a block that is done. */
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

template <class S> struct Steps<S, ATTN_CUDA_STEPPED> : LinearSteps, MaskSteps<S> {
    static constexpr int PITCH = 4 * S::BN; /* bytes of a row of f32 */
    using Mask = MaskSteps<S>;
    using Mask::copies_mask, Mask::copy_mask, Mask::first, Mask::memory, Mask::note, Mask::tile,
        Mask::visible;

    __device__ __forceinline__ Steps(const Memory<S> &memory_) : Mask(memory_)
    {
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
            }
            if (a.steps_sm90.mask) {
                x.mask = first(p.mask, item, first_row, &x.mask_rows);
            }
            if (a.steps_sm90.alibi) {
                const char *at = attn_at_broadcast(&p.alibi, item.sequence.index, item.head, 0, 0);
                x.slope = load_real<float>(at, p.alibi.dtype);
            }
        }
        Mask::begin_room(a);
    }
    /* Starts copying the bias of the block that begins at `key`, or the mask of the block after it,
     * if there is one. The block before it is done. */
    __device__ __forceinline__ void fetch_copies(const attn_cuda_forward_params &a, int key,
                                                 bool more)
    {
        if (!S::BIAS || !a.steps_sm90.masks) {
            return;
        }
        __syncwarp(); /* all lanes have read their elements */
        if (a.steps_sm90.bias == ATTN_CUDA_GATHERED) {
            gather_bias(a, key);
        } else if (a.steps_sm90.bias == ATTN_CUDA_COPIED_4) {
            copy_bias<4>(a, key);
        } else if (a.steps_sm90.bias == ATTN_CUDA_COPIED_2) {
            copy_bias<2>(a, key);
        } else if (more && copies_mask(a.steps_sm90)) {
            copy_mask(a, key - S::BN);
        }
        ptx::copy_async_commit();
    }

    /* The place of 16 bytes of a row: threads that read together share no bank. */
    template <int SIZE> static __device__ __forceinline__ uint32_t place(int row, int piece)
    {
        return row * (S::BN * SIZE) + (piece ^ (SIZE == 4 ? 2 * (row & 3) : row & 7)) * 16;
    }

    template <int SIZE>
    __device__ __forceinline__ void copy_bias(const attn_cuda_forward_params &a, int key)
    {
        constexpr int PIECES = S::BN * SIZE / 16, STEP = PIECES < 32 ? 32 / PIECES : 1;
        const int lane = ptx::opaque(threadIdx.x % 32), piece = lane % PIECES,
                  first = lane / PIECES;
        const int64_t row_bytes = a.steps_sm90.bias_row, column = key + piece * (16 / SIZE);
        const int inside = (int)min(a.problem.bias.shape[3] - column, (int64_t)16 / SIZE) * SIZE;
        const StepsNote &x = note();
        const char *from = x.bias + column * SIZE;
        const int rows = row_bytes == 0 ? 1 : 16; /* one element for all lanes */
        /* all are there; d = 128 has no registers left for a way of its own */
        if (S::D != 128 && rows == 16 && x.bias_rows >= 15 &&
            a.problem.bias.shape[3] - key >= S::BN) {
            from += first * row_bytes;
#pragma unroll
            for (int row = 0; row < 16; row += STEP, from += STEP * row_bytes) {
                ptx::copy_async_16(tile() + place<SIZE>(first + row, piece), from, 16);
            }
            return;
        }
#pragma unroll(S::D == 128 ? 4 : 1)
        for (int row = first; row < rows; row += STEP) {
            const char *at = from + min(row, x.bias_rows) * row_bytes;
            ptx::copy_async_16(tile() + place<SIZE>(row, piece), inside > 0 ? at : x.bias,
                               max(inside, 0));
        }
    }

    /* Copies a bias of any type and strides, element by element, as f32. */
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

    /* Computes scores from products of the block that begins at `key`. masked: intervals of keys
     * end in it. */
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
            Mask::apply_mask(x.mask, warp, key, masked, s);
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

    /* A bias of -inf masks any product, also NaN, whose score is NaN until here. Checked only where
     * scores are looked at. */
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
};
