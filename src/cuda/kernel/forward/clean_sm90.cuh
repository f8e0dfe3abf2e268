/*
 * clean_sm90.cuh: which tiles of V forward_sm90 cleans (clean.cuh), and the warps of the producer
 * that do so where they come by TMA: between their arrival and their announcement. Rows of V
 * beyond a sequence's last key, which belong to others, become 0 too.
 *
 * Values that are not finite are rare, and a look at each tile costs causal problems up to 5 %. By
 * TMA an item is therefore done with tiles as they are, but for rows of others. Where a row comes
 * out non-finite beside keys that it does not see, a consumer says so in the post (Post::again),
 * and the producer posts the item once more, with clean tiles. All other rows have the bits that
 * they get once more then.
 */
#pragma once
#include "cuda/kernel/forward/walk_sm90.cuh"
#include "cuda/kernel/load/clean.cuh"
#include "cuda/kernel/load/load.cuh"

/* Blocks of keys, first .. last - 1, that all rows of an item see in full. */
struct Even {
    int first, last;

    __device__ __forceinline__ bool has(int block) const
    {
        return block >= first && block < last;
    }
};

/* True if rows of an item may differ in the keys that they see. */
template <class S> __device__ __forceinline__ bool rows_differ(const attn_cuda_forward_params &a)
{
    return (S::MASKS && a.steps_sm90.masks) || attn_mask_differs(&a.problem);
}

/* Blocks whose tiles of V stay as they are: none in a clean item with a mask tensor or a bias, nor
 * a tile with rows of others behind `tail`. */
template <class S>
__device__ __forceinline__ Even even_blocks(const attn_cuda_forward_params &a, const Post &post)
{
    const Blocks &b = post.blocks;
    if ((S::TMA && !post.clean) || !rows_differ<S>(a)) {
        return {0, b.last + (post.tail == 0)};
    }
    return S::MASKS && a.steps_sm90.masks ? Even{0, 0} : Even{b.full_first, b.full_last};
}

/* The warps of the producer that clean: the third and the fourth. */
enum { CLEANERS = 2, FIRST_CLEANER = 2, CLEANERS_MEET = 8 /* number of their named barrier */ };

/* Sets rows of V from `tail` on, which belong to others, to 0. */
template <class S> __device__ __forceinline__ void clear_rows(uint32_t v, int tail, bool eights)
{
#pragma unroll 1
    for (int c = 0; c < S::V_WIDE / 64; c++) {
#pragma unroll 1
        for (int at = tail * 128 + (threadIdx.x - FIRST_CLEANER * 32) * 16; at < S::BN * 128;
             at += CLEANERS * 32 * 16) {
            const uint32_t to = S::EIGHTS && eights
                                    ? (at / 1024 * (S::V_WIDE / 64) + c) * 1024 + at % 1024
                                    : c * S::BN * 128 + at;
            ptx::store_shared_16(v + to, make_uint4(0, 0, 0, 0));
        }
    }
    ptx::barrier_sync(CLEANERS_MEET, CLEANERS * 32);
}

/* Cleans a thread's part of a tile of V at `v`. Returns true if a value was not finite. Several
 * loads run at a time, since each takes a while. */
template <class S> __device__ __forceinline__ bool clean_tile(uint32_t v)
{
    constexpr int ALL = S::V_WIDE / 64 * S::BN * 128, STEP = CLEANERS * 32 * 16;
    constexpr int DEEP = ALL % (4 * STEP) == 0 && S::PRODUCER_REGISTERS > 32 ? 4 : 2;
    static_assert(ALL % (DEEP * STEP) == 0, "a whole number of rounds");
    uint32_t at = v + ptx::opaque((int)threadIdx.x - FIRST_CLEANER * 32) * 16, sum[4] = {};
    const uint32_t end = v + ALL;
#pragma unroll 1
    for (; at < end; at += DEEP * STEP) {
        uint4 x[DEEP];
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            x[i] = ptx::load_shared_16(at + i * STEP);
        }
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            sum[0] = ptx::times_zero<S::BF16>(x[i].x, sum[0]);
            sum[1] = ptx::times_zero<S::BF16>(x[i].y, sum[1]);
            sum[2] = ptx::times_zero<S::BF16>(x[i].z, sum[2]);
            sum[3] = ptx::times_zero<S::BF16>(x[i].w, sum[3]);
        }
    }
    if (((sum[0] | sum[1] | sum[2] | sum[3]) & 0x7fff7fff) == 0) {
        return false;
    }
#pragma unroll 1
    for (at -= ALL; at < end; at += STEP) {
        clean_16<S::BF16>(at);
    }
    return true;
}

/* The work of CLEANERS warps on all of the CTA's items. */
template <class S>
__device__ __forceinline__ void clean_tiles(const attn_cuda_forward_params &a,
                                            const Memory<S> &memory)
{
    const bool first = threadIdx.x % 32 == 0;
    uint32_t number = 0, parities = 0; /* bit n: the phase of stage n's raw barrier */
#pragma unroll 1
    for (uint32_t posts = 0;; posts++) {
        Post &post = memory.await_post(posts);
        if (post.end) {
            break;
        }
        const Even even = even_blocks<S>(a, post);
        const Walk<S> walk(a, post.item, post.blocks);
        const int count = post.blocks.count;
#pragma unroll 1
        for (int i = 0; i < count; i++) {
            const uint32_t n = number + i;
            const int block = walk.block(i);
            if (even.has(block)) {
                continue;
            }
            ptx::mbarrier_wait(memory.v_raw(n), parities >> n % S::STAGES & 1);
            parities ^= 1 << n % S::STAGES;
            if (block == post.blocks.last && post.tail > 0) {
                clear_rows<S>(memory.v(n), post.tail, a.pages.eights);
            }
            const bool found = clean_tile<S>(memory.v(n));
            ptx::fence_proxy_async();
            const bool any = ptx::barrier_any(CLEANERS_MEET, CLEANERS * 32, found);
            if (threadIdx.x == FIRST_CLEANER * 32) {
                post.nonfinite |= any;
                ptx::mbarrier_arrive(memory.v_full(n));
                if (S::SWAPS) {
                    ptx::mbarrier_arrive(memory.k_full(n));
                }
            }
        }
        number += count;
        __syncwarp();
        if (first) {
            ptx::mbarrier_arrive(memory.post_empty(posts));
        }
    }
}
