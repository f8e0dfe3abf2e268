/*
 * steps_sm90.cuh: score steps and dropout in a tile of ordered_sm90.cuh: from products S^T of 64
 * keys and 64 rows to P^T, and to P^T times the derivative of a capped score, for dS^T.
 *
 * The sign of P times the derivative says whether dropout drops the element: it needs no register
 * then.
 */
#pragma once
#include "cuda/kernel/backward/drops_sm90.cuh"
#include "cuda/kernel/backward/keys_sm90.cuh"
#include "cuda/kernel/backward/tables_sm90.cuh"
#include "cuda/kernel/rows/dropout.cuh"
#include "cuda/kernel/rows/score.cuh"
#include "cuda/kernel/rows/softcap.cuh"

/* What caps scores: nothing; softcap.cuh; its polynomial alone, without bias, ALiBi and dropout. */
enum GradCap { CAP_NONE, CAP_ANY, CAP_NEAR };

/* A thread's part of ROWS rows of a tile, with its steps. */
template <int ROWS_OF_TILE> struct StepRows : ScoreTile {
    static constexpr int ELEMENTS = ROWS_OF_TILE / 2;
    attn_band band;
    bool masked;            /* the band hides some of the tile */
    uint32_t drop[1] = {0}; /* what find_dropped() says */

    /* A bit for each position that is masked, but by a table. */
    template <TileReads READS> __device__ __forceinline__ uint32_t hidden() const
    {
        const attn_tensor &mask = a.grads.problem.mask;
        const bool gathered = (READS & READ_GATHERED) != 0 && mask.data != NULL &&
                              !((READS & READ_COPIED) != 0 && a.steps.mask_copied);
        uint32_t bits = 0;
        if (!masked && !gathered) {
            return bits;
        }
        const char *const first = first_of(mask);
#pragma unroll 4
        for (int e = 0; e < ELEMENTS; e++) {
            const int r = row_of(e), k = key_of(e);
            bool seen = k >= r + band.from && k < min(r + band.to, band.keys);
            if (gathered) {
                seen = seen && *at(mask, first, a.steps.mask_row, a.steps.mask_step, e) != 0;
            }
            bits |= (seen ? 0u : 1u) << e;
        }
        return bits;
    }

    /* The counter of the lane's first call of Philox for find_dropped(). False: positions begin
     * anywhere. */
    __device__ __forceinline__ bool first_call(uint4 &at) const
    {
        const attn_problem &p = a.grads.problem;
        const uint64_t stream = p.dropout.offset +
                                (uint64_t)(uint32_t)sequence.index * (uint32_t)p.heads +
                                (uint32_t)head;
        at = lane_call(ptx::thread() % 32, key, row, stream);
        if (a.has_origins) {
            const DropoutRow first(p, sequence, head, 0);
            at.x += first.counter().x, at.y += first.counter().y;
            return first.even();
        }
        return true;
    }
    /* Finds the positions that dropout drops, as find_calls does. All lanes of the warp. */
    template <int WORDS>
    __device__ __forceinline__ void find_dropped(uint32_t (&words)[WORDS]) const
    {
        uint4 at;
        if (!a.grads.problem.dropout.on) {
            return;
        }
        if (first_call(at)) {
            find_calls(a, at, words);
        } else {
            find_one_by_one(words);
        }
    }
    /* The same where positions begin anywhere. */
    template <int WORDS>
    __device__ __forceinline__ void find_one_by_one(uint32_t (&words)[WORDS]) const
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            words[i] = 0;
#pragma unroll 1
            for (int e = 0; e < 32; e++) {
                const int r = row + 64 * i + e / 4 * 8 + e % 2, k = key + e / 2 % 2 * 8;
                const bool kept = DropoutRow(a.grads.problem, sequence, head, r).keeps(k);
                words[i] |= kept ? 0 : 1u << drop_bit(e);
            }
        }
    }

    /* Makes P^T of S^T, negative where dropout drops an element, of ROWS rows from FROM on. ALiBi
     * and dropout alone, or TABLED: with tables. slope: in units of exponents
     * (loader_sm90.cuh). */
    template <bool BF16, bool TABLED, int FROM, int ROWS, int N>
    __device__ __forceinline__ void weigh_lightly(float (&s)[N], uint32_t lse, const int &slope,
                                                  const uint32_t (&words)[N / 32]) const
    {
        const attn_problem &p = a.grads.problem;
        make_exponents<FROM, ROWS>(s, a.scale_log2, lse);
        if constexpr (TABLED && BF16) {
            await_copies();
            if (a.steps.bias == ATTN_CUDA_COPIED_2) {
                add_copied<BF16>(s);
            }
            if (a.steps.mask_copied) {
                hide_copied(s);
            }
        } else if constexpr (TABLED) { /* it has no register for bits */
            await_tables<2 * N>(BF16);
            add_copied<BF16>(s);
        }
        if (p.alibi.data != NULL) {
            add_slope<FROM, ROWS>(s, __uint_as_float((uint32_t)slope),
                                  (float)(row + sequence.diagonal - key));
        }
        if (!TABLED && a.hides_keys) {
            limit_exponents<BF16, FROM, ROWS>(s);
        }
        raise_exponents<FROM, ROWS>(s, band, masked, key, row);
        if (p.dropout.on) {
            mark_dropped<FROM, ROWS>(s, words);
        }
    }

    template <bool BF16, int N> __device__ __forceinline__ void add_copied(float (&s)[N]) const
    {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            uint32_t x[4];
            load_bias(x, bias_table(), j);
            add_bias<BF16>(s + 8 * j, x);
        }
    }
    template <int N> __device__ __forceinline__ void hide_copied(float (&s)[N]) const
    {
        const bool repeats = a.steps.mask_row == 0;
#pragma unroll
        for (int i = 0; i < N / 32; i++) {
            const int row_at = repeats ? 2 * N - 1 : 64 * i + ptx::thread() % 32;
            const uint32_t bits =
                read_bits(mask_table<2 * N>() + row_at * 16, repeats ? 0 : 32 * 16);
            if (!__all_sync(~0u, bits == ~0u)) {
                hide_exponents<64>(s + 32 * i, bits);
            }
        }
    }

    /* The largest product of a tile. */
    static __device__ __forceinline__ float most_of(const float (&s)[ELEMENTS])
    {
        float most = 0;
#pragma unroll
        for (int e = 0; e < ELEMENTS; e++) {
            most = fmaxf(most, fabsf(s[e]));
        }
        return most;
    }
    /* Whether a tile of products up to `most` takes CAP_NEAR. All lanes of the warp. */
    template <TileReads READS> __device__ __forceinline__ bool is_near(float most) const
    {
        const attn_problem &p = a.grads.problem;
        return p.bias.data == NULL && p.alibi.data == NULL && !p.dropout.on &&
               !((READS & READ_COPIED) != 0 && a.steps.mask_copied) &&
               !__any_sync(~0u, most > a.steps.near_most);
    }

    /* Caps x and returns the derivative by its product, but for the scale: 1 - tanh^2. */
    template <GradCap CAP> __device__ __forceinline__ float cap(float &x) const
    {
        const attn_cuda_steps &steps = a.steps;
        const float s = x;
        if (CAP == CAP_ANY && fabsf(s) > steps.near_most) {
            const float r = ptx::reciprocal_rough(ptx::exp2(fabsf(s) * steps.far_scale) + 1);
            x = copysignf(1, s) * fmaf(r, -2 * steps.far_cap, steps.far_cap);
            return 4 * r * (1 - r);
        }
        x = softcap_near(steps, s);
        const float t = x * a.inverse_cap;
        return fmaf(-t, t, 1);
    }

    /* Adds P (1 - derivative) of the warp's keys to `capped` (range_sm90.cuh) of two neighbouring
     * rows, for elements whose derivative is below 1/2. packed: P of two keys in each row; left: P
     * times the derivative. All lanes of the warp. */
    __device__ __forceinline__ void note_capped(int first_row, const uint32_t *packed,
                                                const float *left) const
    {
        float taken[2] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float2 p = ptx::unpack_half<false>(packed[i]);
            const float x = p.x - fabsf(left[2 * i]), y = p.y - fabsf(left[2 * i + 1]);
            taken[0] += x > p.x / 2 ? x : 0, taken[1] += y > p.y / 2 ? y : 0;
        }
        if (!__any_sync(~0u, taken[0] + taken[1] > 0)) {
            return;
        }
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            uint32_t sum = (uint32_t)((i == 0 ? taken[0] : taken[1]) * 0x1p9f);
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2) {
                sum += __shfl_xor_sync(~0u, sum, lanes);
            }
            const int64_t at = first_row + i;
            if (ptx::thread() % 32 < 4 && at < sequence.nq_used) {
                ptx::atomic_add(a.capped + grad_row_place(a.grads.problem, sequence, head) + at,
                                sum);
            }
        }
    }

    /* The same for all rows of the tile. */
    template <int PARTS>
    __device__ __forceinline__ void
    note_all_capped(const float (&s)[ELEMENTS],
                    const uint32_t (&packed)[PARTS][ELEMENTS / 2 / PARTS]) const
    {
        constexpr int EACH = ELEMENTS / 4 / PARTS;
#pragma unroll
        for (int j = 0; j < ELEMENTS / 4; j++) {
            note_capped(row + 8 * j, &packed[j / EACH][j % EACH * 2], &s[4 * j]);
        }
    }

    /* Makes P^T, packed, without the factor of dropout, and P^T, DERIVED: times the derivative, of
     * S^T. lse: in shared memory. f16, DERIVED: adds P of the thread's two keys to weights(), which
     * is asked at the end, since registers are few. */
    template <bool BF16, GradCap CAP, bool DERIVED, TileReads READS, int PARTS, class Weights>
    __device__ __forceinline__ void finish(float (&s)[ELEMENTS],
                                           uint32_t (&packed)[PARTS][ELEMENTS / 2 / PARTS],
                                           uint32_t lse, const Weights &weights) const
    {
        const attn_problem &p = a.grads.problem;
        constexpr int EACH = ELEMENTS / 4 / PARTS; /* pairs of words in a part */
        constexpr bool NEAR = CAP == CAP_NEAR;
        constexpr bool TABLES = (READS & READ_COPIED) != 0 && !NEAR;
        if constexpr (TABLES) {
            await_tables<2 * ELEMENTS>(has_wide_table());
        }
        const uint32_t hide = hidden<READS>();
        const char *const bias = NEAR || READS == READ_COPIED ? NULL : first_of(p.bias);
        const char *const slope_at = NEAR ? NULL : first_of(p.alibi);
        const float slope = slope_at == NULL ? 0 : load_real<float>(slope_at, p.alibi.dtype);
        const float distance = (float)(row + sequence.diagonal - key);
        KeyTerms<!BF16> terms;
        const bool copied = TABLES && has_table(), wide = has_wide_table();
        uint32_t pieces[4] = {};
#pragma unroll
        for (int j = 0; j < ELEMENTS / 4; j++) {
            const float2 base = ptx::load_shared_8(lse + 32 * j);
            float b[4] = {}, weight[4], size[4];
            if (copied) {
                if (j % 2 == 0) {
                    load_bias(pieces, bias_table(), j / 2);
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t x = pieces[j % 2 * 2 + i];
                    const float2 two =
                        wide ? ptx::unpack_half<true>(x) : ptx::unpack_half<false>(x);
                    b[2 * i] = two.x, b[2 * i + 1] = two.y;
                }
            } else if (bias != NULL) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    b[i] = load_real<float>(
                        at(p.bias, bias, a.steps.bias_row, a.steps.bias_step, 4 * j + i),
                        p.bias.dtype);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int e = 4 * j + i;
                float x = s[e], derivative = 1;
                if constexpr (CAP != CAP_NONE) {
                    derivative = cap<CAP>(x);
                } else {
                    x *= a.steps.scale;
                }
                if constexpr (!NEAR) {
                    x = fmaf(-slope, fabsf(distance + (float)(8 * j + i % 2 - i / 2 * 8)),
                             x + b[i]);
                }
                x = fmaf(x, 1.4426950408889634f, -(i % 2 ? base.y : base.x));
                const bool none = (hide >> e & 1) != 0 || b[i] == -INFINITY;
                const float weighed = none ? 0 : ptx::exp2(x);
                const bool gone = !NEAR && (drop[0] >> drop_bit(e) & 1) != 0;
                weight[i] = gone ? 0 : weighed;
                size[i] = gone ? weighed * 0x1p-60f : weighed; /* a term, too small for dV */
                derivative = DERIVED ? derivative : 1;
                s[e] = weighed * (gone ? -derivative : derivative);
            }
            uint32_t *const pairs = &packed[j / EACH][j % EACH * 2];
            pairs[0] = ptx::pack_half<BF16>(weight[0], weight[1]);
            pairs[1] = ptx::pack_half<BF16>(weight[2], weight[3]);
            terms.add(size[0], size[1], size[2], size[3]);
        }
        if constexpr (!BF16 && DERIVED) {
            const float2 sum = ptx::unpack_half<true>(terms.both);
            add_terms(weights(), sum.x, sum.y);
        }
    }

    template <bool BF16, TileReads READS, int PARTS, class Weights>
    __device__ __forceinline__ void run(float (&s)[ELEMENTS],
                                        uint32_t (&packed)[PARTS][ELEMENTS / 2 / PARTS],
                                        uint32_t lse, const Weights &weights) const
    {
        const float most = a.steps.softcap ? most_of(s) : 0;
        if (a.steps.softcap && is_near<READS>(most)) {
            finish<BF16, CAP_NEAR, true, READS>(s, packed, lse, weights);
        } else if (a.steps.softcap) {
            /* derivatives are above 1/2 up to 1.41 times the end of CAP_NEAR (softcap.cuh) */
            const bool halves = !BF16 && __any_sync(~0u, most > 1.4f * a.steps.near_most);
            finish<BF16, CAP_ANY, true, READS>(s, packed, lse, weights);
            if (halves) {
                note_all_capped(s, packed);
            }
        } else {
            finish<BF16, CAP_NONE, true, READS>(s, packed, lse, weights);
        }
    }

    /* Makes P^T of S^T alone, with tables. */
    template <bool BF16>
    __device__ __forceinline__ void weigh(float (&s)[ELEMENTS], uint32_t lse) const
    {
        uint32_t packed[1][ELEMENTS / 2];
        if (a.steps.softcap) {
            finish<BF16, CAP_ANY, false, READ_EITHER>(s, packed, lse, NULL);
        } else {
            finish<BF16, CAP_NONE, false, READ_EITHER>(s, packed, lse, NULL);
        }
    }
};

using StepTile = StepRows<64>;
