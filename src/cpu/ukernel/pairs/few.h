/*
 * few.h: V for strips of few rows, which take V^T P as O = P V: pairs of keys lie side by side
 * without a transposition. Panel, once per part:
 *
 *     V  [key / 2][dv_pad][2]   up to the next multiple of 32 keys zero
 */

ATTN_INLINE uint16_t *pair_row(void *v, int part, int64_t key, int64_t dv_pad)
{
    return (uint16_t *)v + part * KEY_BLOCK * dv_pad + key / 2 * 2 * dv_pad;
}

/* Packs two keys of the panel whose rows are whole. Dwords of 16 columns hold the pair. */
ATTN_INLINE void pack_whole_pair(void *v, int64_t key, const element *first, const element *second,
                                 int64_t dv_pad)
{
    for (int64_t c = 0; c < dv_pad; c += 32) {
        __m512i low[PARTS], high[PARTS];
        split_columns(low, first, 1, c, dv_pad, 1);
        split_columns(high, second, 1, c, dv_pad, 1);
        for (int part = 0; part < PARTS; part++) {
            store_columns(pair_row(v, part, key, dv_pad) + 2 * c, low[part], high[part]);
        }
    }
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
            attn_fetch_soon(src->soon, 2);
            if (key % 8 < 2) {
                STAY_AWAKE();
            }
        }
        const element *second = next - key > 1 && key + 1 < n ? row + src->row_stride : NULL;
        if (second && src->col_stride == 1 && dv == dv_pad) {
            pack_whole_pair(v, at + key, row, second, dv_pad);
        } else {
            pack_pair(v, at + key, row, second, src->col_stride, dv, dv_pad);
        }
    }
    for (int64_t key = n + (at + n) % 2; key < all; key += 2) {
        for (int part = 0; part < PARTS; part++) {
            memset(pair_row(v, part, at + key, dv_pad), 0, (size_t)dv_pad * 4);
        }
    }
}
