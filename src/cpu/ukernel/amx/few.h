/*
 * few.h: V^T P for strips of at most 16 rows, as O = P V: A is P, its rows the queries, and B is V
 * in squares (pairs/few.h). Each sum is the same as in pv(). Included by products.h.
 */

enum { FEW_LANES = GROUP };

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

static void pv_few(void *ot, const attn_values *v, const void *p, int64_t n, const void *alpha,
                   int lanes)
{
    enum { STEPS = KEY_BLOCK / KEY_STEP, STEP = GROUP * KEY_STEP };
    uint16_t weights[PARTS * STEPS * STEP] __attribute__((aligned(64)));
    uint16_t square[2][PARTS * SQUARE] __attribute__((aligned(64)));
    float sum[2][GROUP * GROUP] __attribute__((aligned(64)));
    factors f = {
        .a_stride = KEY_STEP * 2,
        .a_part = STEPS * STEP,
        .b_stride = 2 * STRIP * 2,
        .b_part = SQUARE,
        .steps = 1,
        .swapped = true,
    };
    const int64_t steps = (n + KEY_STEP - 1) / KEY_STEP;
    (void)lanes;
    for (int part = 0; part < PARTS; part++) {
        for (int64_t i = 0; i < steps; i++) {
            transpose_probabilities(weights + part * f.a_part + i * STEP,
                                    (const uint16_t *)p + part * P_PART + i * KEY_STEP * STRIP);
        }
    }
    if (!alpha) {
        memset(ot, 0, (size_t)(v->dv_pad * STRIP) * sizeof(float));
    }
    const vec a = alpha ? v_load(alpha) : v_set1(0);
    for (int64_t c = 0; c < v->dv_pad; c += 2 * TILE) {
        float *to = (float *)ot + c * STRIP;
        zero_sums(LOW, true);
        for (int64_t i = 0; i < steps; i++) {
            const int64_t key = i * KEY_STEP;
            pack_square(square[i % 2], v->rows + key, v->count - key, c, v->dv, v->soon);
            f.b = square[i % 2];
            add_products(weights + i * STEP, &f, false, LOW, true, NULL);
        }
        TILE_STORE(0, sum[0], GROUP * 4);
        TILE_STORE(1, sum[1], GROUP * 4);
        add_columns(to, sum[0], a);
        add_columns(to + PAIR_HIGH * STRIP, sum[1], a);
    }
}
