/*
 * values_dots.h: the V panel of tables on dots.h: two keys of 16 columns at a time, columns zipped.
 * Included by pairs/body.h.
 *
 *     V   [dv_pad / 16][KEY_BLOCK / 2 + 16][16][2]  the key behind an odd number of them is zero
 *
 * A product of 16 columns reads one run of memory.
 */
enum { GRANULE = GROUP, RUN = GROUP, V_RUN = PANEL_KEYS * RUN /* numbers of 16 columns */ };

/* Scores are computed for as many keys at a time, of few lanes, or for fewer. P is read by pairs
 * of keys. */
enum { K_KEYS = GROUP, P_STEP = 2 };

static uint64_t v_bytes(int64_t dv_pad)
{
    return (uint64_t)dv_pad * PANEL_KEYS * 2;
}

/* Bytes of a column of the panel, and from its start to the pair of keys at, at + 1. */
enum { V_COLUMN_BYTES = PANEL_KEYS * 2 };

static int64_t v_key_bytes(int64_t at)
{
    return at / 2 * RUN * 4;
}

/* Packs columns c .. c+31, as far as below dv_pad, of two rows; NULL is a row of zeros. */
ATTN_INLINE void zip_rows(uint16_t *to, const void *row, const void *next, int64_t stride,
                          int64_t c, int64_t dv, int64_t dv_pad)
{
    dwords x[PARTS], y[PARTS];
    uint16_t columns[64];
    split_row(x, row, stride, c, dv, 1);
    split_row(y, next, stride, c, dv, 1);
    store_columns(columns, x[0], y[0]);
    for (int i = 0; i < 32 && c + i < dv_pad; i += RUN) {
        memcpy(to + (c + i) / RUN * V_RUN, columns + 2 * i, 4 * RUN);
    }
}

/* Packs a row whose pair has its first key already. */
static void add_row(uint16_t *to, const void *row, int64_t stride, int64_t dv, int64_t dv_pad)
{
    for (int64_t c = 0; c < dv_pad; c += 32) {
        uint16_t column[32];
        dwords x[PARTS];
        split_row(x, row, stride, c, dv, 1);
        d_store(column, x[0]);
        for (int64_t i = 0; i < 32 && c + i < dv_pad; i++) {
            to[(c + i) / RUN * V_RUN + (c + i) % RUN * 2 + 1] = column[i];
        }
    }
}

static void pack_v(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv, int64_t dv_pad)
{
    uint16_t *to = (uint16_t *)v + v_key_bytes(at) / 2;
    const element *row = src->data;
    if (at % 2 && n > 0) {
        add_row(to, row, src->col_stride, dv, dv_pad);
        row += src->row_stride, to += 2 * RUN, n--;
    }
    for (; n > 0; n -= 2, row += 2 * src->row_stride, to += 2 * RUN) {
        const element *next = n > 1 ? row + src->row_stride : NULL;
        for (int64_t c = 0; c < dv_pad; c += 32) {
            attn_fetch_soon(src->soon, 64);
            zip_rows(to, row, next, src->col_stride, c, dv, dv_pad);
        }
    }
}

static bool clean_v(void *to, const void *v, int64_t at, int64_t n, int64_t dv_pad,
                    const attn_specials *found)
{
    const int64_t words = attn_special_words(KEY_BLOCK), first = at / 2, last = (at + n + 1) / 2;
    bool any = false;
    memset(found->plus, 0, (size_t)(dv_pad * words) * sizeof *found->plus);
    memset(found->minus, 0, (size_t)(dv_pad * words) * sizeof *found->minus);
    for (int64_t c = 0; c < dv_pad; c += RUN) {
        const int64_t from = c / RUN * V_RUN + first * 2 * RUN, count = (last - first) * 2 * RUN;
        const uint16_t *x = (const uint16_t *)v + from;
        for (int64_t pair = first; pair < last; pair++) {
            const uint16_t *two = x + (pair - first) * 2 * RUN;
            uint32_t left = special_bits(two);
            for (any |= left != 0; left != 0; left &= left - 1) {
                const int i = __builtin_ctz(left);
                const int64_t word = (c + i / 2) * words;
                note(found->plus + word, found->minus + word, 2 * pair + i % 2, whole(two + i, 0));
            }
        }
        copy_finite((uint16_t *)to + from, x, count);
    }
    return any;
}
