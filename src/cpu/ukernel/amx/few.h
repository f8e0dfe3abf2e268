/*
 * few.h: V^T P for strips of at most 16 rows, as O = P V: A is P, its rows the queries, and B is V,
 * whose pairs of keys lie side by side without a transposition. Each sum is the same as in pv().
 * Included by body.h after its products, with its parameters. Panel, once per part:
 *
 *     V  [key / 2][dv_pad][2]   up to the next multiple of 32 keys zero
 */

ATTN_INLINE uint16_t *pair_row(void *v, int part, int64_t key, int64_t dv_pad)
{
    return (uint16_t *)v + part * KEY_BLOCK * dv_pad + key / 2 * 2 * dv_pad;
}

/* Keys `key` and key + 1 of the panel. The second is NULL beyond the last key. An odd key is the
 * second of a pair whose first one is there. */
ATTN_INLINE void pack_pair(void *v, int64_t key, const element *first, const element *second,
                           int64_t stride, int64_t dv, int64_t dv_pad)
{
    for (int64_t c = 0; c < dv_pad; c += 32) {
        __m512i low[PARTS], high[PARTS];
        split_row(low, key % 2 ? NULL : first, stride, c, dv, 1);
        split_row(high, key % 2 ? first : second, stride, c, dv, 1);
        for (int part = 0; part < PARTS; part++) {
            uint16_t *to = pair_row(v, part, key, dv_pad) + 2 * c;
            __m512i before[2] = {_mm512_loadu_si512(to), _mm512_loadu_si512(to + 32)};
            store_columns(to, low[part], high[part]);
            for (int i = 0; key % 2 && i < 2; i++) {
                const __m512i both = _mm512_or_si512(before[i], _mm512_loadu_si512(to + 32 * i));
                _mm512_storeu_si512(to + 32 * i, both);
            }
        }
    }
}

static void pack_v_few(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv,
                       int64_t dv_pad)
{
    const int64_t all = (at + n + KEY_STEP - 1) / KEY_STEP * KEY_STEP - at;
    for (int64_t key = 0, next; key < n; key = next) {
        const element *row = (const element *)src->data + key * src->row_stride;
        next = key + 2 - (at + key) % 2;
        if (src->soon) {
            attn_fetch_soon(src->soon, src->soon->lines / KEY_TILE); /* half */
        }
        pack_pair(v, at + key, row, next - key > 1 && key + 1 < n ? row + src->row_stride : NULL,
                  src->col_stride, dv, dv_pad);
    }
    for (int64_t key = n + (at + n) % 2; key < all; key += 2) {
        for (int part = 0; part < PARTS; part++) {
            memset(pair_row(v, part, at + key, dv_pad), 0, (size_t)dv_pad * 4);
        }
    }
}

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
