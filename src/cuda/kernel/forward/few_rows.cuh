/*
 * few_rows.cuh: a warp's share of an item's rows: operands of Q, sums over the keys that the warp
 * has seen, and their end in shared memory. few_tile.cuh says which numbers a lane has.
 */
#pragma once
#include "cuda/kernel/forward/few_shape.cuh"
#include "cuda/kernel/ptx/pairs.cuh"
#include "cuda/kernel/rows/rows.cuh"

/* Opaque, or addresses that follow from it would be kept in registers. */
__device__ __forceinline__ int few_lane()
{
    return ptx::opaque(threadIdx.x % 32);
}

template <class S> struct FewRows {
    uint32_t q[S::TILES][S::UNITS][4]; /* by Codes::pair_column */
    float o[S::TILES][S::UNITS][2][4];
    float base[S::TILES][2], l[S::TILES][2], m[S::TILES][2]; /* softmax.cuh; l, shift: the lane's */
    float shift[S::TILES][2]; /* sums of P times V's shifts, for all columns */
    float q_sum[S::TILES][2];
    float q_unit[S::TILES][2]; /* of rows of Q as f16 (Codes::HALVES) */
    float v_times = 1;         /* O is in units of 1 / v_times, a power of two (Codes::HALVES) */
    bool halves = false;       /* Q is f16 */
    uint32_t q_at;             /* SHARED: the lane's operands of Q in shared memory, instead of q */

    /* Operands of 8 rows and 32 columns. */
    __device__ __forceinline__ void operands(int t, int u, uint32_t (&to)[4]) const
    {
        if (S::SHARED) {
            const uint4 x = ptx::load_shared_16(q_at + (t * S::UNITS + u) * 512);
            to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                to[i] = q[t][u][i];
            }
        }
    }
    /* The unit of products of a row. */
    __device__ __forceinline__ float unit(int t, int r) const
    {
        return S::Codes::HALVES ? q_unit[t][r] : S::Codes::UNIT;
    }
    /* The unit of O. */
    __device__ __forceinline__ float o_unit() const
    {
        return S::Codes::HALVES ? __uint_as_float((254u << 23) - __float_as_uint(v_times))
                                : S::Codes::UNIT;
    }
    /* SHARED: loads a tile's operands for all warps of the CTA, a tile each. */
    __device__ __forceinline__ void share_q(const attn_cuda_codes_params &c, const FewItem &item)
    {
        static_assert(!S::SHARED || S::TILES == S::WARPS && S::Codes::PLAIN,
                      "a tile for each warp");
        const int t = threadIdx.x / 32, lane = few_lane();
        const attn_problem &p = c.forward.problem;
        const FewRow row = item.row<S>(c, 8 * t + lane / 4);
        const char *from = attn_at(&p.q, row.sequence, row.query, row.head, 8 * (lane % 4));
        uint4 x[S::UNITS];
#pragma unroll
        for (int u = 0; u < S::UNITS; u++) {
            x[u] = row.used && 32 * u + 8 * (lane % 4) < p.d ? *(const uint4 *)(from + 64 * u)
                                                             : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int u = 0; u < S::UNITS; u++) {
            ptx::store_shared_16(q_at + (t * S::UNITS + u) * 512, x[u]);
        }
        __syncthreads();
    }

    /* The lane's pieces of rows of Q: t -> u -> those of 8 rows, of 32 columns. row(r): where row r
     * begins. */
    template <class Row>
    static __device__ __forceinline__ auto pieces_of(const attn_cuda_codes_params &c, int rows,
                                                     const Row &row)
    {
        const int lane = few_lane();
        const int columns = S::ANY ? c.forward.few.k_bytes * 8 / S::Codes::BITS : S::D;
        return [=](int t) {
            const int r = 8 * t + lane / 4;
            const char *from = row(r) + 16 * (lane % 4);
            const bool used = r < rows;
            return [=](int u) {
                return used && 32 * u + 8 * (lane % 4) < columns ? *(const uint4 *)(from + 64 * u)
                                                                 : make_uint4(0, 0, 0, 0);
            };
        };
    }
    static __device__ __forceinline__ auto pieces(const attn_cuda_codes_params &c,
                                                  const FewStart &start)
    {
        return pieces_of(c, start.rows, [&c, &start](int r) {
            const attn_cuda_place &place = c.forward.few.q;
            return place.data + start.tensor * place.batch + start.query(c, r) * place.row +
                   start.head(c, r) * place.head;
        });
    }
    /* Takes rows of an item to which the CTA goes on from shared memory. */
    __device__ __forceinline__ void take_q(const attn_cuda_codes_params &c, const FewItem &item,
                                           const unsigned char *shared)
    {
        load_pieces(pieces_of(c, item.rows, [shared](int r) {
            return (const char *)shared + r / S::Q_ROWS * S::WARP + S::PLACES_AT +
                   r % S::Q_ROWS * S::Q_ROW;
        }));
        set_q();
    }
    /* Loads the lane's pieces of rows of Q, of which set_q makes operands. */
    __device__ __forceinline__ void take_pieces(const attn_cuda_codes_params &c,
                                                const FewStart &start)
    {
        load_pieces(pieces(c, start));
    }
    template <class Pieces> __device__ __forceinline__ void load_pieces(const Pieces &pieces)
    {
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            const auto piece = pieces(t);
#pragma unroll
            for (int u = 0; u < S::UNITS; u++) {
                const uint4 x = piece(u);
                q[t][u][0] = x.x, q[t][u][1] = x.y, q[t][u][2] = x.z, q[t][u][3] = x.w;
            }
        }
    }
    /* Makes operands of pieces. */
    __device__ __forceinline__ void set_q()
    {
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            float sum = 0;
#pragma unroll
            for (int u = 0; u < S::UNITS; u++) {
                const uint32_t words[4] = {q[t][u][0], q[t][u][1], q[t][u][2], q[t][u][3]};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int a = S::Codes::pair_column(i, 0), b = S::Codes::pair_column(i, 1);
                    const bool in_order = S::Codes::PLAIN || (a == 2 * i && b == 2 * i + 1);
                    q[t][u][i] =
                        in_order ? words[i]
                                 : ptx::permute(words[a / 2], words[b / 2],
                                                (b % 2 ? 0x7600 : 0x5400) | (a % 2 ? 0x32 : 0x10));
                    const float2 pair = ptx::unpack_half<S::BF16>(words[i]);
                    sum += pair.x + pair.y;
                }
            }
            if (S::SHIFTS) {
                share_number(quad_sum(sum), q_sum[t]);
            }
        }
        if constexpr (S::Codes::HALVES) {
            make_halves();
        }
    }
    /* Gives each lane those of its rows of the accumulators. number: of row lane / 4. */
    static __device__ __forceinline__ void share_number(float number, float (&to)[2])
    {
        const int lane = few_lane();
        to[0] = __shfl_sync(~0u, number, lane % 4 * 8);
        to[1] = __shfl_sync(~0u, number, lane % 4 * 8 + 4);
    }

    /* Magnitudes of numbers of bf16, as bits without signs. */
    struct Range {
        uint32_t most, least; /* the largest; the least but 0, minus 1 */

        /* Takes two of 16 bits each; most, least: of the low halves, and of the high ones. */
        __device__ __forceinline__ void take(uint32_t pair)
        {
            constexpr uint32_t MINUS_1 = 0xFFFFFFFF; /* 0 - 1 is larger than any */
            most = ptx::max_pair(most, pair);
            least = ptx::min_of_sum_pair(pair, MINUS_1, least);
        }
        /* Joins those of the lanes that share a row, and both halves. */
        __device__ __forceinline__ void join()
        {
#pragma unroll
            for (int lanes = 1; lanes < 4; lanes *= 2) {
                most = ptx::max_pair(most, __shfl_xor_sync(~0u, most, lanes));
                least = ptx::min_of_sum_pair(least, 0, __shfl_xor_sync(~0u, least, lanes));
            }
            most = max(most & 0xFFFF, most >> 16), least = min(least & 0xFFFF, least >> 16);
        }
        /* What exponents of bf16 lose to become those of f16, the largest number's 29: one that
         * stays below 2^15. */
        __device__ __forceinline__ int lowered() const
        {
            return (int)(most >> 7) - 29;
        }
        /* True if all are normal numbers of f16 then, or 0. */
        __device__ __forceinline__ bool fits() const
        {
            const int by = lowered();
            return most == 0 || (by >= 0 && most < 0x7F80 && (int)least >= (by + 1 << 7) - 1);
        }
        /* The power of two by which numbers grow. */
        __device__ __forceinline__ float unit() const
        {
            return __uint_as_float((uint32_t)max(lowered() + 15, 1) << 23);
        }
    };
    /* Makes Q f16, each row times a power of two, if that holds all of its numbers as normal ones:
     * the same bits with another exponent. */
    __device__ __forceinline__ void make_halves()
    {
        constexpr uint32_t SIGNS = 0x80008000;
        Range ranges[S::TILES];
        bool fit = true;
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            ranges[t] = {0, 0xFFFFFFFF};
#pragma unroll
            for (int i = 0; i < 4 * S::UNITS; i++) {
                ranges[t].take(q[t][i / 4][i % 4] & ~SIGNS);
            }
            ranges[t].join();
            fit = fit && ranges[t].fits();
        }
        halves = __all_sync(~0u, fit);
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            const uint32_t lowered = (uint32_t)max(ranges[t].lowered(), 0) << 7,
                           pair = lowered | lowered << 16;
#pragma unroll
            for (int i = 0; i < 4 * S::UNITS && halves; i++) {
                uint32_t &number = q[t][i / 4][i % 4];
                const uint32_t magnitude =
                    ptx::max_pair(number & ~SIGNS, pair) - pair; /* 0 stays */
                number = number & SIGNS | magnitude << 3;
            }
            share_number(halves ? ranges[t].unit() : 1, q_unit[t]);
        }
    }

    __device__ __forceinline__ void clear()
    {
        v_times = 1;
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
#pragma unroll
            for (int i = 0; i < 8 * S::UNITS; i++) {
                o[t][i / 8][i / 4 % 2][i % 4] = 0;
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                base[t][r] = NO_BASE, m[t][r] = -INFINITY;
                l[t][r] = shift[t][r] = 0;
            }
        }
    }

    /* Makes the unit of O smaller by a power of two. */
    __device__ __forceinline__ void scale_sums(float times)
    {
        v_times *= times;
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
#pragma unroll
            for (int i = 0; i < 8 * S::UNITS; i++) {
                o[t][i / 8][i / 4 % 2][i % 4] *= times;
            }
        }
    }

    /* Largest or sum over the lanes that share rows. */
    static __device__ __forceinline__ float over_keys(float x, bool largest)
    {
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
            const float y = __shfl_xor_sync(~0u, x, lanes);
            x = largest ? fmaxf(x, y) : x + y;
        }
        return x;
    }

    /* Leaves the warp's sums of the first `rows` rows, and all states, in S::LEFT bytes of shared
     * memory. A row whose numbers are not finite, or whose exponents left the range of f32, gets l
     * = NaN. */
    __device__ __forceinline__ void leave(unsigned char *shared, int rows)
    {
        const int lane = few_lane();
        const float unit = o_unit();
        float *sums = (float *)shared;
        float4 *states = (float4 *)(shared + S::SUMS);
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = 8 * t + 2 * (lane % 4) + r;
                const float of_all = S::SHIFTS ? over_keys(shift[t][r], false) : 0,
                            from = base[t][r];
                float sum = l[t][r];
#pragma unroll
                for (int i = 0; i < 4 * S::UNITS; i++) {
                    const float x = fmaf(o[t][i / 4][i / 2 % 2][i % 2 * 2 + r], unit, of_all);
                    sum = fmaf(x, 0, sum);
                    if (row < rows) {
                        sums[row * S::APART + i / 4 * 32 + lane / 4 * 4 + i % 4] = x;
                    }
                }
                sum = over_keys(sum, false); /* by all lanes: rows may differ in what follows */
                sum = fabsf(from) > 4194304 && from != NO_BASE ? NAN : sum;
                const float most = over_keys(m[t][r], true);
                if (lane < 4) {
                    states[row] = make_float4(from, sum, most, 0);
                }
            }
        }
    }
};
