/*
 * amx_body.h: the microkernels on AMX tiles, for elements that are the sum of PARTS bf16 parts. Included at the end of
 * amx_bf16.c and amx_f32.c, which define before it
 *
 *   NAME, PARTS        bf16, 1 or f32, 3
 *   element            the type of Q, K, V in memory
 *   split_columns()    32 columns of a row -> PARTS vectors of bf16
 *   products()         tiles 0..3 += the products of parts that are taken
 *   store_pair()       two rows of 16 probabilities -> pairs of each part
 *   probability()      exp2
 *
 * and get one table. Scores, masks and results are those of AVX-512. Panels, once per part:
 *
 *     K   [key][d_pad]              bf16, d_pad = d rounded up to 32, padding zero
 *     QT  [d_pad / 2][32][2]        dword (c/2, query) holds columns c and c + 1
 *     V   [dv_pad][KEY_BLOCK + 32]  transposed; keys from the last packed one to a multiple of 32 are zero
 *     P   [key / 2][32][2]          dword (key/2, query); with one part in place of S (rows of 128 bytes: a key)
 */

/* ---- packing --------------------------------------------------------------------------------------------------- */

static void pack_k(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d)
{
    int64_t d_pad = pad32(d);
    for (int64_t key = 0; key < n; key++) {
        const element *row = (const element *)src->data + key * src->row_stride;
        uint16_t *to = (uint16_t *)k + (at + key) * d_pad;
        for (int64_t c = 0; c < d_pad; c += 32) {
            __m512i part[PARTS];
            split_columns(part, row, src->col_stride, c, d, 1);
            for (int i = 0; i < PARTS; i++) {
                _mm512_storeu_si512(to + i * PANEL_KEYS * d_pad + c, part[i]);
            }
        }
    }
}

/* 32 keys x 32 columns of one part: pairs of keys interleaved to dwords, even and odd columns apart, transposed. */
static void transpose_values(uint16_t *to, __m512i (*row)[PARTS], int part, int64_t columns)
{
    __m512i even[16], odd[16];
    for (int pair = 0; pair < 16; pair++) {
        __m512i a = row[2 * pair][part], b = row[2 * pair + 1][part];
        even[pair] = _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
        odd[pair] = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b);
    }
    uint32_t block[32][16]; /* [column][pair] */
    transpose16(block[0], 32, even);
    transpose16(block[1], 32, odd);
    for (int i = 0; i < 32 && i < columns; i++) {
        memcpy(to + i * PANEL_KEYS, block[i], sizeof block[i]);
    }
}

static void pack_v(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv, int64_t dv_pad)
{
    for (int64_t key = 0; key < n; key += KEY_STEP) {
        for (int64_t c = 0; c < dv_pad; c += 32) {
            __m512i row[KEY_STEP][PARTS];
            for (int64_t i = 0; i < KEY_STEP; i++) {
                const element *x = (const element *)src->data + (key + i) * src->row_stride;
                split_columns(row[i], key + i < n ? x : NULL, src->col_stride, c, dv, 1);
            }
            for (int part = 0; part < PARTS; part++) {
                uint16_t *to = (uint16_t *)v + (part * dv_pad + c) * PANEL_KEYS + at + key;
                transpose_values(to, row, part, dv_pad - c);
            }
        }
    }
}

static void pack_q(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d, double factor)
{
    (void)dtype;
    for (int64_t c = 0; c < d; c += 32) {
        for (int lane = 0; lane < STRIP; lane += TILE) {
            __m512i split[TILE][PARTS], x[TILE];
            for (int i = 0; i < TILE; i++) {
                split_columns(split[i], row[lane + i], stride, c, d, (float)factor);
            }
            for (int part = 0; part < PARTS; part++) {
                for (int i = 0; i < TILE; i++) {
                    x[i] = split[i][part];
                }
                transpose16((uint32_t *)qt + (part * pad32(d) + c) / 2 * STRIP + lane, STRIP, x);
            }
        }
    }
}

/* ---- products -------------------------------------------------------------------------------------------------- */

static void qk(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n)
{
    int64_t d_pad = pad32(d);
    for (int64_t key = 0; key < n; key += 2 * TILE) {
        const uint16_t *a = (const uint16_t *)k + (at + key) * d_pad;
        zero_tiles();
        products(a, PANEL_KEYS * d_pad, d_pad * 2, qt, d_pad * STRIP, d_pad / 32);
        store_tiles((float *)s + key * STRIP);
    }
}

/* OT[16 rows] = OT alpha + the fresh sums in `sum`. */
static void add_rows(float *ot, const float *sum, const float *alpha)
{
    const vec a0 = v_load(alpha), a1 = v_load(alpha + VL);
    for (int i = 0; i < TILE * STRIP; i += STRIP) {
        v_store(ot + i, v_fma(v_load(ot + i), a0, v_load(sum + i)));
        v_store(ot + i + VL, v_fma(v_load(ot + i + VL), a1, v_load(sum + i + VL)));
    }
}

static void pv(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n, const void *alpha)
{
    float sum[2 * TILE * STRIP] __attribute__((aligned(64)));
    for (int64_t c = 0; c < dv_pad; c += 2 * TILE) {
        const uint16_t *a = (const uint16_t *)v + c * PANEL_KEYS + at;
        zero_tiles();
        products(a, dv_pad * PANEL_KEYS, PANEL_KEYS * 2, p, P_PART, (n + KEY_STEP - 1) / KEY_STEP);
        store_tiles(sum);
        add_rows((float *)ot + c * STRIP, sum, alpha);
        add_rows((float *)ot + (c + TILE) * STRIP, sum + TILE * STRIP, alpha);
    }
}

/* The sum of an element's parts. */
static float whole(const uint16_t *x, int64_t part)
{
    float sum = 0;
    for (int i = 0; i < PARTS; i++) {
        sum += attn_bf16_to_f32(x[i * part]);
    }
    return sum;
}

static void pv_careful(void *ot, const void *v_, int64_t at, const void *p, int64_t dv_pad, int64_t n,
                       const void *alpha, const unsigned char *visible)
{
    for (int64_t c = 0; c < dv_pad; c++) {
        const uint16_t *v = (const uint16_t *)v_ + c * PANEL_KEYS + at;
        for (int lane = 0; lane < STRIP; lane++) {
            float sum = 0, *o = (float *)ot + c * STRIP + lane;
            for (int64_t key = 0; key < n; key++) {
                if (visible[key * STRIP + lane]) {
                    const uint16_t *w = (const uint16_t *)p + (key / 2 * STRIP + lane) * 2 + key % 2;
                    sum = fmaf(whole(v + key, dv_pad * PANEL_KEYS), whole(w, P_PART), sum);
                }
            }
            *o = fmaf(*o, ((const float *)alpha)[lane], sum);
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------------------------- */

/* The largest of n rows (n even) and *m, for one vector of lanes. */
ATTN_INLINE vec top_rows(const float *s, int64_t n, vec m)
{
    vec other = m;
    for (int64_t key = 0; key < n; key += 2) {
        m = v_max(m, v_load(s + key * STRIP));
        other = v_max(other, v_load(s + key * STRIP + STRIP));
    }
    return v_max(m, other);
}

static void softmax(void *p_, void *s, int64_t n, double c_, void *m_, void *l_, void *alpha_)
{
    const vec c = v_set1((float)c_), least = v_set1((float)(EXP2_MIN / c_));
    const int64_t even = n + n % 2, pad = pad32(n);
    if (n % 2) {
        for (int i = 0; i < STRIP; i++) {
            ((float *)s)[n * STRIP + i] = -INFINITY;
        }
    }
    for (int g = 0; g < STRIP; g += VL) {
        float *x = (float *)s + g, *m = (float *)m_ + g, *l = (float *)l_ + g, *alpha = (float *)alpha_ + g;
        uint16_t *p = (uint16_t *)p_ + 2 * g;
        vec old = v_load(m), top = top_rows(x, even, old), used = v_zero_lt(top, v_set1(-REAL_MAX), top);
        vec sum = v_set1(0), a = probability(v_sub(old, used), c, least);
        for (int64_t key = 0; key < even; key += 2) {
            vec first = probability(v_sub(v_load(x + key * STRIP), used), c, least);
            vec second = probability(v_sub(v_load(x + (key + 1) * STRIP), used), c, least);
            sum = v_add(v_add(sum, first), second);
            store_pair(p + key * STRIP, first, second);
        }
        for (int64_t key = even; key < pad; key += 2) {
            store_pair(p + key * STRIP, v_set1(0), v_set1(0));
        }
        v_store(m, top);
        v_store(l, v_fma(v_load(l), a, sum));
        v_store(alpha, a);
    }
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static uint64_t k_bytes(int64_t d)
{
    return PARTS * (uint64_t)PANEL_KEYS * (uint64_t)pad32(d) * 2;
}

static uint64_t v_bytes(int64_t dv_pad)
{
    return PARTS * (uint64_t)PANEL_KEYS * (uint64_t)dv_pad * 2;
}

static uint64_t q_bytes(int64_t d)
{
    return PARTS * (uint64_t)pad32(d) * STRIP * 2;
}

static uint64_t p_bytes(void)
{
    return PARTS > 1 ? PARTS * (uint64_t)P_PART * 2 : 0;
}

const attn_ukernel ATTN_CAT(attn_ukernel_amx_, NAME) = {
    .name = "amx_" ATTN_STRING(NAME),
    .strip = STRIP,
    .granule = 2 * TILE,
    .key_block = KEY_BLOCK,
    .key_step = KEY_STEP,
    .real_size = 4,
    .begin = begin,
    .end = end,
    .k_bytes = k_bytes,
    .v_bytes = v_bytes,
    .q_bytes = q_bytes,
    .p_bytes = p_bytes,
    .pack_k = pack_k,
    .pack_v = pack_v,
    .pack_q = pack_q,
    .qk = qk,
    .bias_lane = bias_lane_f32,
    .score = score_f32,
    .mask = mask_f32,
    .softmax = softmax,
    .pv = pv,
    .pv_careful = pv_careful,
    .finite = finite_f32,
    .store = store_f32,
};
