/*
 * keys_sm90.cuh: what kernels that own 64 keys a warpgroup share (ordered_sm90.cuh, wide_sm90.cuh).
 * Scores lie transposed, keys along the rows of the accumulators, so that P and dS are in registers
 * as the left operands of dV and dK.
 */
#pragma once
#include "cuda/kernel/backward/shape_sm90.cuh"

template <class S>
__device__ __forceinline__ GradBlocks row_blocks(const attn_problem &p, const GradItem &item)
{
    const attn_interval rows = grad_rows_of_keys(p, item.sequence, item.first, S::KEYS);
    const int first = (int)(rows.lo / S::STEP);
    const int last = (int)((rows.hi + S::STEP - 1) / S::STEP);
    return {first, rows.lo < rows.hi ? last - first : 0, (int)p.group};
}

/* Loads LSE, as the shape has it, and delta of STEP rows; a row that is not there has P = 0. One
 * warp. */
template <class S>
__device__ __forceinline__ void load_statistics(const attn_cuda_backward_params &a,
                                                const GradMemory<S> &memory, const GradItem &item,
                                                int head, int row, uint32_t n, float unit)
{
    const int64_t place = grad_row_place(a.grads.problem, item.sequence, head);
    for (int r = threadIdx.x % 32; r < S::STEP; r += 32) {
        const bool inside = row + r < item.sequence.nq_used;
        const float lse = inside ? ((const float *)a.lse)[place + row + r] : INFINITY,
                    delta = inside ? ((const float *)a.delta)[place + row + r] : 0;
        ptx::store_shared_4(memory.statistics(n) + 4 * r, S::statistic(lse));
        ptx::store_shared_4(memory.statistics(n) + 4 * (S::STEP + r), delta * unit);
    }
}

/* Makes exponents of P^T of S^T: 64 keys, and rows FROM .. FROM + ROWS - 1 of a tile. */
template <int FROM, int ROWS, int N>
__device__ __forceinline__ void make_exponents(float (&s)[N], float c, uint32_t lse)
{
#pragma unroll
    for (int j = FROM / 8; j < (FROM + ROWS) / 8; j++) {
        const float2 x = ptx::load_shared_8(lse + 32 * j);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[4 * j + i] = fmaf(s[4 * j + i], c, -(i % 2 ? x.y : x.x));
        }
    }
}

/* Makes exponents minus infinity where the band hides. key, row: the thread's first ones in the
 * tile. */
template <int FROM, int ROWS, int N>
__device__ __forceinline__ void hide_by_band(float (&s)[N], const attn_band &band, int key, int row)
{
#pragma unroll
    for (int i = FROM / 2; i < (FROM + ROWS) / 2; i++) {
        const int k = key + i / 2 % 2 * 8, r = row + i / 4 * 8 + i % 2;
        const bool seen = k >= r + band.from && k < min(r + band.to, band.keys);
        s[i] = seen ? s[i] : -INFINITY;
    }
}

/* Makes P^T of its exponents. key, row: as above. */
template <int FROM, int ROWS, int N>
__device__ __forceinline__ void raise_exponents(float (&s)[N], const attn_band &band, bool masked,
                                                int key, int row)
{
    if (masked) {
        hide_by_band<FROM, ROWS>(s, band, key, row);
    }
#pragma unroll
    for (int i = FROM / 2; i < (FROM + ROWS) / 2; i++) {
        s[i] = ptx::exp2(s[i]);
    }
}

/* Makes exponents of hidden keys (hidden_sm90.cuh) no larger than those of others can be: P of f16
 * is finite then. A NaN stays. */
template <bool BF16, int FROM, int ROWS, int N>
__device__ __forceinline__ void limit_exponents(float (&s)[N])
{
    constexpr float MOST = (BF16 ? 0 : LIFT) + 0.5f;
#pragma unroll
    for (int i = FROM / 2; i < (FROM + ROWS) / 2; i++) {
        s[i] = s[i] > MOST ? MOST : s[i];
    }
}

/* Makes P^T of S^T. hides: keys may be hidden. */
template <bool BF16, int FROM, int ROWS, int N>
__device__ __forceinline__ void probabilities(float (&s)[N], float c, uint32_t lse,
                                              const attn_band &band, bool masked, bool hides,
                                              int key, int row)
{
    make_exponents<FROM, ROWS>(s, c, lse);
    if (!BF16 && hides) {
        limit_exponents<BF16, FROM, ROWS>(s);
    }
    raise_exponents<FROM, ROWS>(s, band, masked, key, row);
}

/* Packs P^T of those rows. */
template <bool BF16, int FROM, int ROWS, int N>
__device__ __forceinline__ void pack_probabilities(const float (&p)[N],
                                                   uint32_t (&packed)[ROWS / 4])
{
#pragma unroll
    for (int i = 0; i < ROWS / 4; i += 2) {
        const float *const x = &p[FROM / 2 + 2 * i];
        packed[i] = ptx::pack_half<BF16>(x[0], x[1]);
        packed[i + 1] = ptx::pack_half<BF16>(x[2], x[3]);
    }
}

/* Computes dS = P (dP - delta); delta has the factor that dP gets. */
template <bool BF16>
__device__ __forceinline__ float score_gradient(float p, float dp, float delta, float unit)
{
    return p * (BF16 ? dp - delta : fmaf(dp, unit, -delta));
}

/* Packs dS^T of ROWS rows from FROM on: gradient(e, delta) of each element. */
template <bool BF16, int FROM, int ROWS, class Gradient, int N>
__device__ __forceinline__ void pack_gradients(uint32_t delta, uint32_t (&ds)[N],
                                               const Gradient &gradient)
{
#pragma unroll
    for (int j = FROM / 8; j < (FROM + ROWS) / 8; j++) {
        const float2 base = ptx::load_shared_8(delta + 32 * j);
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = gradient(4 * j + i, i % 2 ? base.y : base.x);
        }
        ds[2 * j] = ptx::pack_half<BF16>(x[0], x[1]);
        ds[2 * j + 1] = ptx::pack_half<BF16>(x[2], x[3]);
    }
}

/* Computes and packs dS^T = P^T (dP^T - delta) of those rows. */
template <bool BF16, int FROM, int ROWS, int N>
__device__ __forceinline__ void pack_scores(const float (&p)[N], const float (&dp)[N],
                                            uint32_t delta, float unit, uint32_t (&ds)[N / 2])
{
    pack_gradients<BF16, FROM, ROWS>(delta, ds, [&](int e, float base) {
        return score_gradient<BF16>(p[e], dp[e], base, unit);
    });
}

/* Stores dS^T of 64 keys, packed, in shared memory as dQ = dS K takes it: keys along the rows. */
template <class S>
__device__ __forceinline__ void stage_scores(uint32_t to, const uint32_t (&ds)[S::STEP / 4])
{
    /* kernels with any steps spill else */
    const int thread = S::STEPPED ? ptx::thread() : thread_number(), lane = thread % 32,
              key = (thread - 128) / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
    const uint32_t first = to + key * 128 + (lane / 16 ^ lane % 8) * 16;
#pragma unroll
    for (int j = 0; j < S::STEP / 8; j += 2) { /* pieces j and j + 1: the lower bit is in first */
        ptx::store_matrices((first ^ j % 8 * 16) + j / 8 * 128 * 128, ds[2 * j], ds[2 * j + 1],
                            ds[2 * j + 2], ds[2 * j + 3]);
    }
}

/* A warpgroup's sums of 64 keys, and an operand that products still read: dS^T of the tile
 * before. */
template <class S> struct KeySums {
    float dk[S::COLUMNS / 2], dv[S::COLUMNS / 2];
    uint32_t ds[S::STEP / 4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 2; i++) {
            dk[i] = 0, dv[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < S::STEP / 4; i++) {
            ds[i] = 0;
        }
    }

    /* Before any product: ptxas serialises all of them if zeros come between. */
    __device__ __forceinline__ void hold_all()
    {
        wgmma::hold(dk);
        wgmma::hold(dv);
    }

    /* Takes the factors of P and dS out of the sums. kept: the factor of what dropout keeps, which
     * is not in dV; nor in dK, if LIGHT (turns_sm90.cuh). */
    __device__ __forceinline__ void lower(float unit, float kept)
    {
        const float keys = power_of_2(-LIFT) / unit, values = S::BF16 ? 1 : power_of_2(-LIFT);
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 2; i++) {
            if constexpr (!S::BF16) {
                dk[i] *= keys;
            }
            if constexpr (S::OUTSIDE) {
                dk[i] *= kept;
            }
            if constexpr (S::DROPS || !S::BF16) {
                dv[i] *= values * kept;
            }
        }
    }

    /* Waits for the products of a tile. */
    __device__ __forceinline__ void hold_keys(uint32_t n)
    {
        wgmma::hold(dk);
        wgmma::keep(ds, n);
    }
};
