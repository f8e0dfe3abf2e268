/*
 * delta_sm90.cuh: LSE, and delta = dO.O - dLSE, of all rows, from 16-bit rows that are read 16
 * bytes at a time: D / 8 lanes a row. For f16 the sizes of dO and O as well (range_sm90.cuh). Of
 * many rows of bf16 beside the launch behind (delta_ahead): that reads memory, this one computes.
 */
#pragma once
#include "cuda/kernel/backward/clear_sm90.cuh"
#include "cuda/kernel/backward/range_sm90.cuh"
#include "cuda/kernel/ptx/bulk.cuh"
#include "cuda/kernel/rows/score.cuh"

template <bool BF16> __device__ __forceinline__ float dot_8(const uint4 &x, const uint4 &y)
{
    const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 p = ptx::unpack_half<BF16>(a[i]), q = ptx::unpack_half<BF16>(b[i]);
        sum = fmaf(p.x, q.x, sum);
        sum = fmaf(p.y, q.y, sum);
    }
    return sum;
}

/* A row of O: batch, row, head. */
struct RowPlace {
    int64_t b;
    int i, h;

    __device__ __forceinline__ RowPlace(const attn_problem &p, int64_t index)
    {
        const int64_t query = divide(index, p.heads);
        h = (int)(index - query * p.heads);
        b = divide(query, p.q.shape[1]);
        i = (int)(query - b * p.q.shape[1]);
    }
};

/* Reads 16 bytes of row `index` of all heads of all queries. Columns beyond the last, which a row
 * of a tensor may hold, count as 0. */
__device__ __forceinline__ uint4 load_8(const attn_problem &p, const attn_tensor &t, int64_t index,
                                        int column)
{
    const uint4 none = {0, 0, 0, 0};
    if (column >= t.shape[3]) {
        return none;
    }
    if (t.stride[1] == p.heads * t.stride[2] && t.stride[0] == p.q.shape[1] * t.stride[1]) {
        return *(const uint4 *)((const char *)t.data + (index * t.stride[2] + column) * 2);
    }
    const RowPlace at(p, index);
    return *(const uint4 *)attn_at(&t, at.b, at.i, at.h, column);
}

/* LSE and delta of a row. sums: dO.O, and for f16 dO.dO, O.O. */
template <bool BF16>
__device__ __forceinline__ void end_delta(const attn_cuda_backward_params &a, int64_t index,
                                          const float (&sums)[BF16 ? 1 : 3])
{
    const attn_problem &p = a.grads.problem;
    const RowPlace row(p, index);
    const int64_t at = (row.b * p.heads + row.h) * p.q.shape[1] + row.i;
    const float lse = load_real<float>(attn_at(&p.lse, row.b, row.i, row.h, 0), p.lse.dtype),
                d_lse = load_d_lse<float>(a.grads, row.b, row.i, row.h);
    ((float *)a.lse)[at] = lse == -INFINITY ? INFINITY : lse;
    ((float *)a.delta)[at] = sums[0] - d_lse;
    if constexpr (!BF16) {
        note_sizes(a, row.b, row.i, row.h, at, lse, d_lse, sums[1], sums[2]);
    }
}

/* Of 8192 / D rows: their sums by D / 8 lanes each, the rest by a thread each, since
 * places of rows take quotients. */
template <int DTYPE, int D>
__device__ __forceinline__ void delta_sm90(const attn_cuda_backward_params &a)
{
    constexpr bool BF16 = DTYPE == ATTN_BF16;
    constexpr int LANES = D / 8, ROWS = 256 / LANES, EACH = 4, SUMS = BF16 ? 1 : 3;
    __shared__ float shared[SUMS][EACH * ROWS];
    const attn_problem &p = a.grads.problem;
    const int64_t first = (int64_t)blockIdx.x * (EACH * ROWS);
    const int row = threadIdx.x / LANES, column = threadIdx.x % LANES * 8;
    const uint4 none = {0, 0, 0, 0};
    uint4 d_o[EACH], o[EACH];
    ptx::begin_next_launch();
    clear_words(a);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int64_t index = first + k * ROWS + row;
        const bool inside = index < a.rows;
        d_o[k] = inside ? load_8(p, a.grads.d_o, index, column) : none;
        o[k] = inside ? load_8(p, p.o, index, column) : none;
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        float sums[3] = {dot_8<BF16>(d_o[k], o[k])};
        if constexpr (!BF16) {
            sums[1] = dot_8<BF16>(d_o[k], d_o[k]), sums[2] = dot_8<BF16>(o[k], o[k]);
        }
#pragma unroll
        for (int n = 0; n < SUMS; n++) {
#pragma unroll
            for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
                sums[n] += __shfl_xor_sync(~0u, sums[n], lanes);
            }
            if (column == 0) {
                shared[n][k * ROWS + row] = sums[n];
            }
        }
    }
    __syncthreads();
    const int64_t index = first + threadIdx.x;
    if (threadIdx.x < EACH * ROWS && index < a.rows) {
        float sums[SUMS];
#pragma unroll
        for (int n = 0; n < SUMS; n++) {
            sums[n] = shared[n][threadIdx.x];
        }
        end_delta<BF16>(a, index, sums);
    }
}

/* 32 rows of a query head, a unit of a warp of delta_ahead, a row for each lane. They are loaded in
 * steps. */
template <int D> struct DeltaUnit {
    static constexpr int LANES = D / 8, AT_ONCE = 32 / LANES, EACH = 4, STEP = EACH * AT_ONCE,
                         STEPS = ATTN_GRAD_UNIT_ROWS / STEP;
    uint4 d_o[EACH], o[EACH];
    const char *d_o_next, *o_next; /* what the lane loads next */
    int left;                      /* rows from there on */
    int64_t place;                 /* of the lane's row among LSE and delta; -1: it is not there */
    float lse, d_lse;

    /* Units are numbered from the last head of all sequences on. */
    __device__ __forceinline__ void begin(const attn_cuda_backward_params &a, uint32_t unit)
    {
        const attn_problem &p = a.grads.problem;
        const uint32_t heads = (uint32_t)p.heads, behind = unit / a.units,
                       at = (uint32_t)p.batch * heads - 1 - behind, b = at / heads;
        const int lane = threadIdx.x % 32, column = lane % LANES * 8, rows = (int)p.q.shape[1],
                  head = (int)(at - b * heads),
                  first = (int)(unit - behind * a.units) * ATTN_GRAD_UNIT_ROWS,
                  row = first + lane / LANES, own = first + lane;
        d_o_next = (const char *)attn_at(&a.grads.d_o, b, row, head, column);
        o_next = (const char *)attn_at(&p.o, b, row, head, column);
        left = column < p.o.shape[3] ? rows - row : 0;
        place = own < rows ? (int64_t)at * rows + own : -1;
        if (place >= 0) {
            lse = load_real<float>(attn_at(&p.lse, b, own, head, 0), p.lse.dtype);
            d_lse = load_d_lse<float>(a.grads, b, own, head);
        }
        load(a);
    }

    __device__ __forceinline__ void load(const attn_cuda_backward_params &a)
    {
        const int64_t d_o_step = 2 * AT_ONCE * a.grads.d_o.stride[1],
                      o_step = 2 * AT_ONCE * a.grads.problem.o.stride[1];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            d_o[k] = ptx::load_once(d_o_next, k * AT_ONCE < left);
            o[k] = ptx::load_once(o_next, k * AT_ONCE < left);
            d_o_next += d_o_step, o_next += o_step;
        }
        left -= STEP;
    }

    /* dO.O of row number lane % STEP of those loaded, in the order of delta_sm90: lanes that
     * exchange sums keep half of the rows each. */
    __device__ __forceinline__ float sum() const
    {
        const int lane = threadIdx.x % 32;
        float sums[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            sums[k] = dot_8<true>(d_o[k], o[k]);
        }
        int lanes = LANES / 2;
#pragma unroll
        for (int keep = EACH / 2; keep > 0; keep /= 2, lanes /= 2) {
            const bool upper = (lane & lanes) != 0;
#pragma unroll
            for (int k = 0; k < keep; k++) {
                const float lower = sums[k], other = sums[k + keep];
                sums[k] =
                    (upper ? other : lower) + __shfl_xor_sync(~0u, upper ? lower : other, lanes);
            }
        }
#pragma unroll
        for (; lanes > 0; lanes /= 2) {
            sums[0] += __shfl_xor_sync(~0u, sums[0], lanes);
        }
        return __shfl_sync(~0u, sums[0],
                           lane % AT_ONCE * LANES + lane % STEP / AT_ONCE * (LANES / EACH));
    }
};

/* LSE and delta of bf16 by few CTAs, beside which the ordered kernel begins on other
 * multiprocessors: the last head of all sequences first, as items do. CTA c has chunks of units
 * c, c + CTAs and so on, and says which one is next (await_delta). That launch begins when all CTAs
 * of this one run, so it waits for none that does not run.
 *
 * That launch sees words that are cleared, and no older chunk: nothing but griddepcontrol.wait
 * orders it behind this one by PTX's model, but a CTA lets it begin behind a fence of the whole GPU
 * that follows the barrier behind all of the CTA's stores, so these are in the L2 cache when its
 * first CTA starts, which reads them there (atomics, acquiring loads). LSE and delta are ordered by
 * the model itself: stores, the barrier, st.release of the chunk, ld.acquire of each lane of the
 * warp that loads them, __syncwarp. */
template <int D> __device__ __forceinline__ void delta_ahead(const attn_cuda_backward_params &a)
{
    enum { WARPS = ATTN_GRAD_AHEAD_THREADS / 32, UNITS = ATTN_GRAD_CHUNK_UNITS };
    static_assert(UNITS == WARPS, "a unit of each warp");
    const uint32_t all = (uint32_t)(a.grads.problem.batch * a.grads.problem.heads) * a.units,
                   warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    uint32_t chunk = blockIdx.x;
    DeltaUnit<D> unit;
    clear_words<ATTN_GRAD_AHEAD_THREADS>(a);
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::store_release(a.next_chunk + blockIdx.x, chunk);
        ptx::fence_gpu(); /* all words are cleared */
        ptx::begin_next_launch();
    }
    unit.place = -1, unit.left = 0; /* a warp without a unit loads nothing */
    if (chunk * UNITS + warp < all) {
        unit.begin(a, chunk * UNITS + warp);
    }
#pragma unroll 1
    while (chunk * UNITS < all) {
        const int64_t place = unit.place;
        const float lse = unit.lse, d_lse = unit.d_lse;
        float delta = 0;
#pragma unroll 1
        for (int step = 0;; step++) {
            const float sum = unit.sum();
            delta = lane / DeltaUnit<D>::STEP == step ? sum : delta;
            if (step + 1 == DeltaUnit<D>::STEPS) {
                break;
            }
            unit.load(a);
        }
        chunk += gridDim.x;
        unit.place = -1, unit.left = 0;
        if (chunk * UNITS + warp < all) {
            unit.begin(a, chunk * UNITS + warp);
        }
        if (place >= 0) {
            ((float *)a.lse)[place] = lse == -INFINITY ? INFINITY : lse;
            ((float *)a.delta)[place] = delta - d_lse;
        }
        __syncthreads(); /* all have written */
        if (threadIdx.x == 0) {
            ptx::store_release(a.next_chunk + blockIdx.x, chunk);
        }
    }
}
