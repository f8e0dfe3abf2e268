/*
 * element_rows_sm90.cuh: a warp's 16 rows of a tile of elements_sm90.cuh: the bias, P of S, sums of
 * dS, and their end in d_bias.
 */
#pragma once
#include "cuda/kernel/backward/steps_sm90.cuh"
#include <float.h>

template <int DTYPE, int D_> struct ElementShape {
    static constexpr bool BF16 = DTYPE == ATTN_BF16, WIDE = false, STEPPED = false;
    static constexpr int D = D_, FIXED = 128, STEP = 128, BOX = ATTN_GRAD_BOX,
                         PAIRS = ATTN_GRAD_ELEMENT_PAIRS(D), TILE_BYTES = 128 * D * 2;
    static constexpr int TABLE_BYTES = 16 * FIXED * 2, /* of a warp */
        TABLES_AT = PAIRS * 2 * TILE_BYTES, STATISTICS_AT = TABLES_AT + 8 * TABLE_BYTES,
                         POSTS_AT = STATISTICS_AT + 2 * 2 * STEP * 4, BARRIERS_AT = POSTS_AT + 64;
    static_assert(PAIRS * 16 <= 64 &&
                      BARRIERS_AT + 64 + ATTN_GRAD_ELEMENT_ALIGN == ATTN_GRAD_ELEMENT_BYTES(D),
                  "shape.h");
};

/* The elements of d_bias that are an item: of head h of sequence b. */
struct ElementBlock {
    int b, h, row, key;

    __device__ __forceinline__ ElementBlock(const attn_tensor &out, uint32_t index)
    {
        const uint32_t across = (uint32_t)((out.shape[3] + 127) / 128),
                       down = (uint32_t)((out.shape[2] + 127) / 128), rest = index / across,
                       pair = rest / down, heads = (uint32_t)out.shape[1];
        key = (int)(index - rest * across) * 128, row = (int)(rest - pair * down) * 128;
        b = (int)(pair / heads), h = (int)(pair % heads);
    }
};

/* What hides positions of a tile: nothing, the bias, or the band too. */
enum ElementHides { HIDE_NONE, HIDE_BIAS, HIDE_ANY };

/* A warp's 16 rows of an item. Element 4 j + e of a thread is of row lane / 4 + e / 2 * 8 and key
 * 8 j + lane % 4 * 2 + e % 2. */
template <class S> struct ElementRows {
    static constexpr int N = S::FIXED / 2;
    const attn_cuda_backward_params &a;
    uint32_t table; /* its rows of the bias */
    float sums[N];

    static __device__ __forceinline__ int first_row(const ElementBlock &block)
    {
        return block.row + 16 * (ptx::thread() / 32 - 4);
    }

    /* Copies the bias of an item: 16 bytes of a row lie where its number turns them, so that no two
     * of a matrix share a bank. All lanes, which have read the bias before. */
    __device__ __forceinline__ void fetch(uint32_t index) const
    {
        const ElementBlock block(a.sum.out, index);
        const int64_t row = first_row(block);
        const uint32_t to = (uint32_t)ptx::opaque((int)table);
        const attn_tensor &bias = a.grads.problem.bias;
        const int lane = ptx::thread() % 32, piece = lane % 16;
        const int64_t left = (bias.shape[3] - block.key) * 2 - piece * 16;
        const int bytes = (int)min(max(left, (int64_t)0), (int64_t)16);
        const char *const from =
            attn_at_broadcast(&bias, block.b, block.h, 0, bytes > 0 ? block.key + piece * 8 : 0);
#pragma unroll
        for (int r = lane / 16; r < 16; r += 2) {
            ptx::copy_async_16(to + r * 256 + (piece ^ r % 8) * 16,
                               from + min(row + r, bias.shape[2] - 1) * a.steps.bias_row, bytes);
        }
        ptx::copy_async_commit();
    }
    /* Elements 8 j .. 8 j + 7 of the bias, packed. at: place(). All lanes. */
    static __device__ __forceinline__ void load(uint32_t (&x)[4], uint32_t at, int j)
    {
        mma::load_4<false>(x, at ^ 32 * j);
    }
    /* Where load(0) finds the row that this lane asks for. */
    __device__ __forceinline__ uint32_t place() const
    {
        const uint32_t lane = (uint32_t)ptx::thread() % 32, row = lane % 16;
        return table + row * 256 + (lane / 16 ^ row % 8) * 16;
    }
    /* Whether the bias hides a position: minus infinity, the largest of its bits but for NaN. */
    __device__ __forceinline__ bool hides() const
    {
        constexpr uint32_t NEVER = S::BF16 ? 0xff80 : 0xfc00;
        const uint32_t at = place();
        uint32_t most = 0;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            uint32_t x[4];
            load(x, at, j);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                most = ptx::max_halves(most, x[i]);
            }
        }
        return __any_sync(~0u, (most & 0xffff) >= NEVER || most >> 16 >= NEVER);
    }

    /* Makes P of S. row, key: of element 0. */
    template <ElementHides HIDES>
    __device__ __forceinline__ void weigh(float (&s)[N], float2 lse, const attn_band &band, int row,
                                          int key) const
    {
        constexpr float LOG2_E = 1.4426950408889634f;
        const uint32_t at = place();
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            uint32_t x[4];
            load(x, at, j);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 b = ptx::unpack_half<S::BF16>(x[i]);
                float *const two = s + 8 * j + 2 * i;
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float own = e == 0 ? b.x : b.y,
                                base = fmaf(own, LOG2_E, i % 2 ? -lse.y : -lse.x),
                                p = ptx::exp2(fmaf(two[e], a.scale_log2, base));
                    const int r = row + i % 2 * 8, k = key + 16 * j + i / 2 * 8 + e;
                    const bool inside = HIDES != HIDE_ANY || (r < band.rows && k >= r + band.from &&
                                                              k < min(r + band.to, band.keys)),
                               seen = HIDES == HIDE_NONE || own != -INFINITY;
                    two[e] = inside && seen ? p : 0;
                }
            }
        }
    }

    /* Adds P (dP - delta). A P of 0 adds 0, whatever dP is. */
    template <bool DROPS>
    __device__ __forceinline__ void add(const float (&p)[N], const float (&dp)[N], float2 delta,
                                        const uint32_t (&kept)[2])
    {
#pragma unroll
        for (int e = 0; e < N; e++) {
            float left = dp[e];
            if constexpr (DROPS) {
                left = (kept[e / 32] >> (e / 2 % 16 + e % 2 * 16) & 1) != 0 ? left * a.kept : 0;
            }
            const float ds = left - (e / 2 % 2 ? delta.y : delta.x);
            sums[e] = p[e] < FLT_MIN ? sums[e] : fmaf(p[e], ds, sums[e]);
        }
    }

    /* Finds what dropout keeps: bit e / 2 % 16 + e % 2 * 16 of word e / 32 for element e. */
    __device__ __forceinline__ void find_kept(uint32_t (&kept)[2], int64_t sequence, int64_t head,
                                              int row, int key) const
    {
        attn_sequence of = {};
        of.index = sequence;
        const DropoutRow first(a.grads.problem, of, head, 0);
        uint4 at = first.counter();
        at.x += attn_dropout_keys(key);
        at.y += attn_dropout_rows(row);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            kept[i] = 0;
#pragma unroll 1
            for (int e = 0; first.even() && e < 4; e++, at.x += 4) {
                push_kept(a.dropout, at, kept[i]);
            }
#pragma unroll 1
            for (int e = 0; !first.even() && e < 32; e++) {
                const int r = row + e / 2 % 2 * 8, k = key + (32 * i + e) / 4 * 8 + e % 2;
                const bool keeps = DropoutRow(a.grads.problem, of, head, r).keeps(k);
                kept[i] |= keeps ? 1u << (e / 2 + e % 2 * 16) : 0;
            }
        }
    }

    /* Stores the sums of an item. */
    __device__ __forceinline__ void store(uint32_t index) const
    {
        const attn_tensor &out = a.sum.out;
        const ElementBlock block(out, index);
        const int64_t own = first_row(block) + ptx::thread() % 32 / 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            char *const to = attn_at(&out, block.b, block.h, own + 8 * half, 0);
#pragma unroll
            for (int j = 0; j < N / 4; j += 4) {
                float x[4][2];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    x[i / 2][i % 2] = sums[4 * (j + i / 2) + 2 * half + i % 2];
                }
                store_row(out, to, (int)block.key + 8 * j, x, own + 8 * half < out.shape[2]);
            }
        }
    }
};
