/*
 * values_tiles.h: the V panel of tables on AMX tiles, as A tiles have it: rows are columns of V.
 * Included by pairs/body.h.
 *
 *     V   [dv_pad][KEY_BLOCK + 32]  transposed, once per part; keys from the last packed one to a
 *                                   multiple of 32 are zero
 */
enum { GRANULE = 2 * GROUP, K_KEYS = 0, P_STEP = KEY_STEP };

static uint64_t v_bytes(int64_t dv_pad)
{
    return PARTS * (uint64_t)PANEL_KEYS * (uint64_t)dv_pad * 2;
}

/* Bytes of a column of the panel, and from its start to key `at`. */
enum { V_COLUMN_BYTES = PANEL_KEYS * 2 };

static int64_t v_key_bytes(int64_t at)
{
    return at * 2;
}

/* 32 keys x 32 columns of one part: pairs of keys interleaved to dwords, the columns of lower and
 * of upper halves apart, transposed. */
static void transpose_values(uint16_t *to, dwords (*row)[PARTS], int part)
{
    dwords low[16], high[16];
    for (int pair = 0; pair < 16; pair++) {
        dwords a = row[2 * pair][part], b = row[2 * pair + 1][part];
        low[pair] = d_low_halves(a, b);
        high[pair] = d_high_halves(a, b);
    }
    transpose16((uint32_t *)(to + LOW_COLUMN * PANEL_KEYS), COLUMN_STEP * PANEL_KEYS / 2, low);
    transpose16((uint32_t *)(to + HIGH_COLUMN * PANEL_KEYS), COLUMN_STEP * PANEL_KEYS / 2, high);
}

/* Goes up to the next multiple of 32 keys of the panel, from any first key. */
static void pack_v(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv, int64_t dv_pad)
{
    const int64_t end = (at + n + KEY_STEP - 1) / KEY_STEP * KEY_STEP - at;
    for (int64_t key = 0; key < end; key += KEY_STEP) {
        for (int64_t c = 0; c < dv_pad; c += 32) {
            dwords row[KEY_STEP][PARTS];
            for (int64_t i = 0; i < KEY_STEP; i++) {
                const element *x = (const element *)src->data + (key + i) * src->row_stride;
                attn_fetch_soon(src->soon, 32);
                split_row(row[i], key + i < n ? x : NULL, src->col_stride, c, dv, 1);
            }
            for (int part = 0; part < PARTS; part++) {
                uint16_t *to = (uint16_t *)v + (part * dv_pad + c) * PANEL_KEYS + at + key;
                transpose_values(to, row, part);
            }
        }
    }
}

static bool clean_v(void *to, const void *v_, int64_t at, int64_t n, int64_t dv_pad,
                    const attn_specials *found)
{
    const int64_t words = attn_special_words(KEY_BLOCK), v_part = dv_pad * PANEL_KEYS,
                  keys = pad32(n);
    bool any = false;
    memset(found->plus, 0, (size_t)(dv_pad * words) * sizeof *found->plus);
    memset(found->minus, 0, (size_t)(dv_pad * words) * sizeof *found->minus);
    for (int64_t c = 0; c < dv_pad; c++) {
        const int64_t first = c * PANEL_KEYS + at;
        const uint16_t *v = (const uint16_t *)v_ + first;
        for (int64_t some = 0; some < keys; some += NOTED) {
            uint32_t left = 0;
            for (int part = 0; part < PARTS; part++) {
                left |= special_bits(v + some + part * v_part);
            }
            for (any |= left != 0; left != 0; left &= left - 1) {
                const int64_t i = some + __builtin_ctz(left);
                note(found->plus + c * words, found->minus + c * words, at + i,
                     whole(v + i, v_part));
            }
        }
        for (int part = 0; part < PARTS; part++) {
            copy_finite((uint16_t *)to + part * v_part + first, v + part * v_part, keys);
        }
    }
    return any;
}
