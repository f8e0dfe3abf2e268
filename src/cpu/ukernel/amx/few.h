/*
 * few.h: V^T P for strips of at most 16 rows, as O = P V: A is P, its rows the queries, and B is V
 * in squares of 32 keys and 32 columns, whose pairs of keys lie side by side without a
 * transposition:
 *
 *     [part][key / 2][32][2]
 *
 * Dword i of the first half of a row is column PAIR_LOW(i), of the second half that PAIR_HIGH
 * beyond. Each sum is the same as in pv(). Included by products.h.
 */

enum {
    FEW_LANES = GROUP,
    STEPS = KEY_BLOCK / KEY_STEP, /* of a block */
    WEIGHTS = GROUP * KEY_STEP,   /* elements of a part of P, for a step */
    SQUARE = KEY_STEP * STRIP     /* and of a square */
};

/* P of 32 keys and 16 rows becomes [row][key]. */
ATTN_INLINE void transpose_probabilities(uint16_t *to, const uint16_t *p)
{
    __m512i x[GROUP];
    for (int i = 0; i < GROUP; i++) {
        x[i] = _mm512_loadu_si512(p + i * 2 * STRIP);
    }
    transpose16((uint32_t *)(void *)to, GROUP, x);
}

/* Columns first + PAIR_LOW(i) of `to` = to alpha + the sums of products, which lie [row][i]. */
ATTN_INLINE void add_columns(float *to, const float *sum, vec alpha)
{
    float column[GROUP * GROUP] __attribute__((aligned(64)));
    __m512i x[GROUP];
    for (int i = 0; i < GROUP; i++) {
        x[i] = _mm512_loadu_si512(sum + i * GROUP);
    }
    transpose16((uint32_t *)(void *)column, GROUP, x);
    for (int i = 0; i < GROUP; i++) {
        float *o = to + PAIR_LOW(i) * STRIP;
        v_store(o, v_fma(v_load(o), alpha, v_load(column + i * GROUP)));
    }
}

/* The 32 keys from `key` on and 32 columns from c on, or 64 (`wide`), as a square or two. */
ATTN_INLINE void pack_squares(uint16_t *to, const attn_values *v, int64_t key, int64_t c,
                              const bool wide)
{
    const char *const *row = v->rows + key;
    const int64_t count = v->count - key;
    for (int64_t i = 0; i < KEY_STEP; i += 2, to += 2 * STRIP) {
        const char *first = i < count ? row[i] : NULL, *second = i + 1 < count ? row[i + 1] : NULL;
        attn_fetch_soon(v->soon, (wide ? 8 : 4) * STRIP);
        for (int square = 0; square < (wide ? 2 : 1); square++) {
            dwords low[PARTS], high[PARTS];
            split_keys(low, high, first, second, c + square * 2 * TILE, v->dv);
            for (int part = 0; part < PARTS; part++) {
                d_store(to + (square * PARTS + part) * SQUARE, low[part]);
                d_store(to + (square * PARTS + part) * SQUARE + STRIP, high[part]);
            }
        }
    }
}

/* 32 columns from c on, or 64: OT = OT alpha + V^T P. */
ATTN_INLINE void pv_columns(float *to, const attn_values *v, const uint16_t *weights, int64_t steps,
                            int64_t c, vec alpha, const bool wide)
{
    uint16_t square[2][2 * PARTS * SQUARE] __attribute__((aligned(64)));
    float sum[4][GROUP * GROUP] __attribute__((aligned(64)));
    factors f = {
        .a_stride = KEY_STEP * 2,
        .a_part = STEPS * WEIGHTS,
        .b_stride = 2 * STRIP * 2,
        .b_part = SQUARE,
        .steps = 1,
        .swapped = true,
    };
    zero_sums(wide ? BOTH : LOW, true);
    for (int64_t i = 0; i < steps; i++) {
        pack_squares(square[i % 2], v, i * KEY_STEP, c, wide);
        f.b = square[i % 2];
        add_products(weights + i * WEIGHTS, &f, false, LOW, true, NULL);
        if (wide) {
            f.b += PARTS * SQUARE;
            add_products(weights + i * WEIGHTS, &f, false, HIGH, true, NULL);
        }
    }
    TILE_STORE(0, sum[0], GROUP * 4);
    TILE_STORE(1, sum[1], GROUP * 4);
    if (wide) {
        TILE_STORE(2, sum[2], GROUP * 4);
        TILE_STORE(3, sum[3], GROUP * 4);
    }
    for (int i = 0; i < (wide ? 4 : 2); i++) {
        add_columns(to + (i / 2 * 2 * TILE + i % 2 * PAIR_HIGH) * STRIP, sum[i], alpha);
    }
}

static void pv_few(void *ot, const attn_values *v, const void *p, int64_t n, const void *alpha,
                   int lanes)
{
    uint16_t weights[PARTS * STEPS * WEIGHTS] __attribute__((aligned(64)));
    const int64_t steps = (n + KEY_STEP - 1) / KEY_STEP;
    (void)lanes;
    for (int part = 0; part < PARTS; part++) {
        for (int64_t i = 0; i < steps; i++) {
            transpose_probabilities(weights + (part * STEPS + i) * WEIGHTS,
                                    (const uint16_t *)p + part * P_PART + i * KEY_STEP * STRIP);
        }
    }
    if (!alpha) {
        memset(ot, 0, (size_t)(v->dv_pad * STRIP) * sizeof(float));
    }
    const vec a = alpha ? v_load(alpha) : v_set1(0);
    /* A single step has no next one to pack beside its products: the next 32 columns are. */
    int64_t c = 0;
    for (; steps > 1 && c + 2 * TILE < v->dv_pad; c += 4 * TILE) {
        pv_columns((float *)ot + c * STRIP, v, weights, steps, c, a, true);
    }
    for (; c < v->dv_pad; c += 2 * TILE) {
        pv_columns((float *)ot + c * STRIP, v, weights, steps, c, a, false);
    }
}
