/*
 * shape_sm90.cuh: the compile-time shape of a backward_sm90 kernel and its map of shared memory:
 *
 *     fixed 2 [128][D] | STAGES of streamed 2 [STEP][D] | barriers | STAGES of statistics [2][STEP]
 *
 * keys: fixed are K and V of 128 keys (dV alone: K), streamed Q and dO with LSE and delta. rows:
 * fixed are Q and dO of 128 rows, streamed K and V. Tiles lie in chunks of 64 columns (wgmma.cuh).
 */
#pragma once
#include "cuda/backward/params.h"
#include "cuda/kernel/backward/items.cuh"
#include "cuda/kernel/mma/wgmma.cuh"
#include "cuda/kernel/ptx/tma.cuh"
#include "cuda/shape.h"

/* DK, DV: what a kernel that owns keys computes. */
template <int DTYPE, int D_, int STEP_, int STAGES_, bool DK_ = true, bool DV_ = true>
struct GradShape {
    static constexpr bool BF16 = DTYPE == ATTN_BF16, DK = DK_, DV = DV_;
    static constexpr int D = D_, STEP = STEP_, STAGES = STAGES_, FIXED = 128, BOX = ATTN_GRAD_BOX,
                         FIXED_TILES = DK ? 2 : 1;
    static constexpr int FIXED_BYTES = FIXED * D * 2, STEP_BYTES = STEP * D * 2;
    static constexpr int BARRIERS_AT = FIXED_TILES * FIXED_BYTES + STAGES * 2 * STEP_BYTES;
    static constexpr int STATISTICS_AT = BARRIERS_AT + 128;
    static constexpr int SHARED_BYTES = ATTN_GRAD_SM90_BYTES(D, FIXED_TILES, STEP, STAGES);
    static_assert(STATISTICS_AT + STAGES * 2 * STEP * 4 + ATTN_SM90_ALIGN == SHARED_BYTES,
                  "shape.h");
};

/* Each gives a stage back for itself: it may be behind the others of its group. */
enum { CONSUMER_WARPS = 8 };

/* Addresses in shared memory. n counts the uses of a stage. */
template <class S> struct GradMemory {
    uint32_t base; /* aligned to 1024 */

    __device__ __forceinline__ uint32_t fixed(int which) const
    {
        return base + which * S::FIXED_BYTES;
    }
    __device__ __forceinline__ uint32_t streamed(uint32_t n, int which) const
    {
        return base + S::FIXED_TILES * S::FIXED_BYTES + (n % S::STAGES * 2 + which) * S::STEP_BYTES;
    }
    /* LSE in exponents of 2, then delta, of STEP rows */
    __device__ __forceinline__ uint32_t statistics(uint32_t n) const
    {
        return base + S::STATISTICS_AT + n % S::STAGES * 2 * S::STEP * 4;
    }
    __device__ __forceinline__ uint32_t fixed_full() const
    {
        return base + S::BARRIERS_AT;
    }
    __device__ __forceinline__ uint32_t full(uint32_t n) const
    {
        return base + S::BARRIERS_AT + 8 + n % S::STAGES * 16;
    }
    __device__ __forceinline__ uint32_t empty(uint32_t n) const
    {
        return full(n) + 8;
    }
    static __device__ __forceinline__ uint32_t parity(uint32_t n)
    {
        return n / S::STAGES & 1;
    }

    /* One thread. loaders: arrivals beside the bytes that the TMA counts. */
    __device__ __forceinline__ void init_barriers(int loaders) const
    {
        ptx::mbarrier_init(fixed_full(), 1);
        for (int n = 0; n < S::STAGES; n++) {
            ptx::mbarrier_init(full(n), loaders);
            ptx::mbarrier_init(empty(n), CONSUMER_WARPS);
        }
        ptx::fence_mbarrier_init();
    }
};

/* In the CTA's shared memory, from a multiple of 1024 bytes on. */
template <class S> __device__ __forceinline__ GradMemory<S> grad_memory()
{
    extern __shared__ unsigned char shared[];
    const uint32_t start = ptx::shared_address(shared);
    return {start + (-start & 1023)};
}

/* The blocks of the other side that an item meets: rows of each head of a group, or keys. */
struct GradBlocks {
    int first, count; /* of one head */
    int heads;

    __device__ __forceinline__ int all() const
    {
        return count * heads;
    }
};

/* One thread: a tile of `rows` rows from `row` on, all its chunks. */
template <class S>
__device__ __forceinline__ void load_tile(uint32_t to, const attn_tensor_map *map, uint32_t barrier,
                                          int rows, int row, int head, int batch, uint64_t hint)
{
    for (int chunk = 0; chunk < S::D / 64; chunk++) {
        for (int r = 0; r < rows; r += S::BOX) {
            tma::load(to + (chunk * rows + r) * 128, map, barrier, chunk * 64, row + r, head, batch,
                      hint);
        }
    }
}

/* s = A B^T of 64 rows of a tile of ROWS_A rows (a: the first of them), and of N rows of one of
 * as many. */
template <class S, int N>
__device__ __forceinline__ void issue_scores(float (&s)[N / 2], uint32_t a, uint32_t b)
{
    const uint64_t left = wgmma::descriptor(ptx::uniform(a), 0),
                   right = wgmma::descriptor(ptx::uniform(b), 0);
#pragma unroll
    for (int step = 0; step < S::D / 16; step++) {
        const int chunk = step / 4, within = step % 4 * 2;
        wgmma::Product<S::BF16, N>::ss(s, left + chunk * S::FIXED * 8 + within,
                                       right + chunk * N * 8 + within, step > 0);
    }
    wgmma::commit();
}

/* sum += P X: P of 64 x K in registers, X of K rows. */
template <class S, int K>
__device__ __forceinline__ void issue_sum(float (&sum)[S::D / 2], const uint32_t (&p)[K / 4],
                                          uint32_t x)
{
    const uint64_t right = wgmma::descriptor(ptx::uniform(x), K * 128);
#pragma unroll
    for (int step = 0; step < K / 16; step++) {
        wgmma::Product<S::BF16, S::D>::template rs<1>(sum, p + 4 * step, right + step * 128, 1);
    }
    wgmma::commit();
}

/* Whether any of the warpgroup's 128 threads says so. */
__device__ __forceinline__ bool any_of_group(int group, bool mine)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.or.pred q, %2, 128, p;\n"
                 "selp.u32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"((uint32_t)mine), "r"(1 + group)
                 : "memory");
    return any != 0;
}

/* Notes whether a result of the block is not finite, or adds that to what dV has noted. */
__device__ __forceinline__ void note_block(const attn_cuda_backward_params &a, int64_t block,
                                           bool bad)
{
    a.bad[block] = bad || (a.noted && a.bad[block]);
}

/* Two neighbouring columns of a row of a gradient. */
__device__ __forceinline__ void store_pair(const attn_tensor &t, char *row, int column, int columns,
                                           float x, float y)
{
    if (column >= columns) {
        return;
    }
    if (t.dtype == ATTN_F32) {
        *(float2 *)(row + (int64_t)column * 4) = make_float2(x, y);
    } else {
        *(uint32_t *)(row + (int64_t)column * 2) =
            t.dtype == ATTN_BF16 ? ptx::pack_half<true>(x, y) : ptx::pack_half<false>(x, y);
    }
}

/* 64 rows of sums times a factor to a gradient, of which `left` rows are there; and whether an
 * element of them is not finite. */
template <class S>
__device__ __forceinline__ bool store_sums(const attn_tensor &t, const float (&sum)[S::D / 2],
                                           float factor, int batch, int64_t first, int head,
                                           int left)
{
    const int lane = threadIdx.x % 32, columns = (int)t.shape[3];
    bool bad = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * half;
        if (r < left && t.data != NULL) {
            char *const row = attn_at(&t, batch, first + r, head, 0);
#pragma unroll
            for (int j = 0; j < S::D / 8; j++) {
                const float x = sum[4 * j + 2 * half] * factor,
                            y = sum[4 * j + 2 * half + 1] * factor;
                bad |= !(fabsf(x) < INFINITY) || !(fabsf(y) < INFINITY);
                store_pair(t, row, 8 * j + lane % 4 * 2, columns, x, y);
            }
        }
    }
    return bad;
}
