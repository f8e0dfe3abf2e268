/*
 * masked_sm90.cuh: a mask tensor alone beside a scale, in the plain kernels' shape: bits of a block
 * of 128 keys are read while its products run, and scores that they hide become -inf before the
 * exponents. Bits are made of the tensor's bytes (mask_sm90.cuh), anew for each head; or a launch
 * before has made them, for each lane 8 bytes a block (attn_cuda_lanes). No other step is asked for
 * (steps_sm90.cuh).
 */
#pragma once
#include "cuda/kernel/forward/steps_sm90.cuh"
#include "cuda/kernel/ptx/entry.cuh"

/* What both have: bits are there when scores are. */
template <class S> struct MaskAlone : LinearSteps, MaskSteps<S> {
    using Mask = MaskSteps<S>;

    __device__ __forceinline__ explicit MaskAlone(const Memory<S> &memory_) : Mask(memory_)
    {
    }
    __device__ __forceinline__ void fetch_mask(const attn_cuda_forward_params &, int) const
    {
    }
    template <int N>
    __device__ __forceinline__ void apply(const attn_cuda_forward_params &, const WarpRows &warp,
                                          int key, bool masked, float (&s)[N])
    {
        Mask::apply_mask(true, warp, key, masked, s);
    }
    template <int N>
    __device__ __forceinline__ void hide(const attn_cuda_forward_params &, float (&)[N]) const
    {
    }
};

template <class S> struct Steps<S, ATTN_CUDA_MASKED> : MaskAlone<S> {
    using Mask = MaskSteps<S>;

    __device__ __forceinline__ Steps(const Memory<S> &memory_) : MaskAlone<S>(memory_)
    {
    }
    template <class Warp>
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &a, const Item &item,
                                          const Warp &warp)
    {
        if (threadIdx.x % 32 == 0) {
            StepsNote &x = Mask::memory.note(ptx::opaque(threadIdx.x) / 32 - 4);
            x.mask =
                Mask::first(a.problem.mask, item, (int)item.first_row + warp.first, &x.mask_rows);
            const int64_t columns = a.problem.mask.shape[3], row = a.steps_sm90.mask_row;
            x.whole = x.mask_rows >= 15 && row > 0 && row < 1 << 29
                          ? (int)attn_clamp(columns - S::BN, -1, INT32_MAX)
                          : -1;
        }
        Mask::begin_room(a);
    }
    /* Reads the bits of the block that begins at `key`, while there are no scores yet that need
     * registers, and starts copying the mask of the block after it. */
    __device__ __forceinline__ void fetch_copies(const attn_cuda_forward_params &a, int key,
                                                 bool more)
    {
        Mask::fetch_mask(a, key);
        if (more && a.steps_sm90.mask_row != 0) {
            __syncwarp(); /* all lanes have read their bytes */
            Mask::copy_mask(a, key - S::BN);
            ptx::copy_async_commit();
        }
    }
};

template <class S> struct Steps<S, ATTN_CUDA_MASKED_LANES> : MaskAlone<S> {
    using Mask = MaskSteps<S>;

    __device__ __forceinline__ Steps(const Memory<S> &memory_) : MaskAlone<S>(memory_)
    {
    }
    template <class Warp>
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &a, const Item &item,
                                          const Warp &warp)
    {
        if (threadIdx.x % 32 == 0) {
            const attn_cuda_lanes &lanes = a.lanes;
            const int row = min((int)item.first_row + warp.first, lanes.last);
            Mask::memory.note(ptx::opaque(threadIdx.x) / 32 - 4).mask =
                lanes.bits + item.sequence.index * lanes.batch + item.head * lanes.head +
                (int64_t)row * lanes.row;
        }
        Mask::begin_room(a);
    }
    __device__ __forceinline__ void begin_copies(const attn_cuda_forward_params &, int key) const
    {
        copy(key);
    }
    /* As that of bytes does; a lane reads what it has copied itself. */
    __device__ __forceinline__ void fetch_copies(const attn_cuda_forward_params &, int key,
                                                 bool more)
    {
        if (more) {
            copy(key - S::BN);
        } else {
            ptx::copy_async_commit();
        }
    }
    __device__ __forceinline__ void fetch_mask(const attn_cuda_forward_params &, int key)
    {
        ptx::copy_async_wait<1>();
        const float2 bits = ptx::load_shared_8(place(key));
        Mask::visible[0] = __float_as_uint(bits.x), Mask::visible[1] = __float_as_uint(bits.y);
    }

    /* True if rows of the warp that may have too few keys for slack see some of the block. Sums of
     * others stay, so a row that the mask hides altogether keeps no warp from its quick way. */
    __device__ __forceinline__ bool begins(const RowState (&state)[2]) const
    {
        return __any_sync(~0u, (signbit(state[0].l) && Mask::visible[0] != 0) ||
                                   (signbit(state[1].l) && Mask::visible[1] != 0));
    }

  private:
    __device__ __forceinline__ uint32_t place(int key) const
    {
        return Mask::tile() + (uint32_t)key / S::BN % 2 * 256 + lane_number<uint32_t>() * 8;
    }
    __device__ __forceinline__ void copy(int key) const
    {
        static_assert(S::BN == 128, "8 bytes a lane");
        ptx::copy_entry<8>(place(key), Mask::note().mask + (2 * key + lane_number<uint32_t>() * 8));
        ptx::copy_async_commit();
    }
};
