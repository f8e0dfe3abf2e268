/*
 * careful.h: products in which a lane or a key leaves out the positions that it must not see, for
 * rows that may hold NaN or Inf. They are the ordinary products of a copy of the right or left
 * factor with 0 in place of every number that is not finite, 32 columns at a time, and then, one by
 * one, the products of those numbers where they are seen. So a result without any of them has the
 * bits that it always has.
 */

#include "cpu/ukernel/table_grad.h"

static void pv(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n,
               const void *alpha, int lanes);
static void grad_rows(void *g, const void *p, int64_t at, const void *x, int64_t cols, int64_t n,
                      int first, int last);

enum {
    CAREFUL_COLUMNS = 32,
    /* room for a panel of V, or for rows of X and G, of so many columns */
    CAREFUL_V = PARTS * CAREFUL_COLUMNS * PANEL_KEYS * 2,
    CAREFUL_X = ATTN_MAX_ROW_BLOCK * PARTS * CAREFUL_COLUMNS * 2,
    CAREFUL_G = PANEL_KEYS * CAREFUL_COLUMNS * 4
};

static uint64_t careful_bytes(void)
{
    return CAREFUL_V > CAREFUL_X + CAREFUL_G ? CAREFUL_V : CAREFUL_X + CAREFUL_G;
}

/* The bits of a bf16 number, or those of 0 if it is not finite. */
static uint16_t finite_part(uint16_t bits)
{
    return (bits & 0x7f80) == 0x7f80 ? 0 : bits;
}

/* Copies n numbers; true if all are finite. */
static bool copy_finite(uint16_t *to, const uint16_t *from, int64_t n)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        to[i] = finite_part(from[i]);
        finite &= to[i] == from[i];
    }
    return finite;
}

/* Adds the products of non-finite numbers in one column of V, where a lane sees them. */
static void add_seen(float *ot, const uint16_t *v, int64_t v_part, const uint16_t *p, int64_t n,
                     const unsigned char *visible, int lanes)
{
    for (int64_t key = 0; key < n; key++) {
        const float x = whole(v + key, v_part);
        for (int lane = 0; x - x != 0 && lane < lanes; lane++) {
            const uint16_t *w = p + (key / 2 * STRIP + lane) * 2 + key % 2;
            if (visible[key * STRIP + lane]) {
                ot[lane] = fmaf(x, whole(w, P_PART), ot[lane]);
            }
        }
    }
}

static void pv_careful(void *ot_, const void *v_, int64_t at, const void *p, int64_t dv_pad,
                       int64_t n, const void *alpha, const unsigned char *visible, int lanes,
                       void *room)
{
    uint16_t *clean = room;
    const int64_t v_part = dv_pad * PANEL_KEYS, keys = pad32(n);
    for (int64_t first = 0; first < dv_pad; first += CAREFUL_COLUMNS) {
        float *ot = (float *)ot_ + first * STRIP;
        const uint16_t *v = (const uint16_t *)v_ + first * PANEL_KEYS;
        bool finite = true;
        for (int64_t i = 0; i < PARTS * CAREFUL_COLUMNS; i++) {
            const int64_t part = i / CAREFUL_COLUMNS, c = i % CAREFUL_COLUMNS;
            finite &= copy_finite(clean + i * PANEL_KEYS + at,
                                  v + part * v_part + c * PANEL_KEYS + at, keys);
        }
        pv(ot, clean, at, p, CAREFUL_COLUMNS, n, alpha, lanes);
        for (int64_t c = 0; !finite && c < CAREFUL_COLUMNS; c++) {
            add_seen(ot + c * STRIP, v + c * PANEL_KEYS + at, v_part, p, n, visible, lanes);
        }
    }
}

/* Rows first .. last-1 of 32 columns of X from column c on; true if all are finite. */
static bool copy_rows(uint16_t *to, const uint16_t *x, int64_t cols, int64_t c, int first, int last)
{
    bool finite = true;
    const int64_t rows = PARTS * GROUP; /* of a strip, each with two queries */
    for (int64_t i = first / STRIP * rows; i < (last + STRIP - 1) / STRIP * rows; i++) {
        finite &= copy_finite(to + i * CAREFUL_COLUMNS * 2, x + (i * cols + c) * 2,
                              CAREFUL_COLUMNS * 2);
    }
    return finite;
}

/* Adds the products of non-finite numbers in a row of X, for the keys that see them. */
static void add_seen_row(float *g, const uint16_t *p, const uint16_t *x, int64_t cols, int64_t n,
                         const unsigned char *visible)
{
    for (int64_t c = 0; c < CAREFUL_COLUMNS; c++) {
        const float value = whole(x + c * 2, GROUP * cols * 2);
        for (int64_t key = 0; value - value != 0 && key < n; key++) {
            if (visible[key * STRIP]) {
                float *to = g + key * CAREFUL_COLUMNS + c;
                *to = fmaf(whole(p + key * STRIP, P_PART), value, *to);
            }
        }
    }
}

static void copy_sums(float *to, int64_t to_cols, const float *from, int64_t from_cols, int64_t n)
{
    for (int64_t key = 0; key < n; key++) {
        memcpy(to + key * to_cols, from + key * from_cols, CAREFUL_COLUMNS * sizeof(float));
    }
}

static void grad_rows_careful(void *g, const void *p_, int64_t at, const void *x_, int64_t cols,
                              int64_t n, int first, int last, const unsigned char *visible,
                              void *room)
{
    uint16_t *clean = room;
    float *sums = (float *)(void *)((char *)room + CAREFUL_X);
    const uint16_t *p = (const uint16_t *)p_ + at * STRIP, *x = x_;
    for (int64_t c = 0; c < cols; c += CAREFUL_COLUMNS) {
        const bool finite = copy_rows(clean, x, cols, c, first, last);
        copy_sums(sums, CAREFUL_COLUMNS, (float *)g + c, cols, pad32(n));
        grad_rows(sums, p_, at, clean, CAREFUL_COLUMNS, n, first, last);
        for (int row = first; !finite && row < last; row++) {
            const int64_t strip = row / STRIP, low = row % GROUP, half = row % STRIP / GROUP;
            add_seen_row(sums, p + strip * PARTS * P_PART + 2 * low + half,
                         x + ((strip * PARTS * GROUP + low) * cols + c) * 2 + half, cols, n,
                         visible + (strip * KEY_BLOCK + at) * STRIP + row % STRIP);
        }
        copy_sums((float *)g + c, cols, sums, CAREFUL_COLUMNS, n);
    }
}
