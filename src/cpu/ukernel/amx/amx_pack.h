/*
 * amx_pack.h: rows of Q, K and V into panels of bf16 parts. Included by amx_body.h, with its
 * parameters; the panels are drawn there.
 */

/* split_columns() of a row, or zero for NULL. */
ATTN_INLINE void split_row(__m512i *part, const void *row, int64_t stride, int64_t c, int64_t n,
                           float factor)
{
    if (row) {
        split_columns(part, row, stride, c, n, factor);
        return;
    }
    for (int i = 0; i < PARTS; i++) {
        part[i] = _mm512_setzero_si512();
    }
}

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

/* 32 keys x 32 columns of one part: pairs of keys interleaved to dwords, the columns of lower and
 * of upper halves apart, transposed. */
static void transpose_values(uint16_t *to, __m512i (*row)[PARTS], int part)
{
    __m512i low[16], high[16];
    for (int pair = 0; pair < 16; pair++) {
        __m512i a = row[2 * pair][part], b = row[2 * pair + 1][part];
        low[pair] = _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
        high[pair] = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b);
    }
    transpose16((uint32_t *)(to + LOW_COLUMN * PANEL_KEYS), COLUMN_STEP * PANEL_KEYS / 2, low);
    transpose16((uint32_t *)(to + HIGH_COLUMN * PANEL_KEYS), COLUMN_STEP * PANEL_KEYS / 2, high);
}

static void pack_v(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv, int64_t dv_pad)
{
    for (int64_t key = 0; key < n; key += KEY_STEP) {
        for (int64_t c = 0; c < dv_pad; c += 32) {
            __m512i row[KEY_STEP][PARTS];
            for (int64_t i = 0; i < KEY_STEP; i++) {
                const element *x = (const element *)src->data + (key + i) * src->row_stride;
                split_row(row[i], key + i < n ? x : NULL, src->col_stride, c, dv, 1);
            }
            for (int part = 0; part < PARTS; part++) {
                uint16_t *to = (uint16_t *)v + (part * dv_pad + c) * PANEL_KEYS + at + key;
                transpose_values(to, row, part);
            }
        }
    }
}

static void pack_q(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d,
                   double factor, int lanes)
{
    (void)dtype;
    const int width = lanes > TILE ? STRIP : TILE; /* as much as qk reads */
    for (int64_t c = 0; c < d; c += 32) {
        for (int lane = 0; lane < width; lane += TILE) {
            __m512i split[TILE][PARTS], x[TILE];
            for (int i = 0; i < TILE; i++) {
                split_row(split[i], row[lane + i], stride, c, d, (float)factor);
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
