/*
 * few_tile.cuh: what a warp does with its 16 keys of a tile: scores of all rows, softmax, P V. Keys
 * are the 16 rows of mma.sync's left operand, rows of Q the 8 columns of its right one, so that few
 * rows cost few products: S^T = K Q^T, O^T = V^T P^T. Codes are exact operands; a key's scale and
 * shift come behind the product in S, and before it in P, which is split into two parts: the
 * largest probability is 1, but a scale has more bits than one part. Elements of 16 bits have
 * neither, and P is one part.
 *
 * A lane's numbers: S of keys lane / 4 and lane / 4 + 8, O of columns 4 (lane / 4) + .. of each 32,
 * both of rows 2 (lane % 4) and the one after it.
 */
#pragma once
#include "cuda/kernel/forward/few_values.cuh"
#include "cuda/kernel/rows/score.cuh"
#include "cuda/kernel/rows/softcap.cuh"

template <class S> struct FewTile {
    const attn_cuda_codes_params &c;
    const FewItem &item;
    FewRows<S> &rows;
    const typename S::Codes codes;
    const FewValues<S> values;
    const int place; /* of the lane's first codes of K in tiles */

    __device__ __forceinline__ FewTile(const attn_cuda_codes_params &c_, const FewItem &item_,
                                       FewRows<S> &rows_)
        : c(c_), item(item_), rows(rows_), codes{{item_.masks[0], item_.masks[1]}},
          values(c_, rows_, codes),
          place(S::place(threadIdx.x % 32 / 4, 8 * (threadIdx.x % 4) * S::Codes::BITS / 8))
    {
    }

    /* Products of the warp's keys with all rows. Returns what `unsound` says of the codes. HALVES:
     * in f16. */
    template <bool HALVES>
    __device__ __forceinline__ uint32_t products(const unsigned char *k,
                                                 float (&s)[S::TILES][4]) const
    {
        constexpr int WORDS = S::Codes::WORDS;
        float half[S::TILES][2][4] = {};
        uint32_t unsound = 0;
#pragma unroll
        for (int u = 0; u < S::UNITS; u++) {
            uint32_t pairs[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t w[WORDS];
                load_words(w, k + S::beside(place, S::place(8 * i, 32 * u * S::Codes::BITS / 8)));
                if constexpr (HALVES) {
                    codes.row_halves(pairs[i], w);
                } else {
#pragma unroll
                    for (int j = 0; j < WORDS; j++) {
                        unsound |= S::Codes::unsound(w[j]);
                    }
                    codes.row(pairs[i], w);
                }
            }
#pragma unroll
            for (int t = 0; t < S::TILES; t++) {
                uint32_t q[4];
                rows.operands(t, u, q);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t left[4] = {pairs[0][2 * i], pairs[1][2 * i], pairs[0][2 * i + 1],
                                              pairs[1][2 * i + 1]};
                    mma::product<S::BF16 && !HALVES>(half[t][i], left, q + 2 * i);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[t][e] = half[t][0][e] + half[t][1][e];
            }
        }
        return unsound;
    }

    /* Products -> scores: scales of the keys, score steps, masks. key: the warp's first. */
    __device__ __forceinline__ void scores(const float *factors, int key, bool masked,
                                           float (&s)[S::TILES][4]) const
    {
        const int lane = few_lane();
        const int at = lane / 4;
#pragma unroll
        for (int i = 0; i < 2 && !S::Codes::PLAIN; i++) {
            const float scale = factors[K_SCALE * S::EACH + at + 8 * i],
                        shift = S::SHIFTS ? factors[K_SHIFT * S::EACH + at + 8 * i] : 0;
#pragma unroll
            for (int t = 0; t < S::TILES; t++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float &x = s[t][2 * i + r];
                    x *= rows.unit(t, r);
                    x = S::SHIFTS ? fmaf(x, scale, shift * rows.q_sum[t][r]) : x * scale;
                }
            }
        }
        if (S::STEPS && c.forward.few.light) {
            step(key + at, s);
        }
        if (__builtin_expect(masked, false)) {
            mask(key + at, s);
        }
    }

    /* The arguments, for steps that few problems have: lines of them are slow when first read, and
     * the compiler reads ahead what it can. */
    __device__ __forceinline__ const attn_cuda_codes_params &later() const
    {
        return (&c)[ptx::opaque(0)];
    }

    /* Light steps. key: the lane's first. */
    __device__ __forceinline__ void step(int key, float (&s)[S::TILES][4]) const
    {
        const attn_cuda_steps &x = later().forward.steps_sm90;
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            if (x.softcap) {
                softcap_scores(x, s[t]);
            }
#pragma unroll
            for (int e = 0; e < 4 && x.scaled; e++) {
                s[t][e] *= x.scale;
            }
#pragma unroll
            for (int r = 0; r < 2 && x.alibi; r++) {
                slope(8 * t + 2 * (few_lane() % 4) + r, key, s[t][r], s[t][2 + r]);
            }
        }
    }
    /* ALiBi of row r for keys `key` and key + 8. */
    __device__ __forceinline__ void slope(int r, int key, float &s, float &behind) const
    {
        const attn_cuda_forward_params &a = later().forward;
        const attn_tensor &t = a.problem.alibi;
        r = min(r, item.rows - 1);
        const float factor = a.steps_sm90.alibi_factor,
                    slope = load_real<float>(
                        attn_at_broadcast(&t, item.sequence.index, item.head(c, r), 0, 0), t.dtype);
        const int64_t distance = item.query(c, r) + item.sequence.diagonal - key;
        s = fmaf(-slope, (float)llabs(distance), s * factor);
        behind = fmaf(-slope, (float)llabs(distance - 8), behind * factor);
    }

    /* Other score steps, and -inf for keys that a row does not see, one number after the other: few
     * tiles need it, and their code should be short. key: the lane's first. */
    __device__ __forceinline__ void mask(int key, float (&s)[S::TILES][4]) const
    {
        const int lane = few_lane();
        const attn_cuda_forward_params &a = later().forward;
#pragma unroll 1
        for (int n = 0; n < 4 * S::TILES; n++) {
            const int r = n / 4 * 8 + 2 * (lane % 4) + n % 2, i = item.query(c, r),
                      j = key + n / 2 % 2 * 8;
            const int2 see = seen_keys(item.band, r < item.rows ? i : 1 << 30);
            float x = -INFINITY;
            if (j >= see.x && j < see.y) {
                x = one<false>(s, n, x);
                if (S::STEPS && c.forward.few.steps && !c.forward.few.light) {
                    const ScoreRow<float> score(a.problem, item.sequence, item.head(c, r), i);
                    x = score.visible(j) ? score.step(x, j) : -INFINITY;
                }
            }
            one<true>(s, n, x);
        }
    }
    /* Reads or writes number n, without an address for it. */
    template <bool WRITE>
    static __device__ __forceinline__ float one(float (&s)[S::TILES][4], int n, float x)
    {
#pragma unroll
        for (int i = 0; i < 4 * S::TILES; i++) {
            float &at = s[i / 4][i % 4];
            if (WRITE) {
                at = i == n ? x : at;
            } else {
                x = i == n ? at : x;
            }
        }
        return x;
    }

    /* Makes rows NaN that see a key with a code that is no finite number. Slow; such codes are
     * rare. */
    __device__ __forceinline__ void note_unsound(const unsigned char *k,
                                                 const float (&s)[S::TILES][4]) const
    {
        const int lane = few_lane();
        const attn_cuda_few &few = c.forward.few;
        uint32_t unsound = 0;
#pragma unroll 1
        for (int at = lane / 16 * 4; at < S::ROW; at += 8) { /* a key by two lanes */
            const int place = S::place(lane % 16, at);
            if (at < few.k_bytes) {
                unsound |= S::Codes::unsound(*(const uint32_t *)(k + place));
            }
            if (at < few.v_bytes) {
                unsound |= S::Codes::unsound(*(const uint32_t *)(k + S::TILE + place));
            }
        }
        note_keys(__ballot_sync(~0u, (unsound & 0x80808080) != 0), s);
    }
    /* The same of elements of 16 bits in a tile of V whose keys some row does not see in full.
     * Values that are not finite become 0, since 0 times them is not 0. */
    __device__ __forceinline__ void clean_values(unsigned char *v,
                                                 const float (&s)[S::TILES][4]) const
    {
        const int lane = few_lane();
        bool found = false;
#pragma unroll 1
        for (int at = lane / 16 * 16; at < S::ROW; at += 32) {
            found |= clean_16<S::BF16>(ptx::shared_address(v + S::place(lane % 16, at)));
        }
        const uint32_t keys = __ballot_sync(~0u, found);
        __syncwarp();
        if (keys != 0) {
            note_keys(keys, s);
        }
    }
    /* Makes rows NaN that see one of the keys: two bits for each of 16. */
    __device__ __forceinline__ void note_keys(uint32_t keys, const float (&s)[S::TILES][4]) const
    {
        const int lane = few_lane();
        keys |= keys >> 16;
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const bool met = keys >> (lane / 4 + e / 2 * 8) & 1 && s[t][e] != -INFINITY;
                rows.l[t][e % 2] += met ? NAN : 0;
            }
        }
    }

    /* The warp's first key of block `block`. */
    static __device__ __forceinline__ int first_key(int block)
    {
        return block * S::KEYS + ptx::thread() / 32 * S::EACH;
    }
    /* Adds the warp's keys of the tile of block `block` in few steps. Returns false, having added
     * none, if some row does not see all of them, or codes have to be bf16. */
    __device__ __forceinline__ bool add_quick(const unsigned char *stage, int block) const
    {
        constexpr bool HALVES = S::Codes::HALVES;
        static_assert(S::Codes::INTEGER || HALVES, "no code is looked at");
        const float *factors = (const float *)(stage + S::FACTORS_AT);
        float s[S::TILES][4];
        if (item.blocks.masked(block) || (HALVES && !rows.halves)) {
            return false;
        }
        products<HALVES>(stage, s);
        scores(factors, first_key(block), false, s);
        FewScales scales = values.load_scales(factors);
        if (!values.template move<HALVES>(s, scales, true)) {
            return false;
        }
        values.template weigh<HALVES>(stage, scales, s);
        return true;
    }
    /* Adds them whatever they are. */
    __device__ __forceinline__ void add(unsigned char *stage, int block) const
    {
        constexpr bool HALVES = S::Codes::HALVES;
        const float *factors = (const float *)(stage + S::FACTORS_AT);
        const bool masked =
            !S::SHARED && (item.blocks.masked(block) ||
                           (S::STEPS && c.forward.few.steps && !c.forward.few.light));
        float s[S::TILES][4];
        uint32_t unsound =
            HALVES && rows.halves ? products<HALVES>(stage, s) : products<false>(stage, s);
        scores(factors, first_key(block), masked, s);
        if (S::Codes::PLAIN && __builtin_expect(masked, false)) {
            clean_values(stage + S::TILE, s);
        }
        FewScales scales = values.load_scales(factors);
        constexpr bool MAY = !S::QUICK && HALVES; /* else add_quick has tried */
        if (values.template move<MAY>(s, scales, rows.halves && !masked) && MAY) {
            values.template weigh<MAY>(stage, scales, s);
            return;
        }
        unsound |= values.template weigh<false>(stage, scales, s);
        if (__builtin_expect(__any_sync(~0u, (unsound & 0x80808080) != 0), false)) {
            note_unsound(stage, s);
        }
    }
};
