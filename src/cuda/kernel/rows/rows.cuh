/*
 * rows.cuh: the state of a warp's 16 query rows between tile products, and their end. Shared by
 * forward_sm90 and forward_sm80: the accumulators of wgmma and of mma lie in a warp's threads alike
 * (wgmma.cuh).
 */
#pragma once
#include "cuda/kernel/rows/epilogue.cuh"
#include "cuda/kernel/schedule.cuh"
#include "cuda/kernel/rows/score.cuh"

/* A thread has two rows: lane / 4 of the warp's 16 and the one 8 further. */
template <int D> struct Rows {
    float o[D / 2];
    RowState state[2];
};

/* The warp's place: the first of its rows within the item, room in shared memory for the keys that
 * each of the 16 sees, and the columns of O that it has. */
struct WarpRows {
    static constexpr bool PAGED = false; /* keys may lie in pages */
    static constexpr bool DROPS = false; /* some of P has been dropped (dropped.cuh) */
    int first;
    int2 *bounds;
    int width = 0; /* columns of O that a group has; 0: all */

    /* Of O, the first one that the group has. Opaque, or a register would be kept for it. */
    __device__ __forceinline__ int column() const
    {
        return width == 0 ? 0 : (ptx::opaque(threadIdx.x) / 128 - 1) * width;
    }
    /* Place in the sequence, and head, of the warp's i-th row. */
    __device__ __forceinline__ int row(const Item &item, int i) const
    {
        return (int)item.first_row + first + i;
    }
    __device__ __forceinline__ int head(const Item &item, int) const
    {
        return item.head;
    }
    /* The 16 are rows of O one after the other, which are all to be written. */
    __device__ __forceinline__ bool whole(const Item &) const
    {
        return true;
    }
    /* The same, and all in use: but for those beyond the tensor. */
    __device__ __forceinline__ bool boxed(const Item &) const
    {
        return true;
    }
};

/* The same where rows of `fold` heads take turns: 64 rows of a tile are `piece` rows of each. What
 * is left over is beyond every sequence. */
struct FoldedRows : WarpRows {
    const attn_cuda_schedule &s;

    __device__ __forceinline__ FoldedRows(const WarpRows &rows, const attn_cuda_schedule &s_)
        : WarpRows(rows), s(s_)
    {
    }
    __device__ __forceinline__ int row(const Item &item, int i) const
    {
        const int within = place(i) * s.inverse >> 16;
        return within < s.piece ? (int)item.first_row + first / 64 * s.piece + within : 1 << 30;
    }
    __device__ __forceinline__ int head(const Item &item, int i) const
    {
        return item.head + place(i) - (place(i) * s.inverse >> 16) * s.fold;
    }
    __device__ __forceinline__ int place(int i) const
    {
        return first % 64 + i;
    }
    __device__ __forceinline__ bool whole(const Item &item) const
    {
        return s.fold == 1 && WarpRows::row(item, 16) <= item.sequence.nq;
    }
    __device__ __forceinline__ bool boxed(const Item &item) const
    {
        return s.fold == 1 && WarpRows::row(item, 16) <= item.sequence.nq_used;
    }
};

template <class Warp> struct DroppedRows : Warp {
    static constexpr bool DROPS = true;
    bool light[2]; /* what is kept of the thread's rows has few digits left */
};

struct PagedRows : FoldedRows {
    static constexpr bool PAGED = true;
    using FoldedRows::FoldedRows;
};

/* The keys that a row of the sequence sees. */
__device__ __forceinline__ int2 seen_keys(const attn_band &band, int row)
{
    int2 keys;
    attn_band_row(&band, row, &keys.x, &keys.y);
    return keys;
}

/* Called before mask_block and score_block. */
template <class Warp>
__device__ __forceinline__ void note_bounds(const Item &item, const Warp &warp)
{
    const int lane = threadIdx.x % 32;
    __syncwarp();
    if (lane < 16) {
        warp.bounds[lane] = seen_keys(item.band, warp.row(item, lane));
    }
    __syncwarp();
}

/* A bit for each of this thread's keys in a block, of which it has 8 a + 2 (lane % 4) + {0, 1}:
 * those before `key`. */
__device__ __forceinline__ uint32_t keys_before(int key)
{
    int x = max(key - 2 * (int)(threadIdx.x % 4), 0), n = x / 8 * 2 + min(x % 8, 2);
    return n < 32 ? (1u << n) - 1 : ~0u;
}

/* Masks the scores from number FROM to TO - 1 where the two rows' bits are 0. */
template <int FROM, int TO, int N>
__device__ __forceinline__ void hide_unseen(const uint32_t (&seen)[2], float (&s)[N])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int i = FROM + 2 * r; i < TO; i += 4) {
            s[i] = seen[r] >> i / 4 * 2 & 1 ? s[i] : -INFINITY;
            s[i + 1] = seen[r] >> (i / 4 * 2 + 1) & 1 ? s[i + 1] : -INFINITY;
        }
    }
}

/* Masks the scores of the block of keys that begins at `key`, where the thread's two rows see
 * these, and tells whether a row sees less than half of it. Bits, not a comparison for each score:
 * comparisons cost as much as the exponentials. The first half of a large block is passed over
 * where all of the warp's rows see it: at a diagonal, that of every second group. */
template <int N>
__device__ __forceinline__ void mask_scores(const int2 (&see)[2], int key, float (&s)[N],
                                            bool (&few)[2])
{
    static_assert(N <= 64, "a word of bits");
    constexpr int HALF = N == 64 ? 32 : 0; /* whose bits are a half of the word */
    uint32_t seen[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        seen[r] = keys_before(see[r].y - key) & ~keys_before(see[r].x - key);
        few[r] = min(see[r].y - key, 2 * N) - max(see[r].x - key, 0) < N;
    }
    if (HALF > 0 && __any_sync(~0u, (seen[0] & seen[1] & 0xffff) != 0xffff)) {
        hide_unseen<0, HALF>(seen, s);
    }
    hide_unseen<HALF, N>(seen, s);
}

/* The same by what the warp has noted. */
template <int N>
__device__ __forceinline__ void mask_block(const WarpRows &warp, int key, float (&s)[N],
                                           bool (&few)[2])
{
    const int at = threadIdx.x % 32 / 4;
    const int2 see[2] = {warp.bounds[at], warp.bounds[at + 8]};
    mask_scores(see, key, s, few);
}

/* The steps from Q K^T to final scores (C9), masks included. */
template <int N>
__device__ __forceinline__ void score_block(const attn_problem &p, const Item &item,
                                            const WarpRows &warp, int key, float (&s)[N])
{
    const int lane = ptx::opaque(threadIdx.x % 32);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int2 see = warp.bounds[lane / 4 + 8 * r];
        const ScoreRow<float> row(p, item.sequence, item.head,
                                  item.first_row + warp.first + lane / 4 + 8 * r);
#pragma unroll
        for (int i = 2 * r; i < N; i += 4) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int at = key + 2 * i + 2 * (lane % 4) - 4 * r + e;
                s[i + e] = at >= see.x && at < see.y && row.visible(at) ? row.step(s[i + e], at)
                                                                        : -INFINITY;
            }
        }
    }
}

/* Moves bases for these scores, and scales earlier sums down where bases move. */
template <int DTYPE, int N, int D, class Exponents>
__device__ __forceinline__ void update_bases(const Exponents &e, const float (&s)[N],
                                             const bool (&few)[2], Rows<D> &rows)
{
    float alpha[2];
    move_bases<DTYPE>(s, e, few, rows.state, alpha);
    rescale_moved(rows.o, alpha);
}

/* Rows of O straight from the accumulators. */
template <int DTYPE> struct DirectStore {
    const attn_problem &p;

    /* Rows of the thread: times factor, if write. careful: some row is not written, or will be once
     * more. */
    template <class Warp, int N>
    __device__ __forceinline__ void rows(const Item &item, const Warp &warp, const float (&o)[N],
                                         const float (&factor)[2], const bool (&write)[2],
                                         bool) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = threadIdx.x % 32 / 4 + 8 * r;
            int64_t row = item.sequence.q_first + warp.row(item, i);
            store_row<DTYPE>(
                p, o, r, factor[r],
                attn_at(&p.o, item.sequence.tensor, row, warp.head(item, i), warp.column()),
                (int)p.dv - warp.column(), write[r]);
        }
    }
};

/* The warp's rows r of which a thread says yes: bit 4 i + r for row i + 8 r. */
__device__ __forceinline__ uint32_t row_votes(int r, bool yes)
{
    uint32_t vote = __ballot_sync(~0u, yes);
    vote |= vote >> 1;
    return ((vote | vote >> 2) & 0x11111111) << r;
}

/* The warp's rows for the careful path: bit 4 i + r for row i + 8 r. l: whole sums. used: rows that
 * the item has; the tile may hold those of the next sequence after them. look: a non-finite row may
 * come from our own overflow, so redo it with careful_row. */
template <int D>
__device__ __forceinline__ uint32_t careful_rows(const Rows<D> &rows, const float (&l)[2],
                                                 const bool (&used)[2], bool look)
{
    uint32_t careful = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool far = fabsf(rows.state[r].base) > FAR_BASE && rows.state[r].base != NO_BASE,
             finite = true;
        if (look) {
            float x = l[r] * 0,
                  y = 0; /* 0, or NaN; comparisons would wait for each other's predicates */
#pragma unroll
            for (int i = 2 * r; i < D / 2; i += 4) {
                x = fmaf(rows.o[i], 0, x), y = fmaf(rows.o[i + 1], 0, y);
            }
            finite = x + y == 0;
        }
        careful |= row_votes(r, used[r] && (far || (l[r] != 0 && !finite)));
    }
    return careful;
}

/* Those of the warp's rows that see a value of V that is not finite, after such values were cleared
 * from tiles: bits as careful_rows has them. */
template <int DTYPE, int WIDEST, bool STEPS, class Warp>
__device__ __forceinline__ uint32_t nonfinite_rows(const attn_cuda_forward_params &a,
                                                   const Item &item, const Warp &warp)
{
    uint32_t rows = 0;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        const OutputRow w = {item.sequence, warp.head(item, i), warp.row(item, i), true};
        if (w.row < item.sequence.nq_used &&
            sees_nonfinite<DTYPE, WIDEST, STEPS, Warp::PAGED>(a, w)) {
            rows |= 1u << (4 * (i % 8) + i / 8);
        }
    }
    return rows;
}

/* finish_row for the warp's 16 rows at once, a lane each: lanes i and i + 16 have row i, which lane
 * 4 (i % 8) knows. */
template <int D, class Warp>
__device__ __forceinline__ float2 finish_lanes(const attn_cuda_forward_params &a, const Item &item,
                                               const Warp &warp, const Rows<D> &rows,
                                               const float (&l)[2], float raised, uint32_t careful)
{
    const int lane = threadIdx.x % 32, i = lane % 16, from = i % 8 * 4, row = warp.row(item, i);
    const float base[2] = {__shfl_sync(~0u, rows.state[0].base, from),
                           __shfl_sync(~0u, rows.state[1].base, from)};
    const float m[2] = {__shfl_sync(~0u, rows.state[0].m, from),
                        __shfl_sync(~0u, rows.state[1].m, from)};
    const float sum[2] = {__shfl_sync(~0u, l[0], from), __shfl_sync(~0u, l[1], from)};
    const int r = i / 8;
    OutputRow w = {item.sequence, warp.head(item, i), row,
                   (r ? sum[1] : sum[0]) != 0 && row < item.sequence.nq_used};
    bool write =
        lane < 16 && warp.column() == 0 && row < item.sequence.nq && !(careful >> (from + r) & 1);
    return finish_row(a.problem, w, r ? base[1] : base[0], r ? sum[1] : sum[0],
                      __fmul_rn(r ? m[1] : m[0], a.scale_log2) * LN2, raised, write);
}

/* LSE of the thread's rows, where nothing else is asked for but O: by the first two threads of a
 * quad, a row each. */
template <class Warp>
__device__ __forceinline__ void
store_lse(const attn_problem &p, const Item &item, const Warp &warp, const RowState (&state)[2],
          const float (&l)[2], float raised, const bool (&write)[2], const bool (&seen)[2])
{
    const int lane = threadIdx.x % 32, i = lane / 4 + lane % 2 * 8;
    const bool odd = lane & 1;
    if (lane % 4 < 2 && warp.column() == 0 && (odd ? write[1] : write[0])) {
        const float base = odd ? state[1].base : state[0].base;
        const float lse =
            (odd ? seen[1] : seen[0]) ? natural_lse(base, odd ? l[1] : l[0], raised) : -INFINITY;
        store_wide(p.lse, item.sequence.tensor, item.sequence.q_first + warp.row(item, i),
                   warp.head(item, i), lse);
    }
}

/* How a kernel's rows end. DTYPE: of the inputs. WIDEST: head dimensions up to. STEPS: there may be
 * score steps (a.steps). ANY: a row that is not finite may owe that to the kernel's arithmetic, not
 * only to masked keys. nonfinite: values that are not finite were cleared from V. store: where rows
 * go. again: rows that are not finite are left, to be done once more with the whole item; else they
 * are done here, alone. True if some were left. */
template <int DTYPE, int WIDEST, bool STEPS, bool ANY, int D, class Warp, class Store>
__device__ __forceinline__ bool finish_rows(const attn_cuda_forward_params &a, const Item &item,
                                            bool masked, bool nonfinite, const Warp &warp,
                                            Rows<D> &rows, const Store &store, bool again = false)
{
    constexpr float raised = RAISED<DTYPE>;
    const int lane = threadIdx.x % 32;
    const int row[2] = {warp.row(item, lane / 4), warp.row(item, lane / 4 + 8)};
    const float l[2] = {quad_sum(fabsf(rows.state[0].l)), quad_sum(fabsf(rows.state[1].l))};
    const bool used[2] = {row[0] < item.sequence.nq_used, row[1] < item.sequence.nq_used};
    bool seen[2], write[2];
    float x[2] = {1, 1}, factor[2]; /* of O: as finish_row has them */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        seen[r] = l[r] != 0 && used[r];
        factor[r] = seen[r] ? ptx::reciprocal(l[r]) : 0;
    }
    uint32_t careful = careful_rows(rows, l, used, ANY || masked); /* bit 4 i + r: row i + 8 r */
    if (__builtin_expect(nonfinite, false)) {
        careful |= nonfinite_rows<DTYPE, WIDEST, STEPS>(a, item, warp);
    }
    if constexpr (Warp::DROPS) {
        careful |= row_votes(0, seen[0] && warp.light[0]) | row_votes(1, seen[1] && warp.light[1]);
    }
    if (a.statistics) {
        const float2 lanes = finish_lanes(a, item, warp, rows, l, raised, careful);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            x[r] = __shfl_sync(~0u, lanes.x, lane / 4 + 8 * r);
            factor[r] = __shfl_sync(~0u, lanes.y, lane / 4 + 8 * r);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        write[r] = !(careful >> ((lane & ~3) + r) & 1) && row[r] < item.sequence.nq;
        if constexpr (Warp::DROPS) {
            factor[r] *= (float)a.problem.dropout.scale;
        }
    }
    const bool blank = (write[0] && !seen[0]) || (write[1] && !seen[1]);
    if (__builtin_expect(blank || x[0] != 1 || x[1] != 1, false)) {
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            rows.o[i] = seen[i / 2 % 2] ? rows.o[i] * x[i / 2 % 2] : 0;
        }
    }
    store.rows(item, warp, rows.o, factor, write, careful != 0);
    if (a.lse_alone) {
        store_lse(a.problem, item, warp, rows.state, l, raised, write, seen);
    }
    if (again) {
        return careful != 0;
    }
#pragma unroll 1
    for (; __builtin_expect(careful != 0, false); careful &= careful - 1) {
        const int bit = __ffs((int)careful) - 1, i = bit / 4 + bit % 4 * 8;
        OutputRow w = {item.sequence, warp.head(item, i), warp.row(item, i), true, warp.column()};
        careful_row<DTYPE, WIDEST, STEPS, Warp::PAGED, Warp::DROPS>(a, w);
    }
    return false;
}

/* No row of the item sees a key. */
template <int DTYPE, class Warp>
__device__ __forceinline__ void finish_empty(const attn_problem &p, const Item &item,
                                             const Warp &warp)
{
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < 16 && warp.column() == 0 && warp.row(item, i) < item.sequence.nq; i++) {
        OutputRow w = {item.sequence, warp.head(item, i), warp.row(item, i), false};
        finish_row(p, w, 0, 0, 0, 0, lane == 0);
#pragma unroll 1
        for (int c = lane; c < p.dv; c += 32) {
            store_element<DTYPE>(p.o, attn_at(&p.o, w.s.tensor, w.s.q_first + w.row, w.head, c), 0);
        }
    }
}
