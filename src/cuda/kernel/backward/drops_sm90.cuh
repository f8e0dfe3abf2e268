/*
 * drops_sm90.cuh: what becomes of P^T and dS^T of 64 keys where dropout drops elements. A bit says
 * so of each (steps_sm90.cuh), then the sign of P, and 0 in the packed P.
 */
#pragma once
#include "cuda/kernel/backward/turns_sm90.cuh"
#include "cuda/kernel/rows/kept_sm90.cuh"

/* The counter of a lane's first call of Philox for a tile of a stream, whose first key and row for
 * the lane these are. A call is for two neighbouring keys, which two lanes have. So one of them
 * calls it for the even rows, one for the odd rows. */
__device__ __forceinline__ uint4 lane_call(int lane, int key, int row, uint64_t stream)
{
    return {attn_dropout_keys((uint32_t)key), attn_dropout_rows((uint32_t)row) + lane / 4 % 2,
            (uint32_t)stream, (uint32_t)(stream >> 32)};
}

/* The same for tile n of an item of sequences without origins. tiles: in shared memory, of each
 * stage the tile's first row, then of each the words of its stream (loader_sm90.cuh). */
template <class S>
__device__ __forceinline__ uint4 tile_call(const OrderedItem &o, const int *tiles, int group,
                                           uint32_t n)
{
    const int lane = thread_number() % 32, at = n % S::STAGES, warp = thread_number() / 32 % 4;
    return lane_call(
        lane, (int)o.item.first + 64 * group + 16 * warp + lane / 4, tiles[at] + lane % 4 * 2,
        (uint64_t)(uint32_t)tiles[2 * S::STAGES + at] << 32 | (uint32_t)tiles[S::STAGES + at]);
}

/* Finds what such a call and those behind it drop: bit drop_bit(e) of word e / 32 for element e.
 * All lanes of the warp. */
template <int WORDS>
__device__ __forceinline__ void find_calls(const attn_cuda_backward_params &a, const uint4 &first,
                                           uint32_t (&words)[WORDS])
{
    uint32_t kept[WORDS];
    find_kept(a.dropout, a.grads.problem.dropout.limit, first, kept);
    const uint32_t which = ptx::thread() / 4 % 2 ? 0x3276 : 0x5410;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        words[i] = ~ptx::permute(kept[i], __shfl_xor_sync(~0u, kept[i], 4), which);
    }
}

/* The bit of element e in its word, which is for 32. */
__device__ __forceinline__ constexpr int drop_bit(int e)
{
    return e % 2 * 16 + e / 8 % 4 * 4 + e / 2 % 2 * 2 + e / 4 % 2;
}

/* The element of bit i % 32 of word i / 32. In the order of bits one instruction makes predicates
 * of seven. */
__device__ __forceinline__ constexpr int element_of(int i)
{
    return i / 32 * 32 + i / 16 % 2 + i / 4 % 4 * 8 + i / 2 % 2 * 2 + i % 2 * 4;
}

/* Makes P^T of what dropout drops negative, of ROWS rows from FROM on. */
template <int FROM, int ROWS, int N>
__device__ __forceinline__ void mark_dropped(float (&p)[N], const uint32_t (&words)[N / 32])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int e = element_of(i);
        if (2 * e >= FROM && 2 * e < FROM + ROWS) {
            p[e] = words[i / 32] >> i % 32 & 1 ? -p[e] : p[e];
        }
    }
}

/* Packs P^T of ROWS rows from FROM on: 0 where it is negative. */
template <bool BF16, int FROM, int ROWS, int N>
__device__ __forceinline__ void pack_kept(const float (&p)[N], uint32_t (&packed)[ROWS / 4])
{
#pragma unroll
    for (int i = 0; i < ROWS / 4; i++) {
        packed[i] = ptx::pack_positive<BF16>(p[FROM / 2 + 2 * i], p[FROM / 2 + 2 * i + 1]);
    }
}

/* Packs P^T of those rows, with dropout of what is kept. Without the question kernels spill. */
template <bool BF16, int FROM, int ROWS, int N>
__device__ __forceinline__ void pack_weights(const float (&p)[N], uint32_t (&packed)[ROWS / 4],
                                             bool drops)
{
    if (drops) {
        pack_kept<BF16, FROM, ROWS>(p, packed);
    } else {
        pack_probabilities<BF16, FROM, ROWS>(p, packed);
    }
}

/* Adds to a thread's sums of P of its two keys, of ROWS rows from FROM on, unless they are enough
 * or not asked for: what dropout keeps, if it is on, and a number too small for a sum where a P is
 * not 0. */
template <bool BF16, int FROM, int ROWS, int N>
__device__ __forceinline__ void note_weights(const float (&p)[N], bool drops, bool enough)
{
    if (BF16 || enough) {
        return;
    }
    uint32_t any[2] = {};
    float sum[2] = {};
#pragma unroll
    for (int e = FROM / 2; e < (FROM + ROWS) / 2; e++) {
        any[e / 2 % 2] |= __float_as_uint(p[e]);
    }
    if (drops) {
#pragma unroll
        for (int e = FROM / 2; e < (FROM + ROWS) / 2; e++) {
            sum[e / 2 % 2] += fmaxf(p[e], 0);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] = any[i] << 1 != 0 ? sum[i] + 0x1p-100f : sum[i];
    }
    add_terms(shared_terms(0), sum[0], sum[1]);
}

/* Makes dP^T of what dropout drops 0, of ROWS rows from FROM on.
 * FIRST: that dP^T begins with. */
template <int FROM, int ROWS, int FIRST, int N, int WORDS>
__device__ __forceinline__ void drop_gradients(float (&dp)[N], const uint32_t (&words)[WORDS])
{
#pragma unroll
    for (int i = 0; i < 32 * WORDS; i++) {
        const int e = element_of(i);
        if (2 * e >= FROM && 2 * e < FROM + ROWS) {
            dp[e - FIRST / 2] = words[i / 32] >> i % 32 & 1 ? 0 : dp[e - FIRST / 2];
        }
    }
}

/* Computes and packs dS^T = |s| (dP^T - delta) of ROWS rows from FROM on. FIRST: that dP^T begins
 * with. unit: as score_gradient() has it. */
template <bool BF16, int FROM, int ROWS, int FIRST, int N, int M>
__device__ __forceinline__ void pack_absolute(const float (&s)[N], const float (&dp)[M],
                                              uint32_t delta, float unit, uint32_t (&ds)[N / 2])
{
    pack_gradients<BF16, FROM, ROWS>(delta, ds, [&](int e, float base) {
        return score_gradient<BF16>(fabsf(s[e]), dp[e - FIRST / 2], base, unit);
    });
}

/* Computes and packs dS^T of ROWS rows from FROM on: |s| (dP^T - delta), with dP^T times kept where
 * dropout keeps the element, and 0 where s is negative. PARTS: as max(s, 0) dP^T - |s| delta, which
 * takes fewer registers in kernels that spill else. */
template <bool BF16, int FROM, int ROWS, bool PARTS, int N>
__device__ __forceinline__ void pack_step_scores(const float (&s)[N], const float (&dp)[N],
                                                 float kept, uint32_t delta, uint32_t (&ds)[N / 2])
{
    pack_gradients<BF16, FROM, ROWS>(delta, ds, [&](int e, float base) {
        const float weight = s[e];
        return PARTS ? fmaf(fmaxf(weight, 0) * kept, dp[e], -(fabsf(weight) * base))
                     : weight * (signbit(weight) ? base : fmaf(dp[e], kept, -base));
    });
}
