/*
 * few.h: V^T P for strips of at most 16 rows, as O = P V: A is P, its rows the queries, and B is V
 * as pairs/few.h packs it. Each sum is the same as in pv(). Included by products.h.
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

/* to[16 columns] = to alpha + the sums of products, which lie [row][column]. */
ATTN_INLINE void add_columns(float *to, const float *sum, vec alpha)
{
    float column[GROUP * GROUP] __attribute__((aligned(64)));
    __m512i x[GROUP];
    for (int i = 0; i < GROUP; i++) {
        x[i] = _mm512_loadu_si512(sum + i * GROUP);
    }
    transpose16((uint32_t *)(void *)column, GROUP, x);
    for (int i = 0; i < GROUP; i++) {
        v_store(to + i * STRIP, v_fma(v_load(to + i * STRIP), alpha, v_load(column + i * GROUP)));
    }
}

static void pv_few(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n,
                   const void *alpha, int lanes)
{
    enum { STEPS = KEY_BLOCK / KEY_STEP, STEP = GROUP * KEY_STEP };
    uint16_t weights[PARTS * STEPS * STEP] __attribute__((aligned(64)));
    float sum[2][GROUP * GROUP] __attribute__((aligned(64)));
    factors f = {
        .a = weights,
        .a_stride = KEY_STEP * 2,
        .a_part = STEPS * STEP,
        .a_step = STEP,
        .b_stride = dv_pad * 4,
        .b_part = KEY_BLOCK * dv_pad,
        .b_step = KEY_STEP * dv_pad,
        .steps = (n + KEY_STEP - 1) / KEY_STEP,
        .swapped = true,
    };
    (void)lanes;
    for (int part = 0; part < PARTS; part++) {
        for (int64_t i = 0; i < f.steps; i++) {
            transpose_probabilities(weights + part * f.a_part + i * STEP,
                                    (const uint16_t *)p + part * P_PART + i * KEY_STEP * STRIP);
        }
    }
    if (!alpha) {
        memset(ot, 0, (size_t)(dv_pad * STRIP) * sizeof(float));
    }
    const vec a = alpha ? v_load(alpha) : v_set1(0);
    for (int64_t c = 0; c < dv_pad; c += 2 * TILE) {
        float *to = (float *)ot + c * STRIP;
        f.b = (const uint16_t *)v + at * dv_pad + 2 * c;
        zero_sums(LOW, true);
        add_products(f.a, &f, false, LOW, true, NULL);
        TILE_STORE(0, sum[0], GROUP * 4);
        TILE_STORE(1, sum[1], GROUP * 4);
        add_columns(to, sum[0], a);
        add_columns(to + TILE * STRIP, sum[1], a);
    }
}
