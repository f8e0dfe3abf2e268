/*
 * single_f32_sm90.cuh: gradients of f32 on sm_90a where a head has 64 rows and 64 keys at most, all
 * in one launch, since others would take longer than the work. Its code runs once and comes from
 * the L2, so there is little of it: rows are read in fours, places come from the host
 * (attn_cuda_grad_single). Sums, and so bits, are those of ordered_f32_sm90.cuh and its neighbours.
 * Lengths, groups of heads and rows that are not aligned are left to these (backward/split.c).
 *
 *     1   K, Q, V split | S^T, dP^T issued | P^T | dV issued | dS^T | dK issued, dV stored | dK
 *     2   K, Q, dO split | delta                                    | dQ | stored
 *
 * Named barriers: 1: the second warpgroup; 2: delta is there; 3: dS^T; 4: K, Q, V, dO, LSE. The
 * warpgroups come to 4 in different places, which is not for __syncthreads.
 */
#pragma once
#include "cuda/kernel/backward/operands_sm90.cuh"
#include "cuda/kernel/backward/results_generic.cuh"
#include "cuda/kernel/load/load.cuh"

/* Shared memory: K, Q, dO, dS^T in parts; LSE and delta; tensors as they come. */
struct SingleShape {
    static constexpr int D = 64, FIXED = 64, PART = 64 * 64 * 2, FIXED_PART = PART,
                         SCORES_PART = PART, TILE_BYTES = 3 * PART, RAW_BYTES = 64 * 64 * 4,
                         RAW_AT = 4 * TILE_BYTES + 2 * 64 * 4;
    static_assert(RAW_AT + 5 * RAW_BYTES + ATTN_SM90_ALIGN == ATTN_GRAD_SINGLE_BYTES &&
                      ATTN_GRAD_SINGLE_BYTES >= sizeof(GradShared<float>),
                  "shape.h");
};
enum SingleTile { SINGLE_K, SINGLE_Q, SINGLE_D_O, SINGLE_SCORES, SINGLE_STATISTICS };
enum SingleRaw { SINGLE_RAW_K, SINGLE_RAW_Q, SINGLE_RAW_D_O, SINGLE_RAW_O, SINGLE_RAW_V };

/* A CTA's head. */
struct SingleHead {
    const attn_cuda_grad_single &s;
    uint32_t memory; /* its beginning, aligned */
    int batch, head;

    __device__ __forceinline__ uint32_t tile(int which) const
    {
        return memory + which * SingleShape::TILE_BYTES;
    }
    __device__ __forceinline__ uint32_t raw(int which) const
    {
        return memory + SingleShape::RAW_AT + which * SingleShape::RAW_BYTES;
    }
    __device__ __forceinline__ uint32_t lse() const
    {
        return tile(SINGLE_STATISTICS);
    }
    __device__ __forceinline__ uint32_t delta() const
    {
        return tile(SINGLE_STATISTICS) + 64 * 4;
    }
    /* The address of an element, computed once and not for each access. */
    __device__ __forceinline__ char *at(const attn_cuda_place &t, int row, int column) const
    {
        return t.data + (batch * t.batch + head * t.head) +
               ptx::opaque_wide(row * (int64_t)(int32_t)t.row + column * 4);
    }
};

/* A thread's fours of a tensor, by so many threads: copied as they are, so that they wait for
 * nobody and in no registers, then split. */
template <int THREADS_> struct SingleFours {
    static constexpr int COUNT = 1024 / THREADS_;
    Fours<64, THREADS_> at;

    __device__ __forceinline__ SingleFours() : at(threadIdx.x % THREADS_)
    {
    }
    __device__ __forceinline__ uint32_t place(uint32_t raw, int n) const
    {
        return raw + (threadIdx.x % THREADS_ + n * THREADS_) * 16;
    }
    __device__ __forceinline__ void copy(const SingleHead &h, SingleRaw which,
                                         const attn_cuda_place &t, int rows, int columns) const
    {
        const char *from = h.at(t, at.row, at.column);
#pragma unroll
        for (int n = 0; n < COUNT; n++, from += at.STEP * t.row) {
            ptx::copy_async_or_zero<16>(place(h.raw(which), n), from,
                                        at.row + n * at.STEP < rows && at.column < columns);
        }
    }
    /* Splits fours FROM .. FROM + 3. */
    __device__ __forceinline__ void split(uint32_t tile, uint32_t raw, int from) const
    {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            store_parts(at.template place<64>(tile + from * at.STEP * 128, n), SingleShape::PART,
                        ptx::load_shared_16(place(raw, from + n)));
        }
    }
};

/* K and Q, by both warpgroups. */
__device__ __forceinline__ void single_copy(const SingleHead &h)
{
    const SingleFours<256> fours;
    fours.copy(h, SINGLE_RAW_K, h.s.k, h.s.band.keys, h.s.d);
    fours.copy(h, SINGLE_RAW_Q, h.s.q, h.s.band.rows, h.s.d);
    ptx::copy_async_commit();
}
__device__ __forceinline__ void single_split(const SingleHead &h)
{
    const SingleFours<256> fours;
#pragma unroll 1
    for (int which = 0; which < 2; which++) {
        fours.split(h.tile(which), h.raw(which), 0);
    }
}

/* A thread's keys of V, key and key + 8, as operands of dP^T lie. Beyond the last key that one
 * comes once more, whose P is 0 there. */
struct SingleValues {
    static __device__ __forceinline__ uint32_t place(const SingleHead &h, int i)
    {
        return h.raw(SINGLE_RAW_V) + (i * 128 + threadIdx.x) * 8;
    }
    static __device__ __forceinline__ void copy(const SingleHead &h)
    {
        const int key = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2,
                  last = h.s.band.keys - 1;
        const char *const from[2] = {h.at(h.s.v, min(key, last), column),
                                     h.at(h.s.v, min(key + 8, last), column)};
#pragma unroll
        for (int i = 0; i < 16; i++) {
            ptx::copy_async_or_zero<8>(place(h, i), from[i % 2] + i / 2 * 32,
                                       column + i / 2 * 8 < h.s.dv);
        }
        ptx::copy_async_commit();
    }
    static __device__ __forceinline__ void split(const SingleHead &h, Operand &to)
    {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float2 x = ptx::load_shared_8(place(h, i));
            uint32_t parts[3];
            mma::split(x.x, x.y, parts);
            to[0][i] = parts[0], to[1][i] = parts[1], to[2][i] = parts[2];
        }
    }
};

/* Scales and stores a sum that was fresh. Returns whether an element is not finite. */
__device__ __forceinline__ bool single_store(const attn_cuda_place &t, const float (&fresh)[32],
                                             float factor, const SingleHead &h, int rows,
                                             int columns)
{
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    return t.data != NULL &&
           store_floats(h.at(t, row, column), t.row, fresh, factor, rows - row, columns - column);
}

/* The first warpgroup: dV and dK, and dS^T for the other one. Returns whether some of it is not
 * finite. */
__device__ __forceinline__ bool single_keys(const SingleHead &h)
{
    const attn_band band = h.s.band;
    const uint32_t never = h.head;
    Operand x, y;
    float s[32], dp[32], fresh[32];
    single_copy(h);
    SingleValues::copy(h);
    ptx::copy_async_wait<1>();
    single_split(h);
    ptx::copy_async_wait<0>();
    SingleValues::split(h, x);
    ptx::fence_proxy_async();
    ptx::barrier_sync(4, 256);
    load_operand<SingleShape>(y, h.tile(SINGLE_K), 0);
    begin_product(y);
    issue_split<0, SingleShape::PART>(s, y, h.tile(SINGLE_Q));
    begin_product(x);
    issue_split<0, SingleShape::PART>(dp, x, h.tile(SINGLE_D_O));
    end_product<1>(s, y, never);
    const bool masked = 63 + band.from > 0 || min(band.to, band.keys) < 64;
    make_probabilities(s, h.s.scale, h.lse(), band, masked, 0, 0, y);
    end_product(dp, x, never);
    begin_product(y);
    issue_split<1, SingleShape::PART>(fresh, y, h.tile(SINGLE_D_O));
    ptx::barrier_sync(2, 256);
    make_scores(s, dp, h.delta(), x);
    stage_parts<SingleShape>(h.tile(SINGLE_SCORES), x);
    ptx::barrier_arrive(3, 256);
    end_product(fresh, y, never);
    begin_product(x);
    issue_split<1, SingleShape::PART>(s, x, h.tile(SINGLE_Q));
    const bool bad = single_store(h.s.d_v, fresh, 1, h, band.keys, h.s.dv);
    end_product(s, x, never);
    return single_store(h.s.d_k, s, h.s.scale, h, band.keys, h.s.d) || bad;
}

/* Puts delta = dO.O - dLSE in shared memory, and with LSE in its array, which sums of others read
 * (sums_generic.cuh). lse, d_lse: of row `row`. */
__device__ __forceinline__ void single_delta(const attn_cuda_backward_params &a,
                                             const SingleHead &h, int row, float lse, float d_lse)
{
    const SingleFours<128> fours;
#pragma unroll
    for (int n = 0; n < fours.COUNT; n++) {
        const uint4 d_o = ptx::load_shared_16(fours.place(h.raw(SINGLE_RAW_D_O), n)),
                    o = ptx::load_shared_16(fours.place(h.raw(SINGLE_RAW_O), n));
        const float sum = add_lanes<16>(dot_four(as_floats(d_o), as_floats(o)));
        if (fours.at.column == 0) {
            ptx::store_shared_4(h.delta() + 4 * (fours.at.row + n * fours.at.STEP), sum);
        }
    }
    ptx::barrier_sync(1, 128);
    if (row < h.s.band.rows) {
        const float delta = __uint_as_float(ptx::load_shared_4(h.delta() + 4 * row)) - d_lse;
        const int64_t at = ((int64_t)h.batch * gridDim.x + h.head) * h.s.band.rows + row;
        ptx::store_shared_4(h.delta() + 4 * row, delta);
        ((float *)a.lse)[at] = lse, ((float *)a.delta)[at] = delta;
    }
    ptx::barrier_sync(2, 256);
}

/* The second warpgroup: dO, delta, dQ. */
__device__ __forceinline__ bool single_rows(const attn_cuda_backward_params &a, const SingleHead &h)
{
    const int rows = h.s.band.rows, row = threadIdx.x % 128;
    const SingleFours<128> fours;
    single_copy(h);
    fours.copy(h, SINGLE_RAW_D_O, h.s.d_o, rows, h.s.dv);
    fours.copy(h, SINGLE_RAW_O, h.s.o, rows, h.s.dv);
    ptx::copy_async_commit();
    float lse = *(const float *)h.at(h.s.lse, min(row, rows - 1), 0),
          d_lse = *(const float *)h.at(h.s.d_lse, min(row, rows - 1), 0);
    ptx::copy_async_wait<1>();
    single_split(h);
    ptx::copy_async_wait<0>();
#pragma unroll 1
    for (int n = 0; n < fours.COUNT; n += 4) {
        fours.split(h.tile(SINGLE_D_O), h.raw(SINGLE_RAW_D_O), n);
    }
    lse = row >= rows || lse == -INFINITY ? INFINITY : lse; /* no key: P = e^(S - inf) = 0 */
    d_lse = h.s.has_d_lse ? d_lse : 0;
    if (row < 64) {
        ptx::store_shared_4(h.lse() + 4 * row, lse);
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(4, 256);
    single_delta(a, h, row, lse, d_lse);
    Operand x;
    float fresh[32];
    ptx::barrier_sync(3, 256);
    load_scores<SingleShape>(x, h.tile(SINGLE_SCORES), 0);
    begin_product(x);
    issue_split<1, SingleShape::PART>(fresh, x, h.tile(SINGLE_K));
    end_product(fresh, x, h.head);
    return single_store(h.s.d_q, fresh, h.s.scale, h, rows, h.s.d);
}

/* Does results that are not finite again, without products of positions that are masked. */
__device__ __forceinline__ void single_again(const attn_cuda_backward_params &a,
                                             const SingleHead &h, bool keys, bool rows)
{
    __shared__ GradItem item;
    if (threadIdx.x == 0) {
        item = {attn_problem_whole_sequence(&a.grads.problem, h.batch), h.head};
    }
    __syncthreads();
    if (keys) {
        keys_results<float>(a, item, 0);
    }
    if (rows) {
        rows_results<float>(a, item, 0);
    }
}

/* A CTA for each head of each sequence: grid (heads, sequences). */
__device__ __forceinline__ void single_f32_sm90(const attn_cuda_backward_params &a)
{
    extern __shared__ unsigned char shared[];
    const uint32_t start = ptx::shared_address(shared);
    const SingleHead h = {a.single, start + (-start & 1023), (int)blockIdx.y, (int)blockIdx.x};
    const bool keys = ptx::uniform(threadIdx.x / 128) == 0,
               bad = keys ? single_keys(h) : single_rows(a, h);
    if (__syncthreads_or(bad)) {
        const bool bad_keys = __syncthreads_or(keys && bad),
                   bad_rows = __syncthreads_or(!keys && bad);
        single_again(a, h, bad_keys, bad_rows);
    }
}
