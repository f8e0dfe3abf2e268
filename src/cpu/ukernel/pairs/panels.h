/*
 * panels.h: rows of Q, K and dO into the panels of pairs.h, and their sizes.
 */

static uint64_t k_bytes(int64_t d)
{
    return PARTS * (uint64_t)PANEL_KEYS * (uint64_t)k_pad(d) * 2;
}

static uint64_t q_bytes(int64_t d)
{
    return PARTS * (uint64_t)pad32(d) * STRIP * 2;
}

static uint64_t p_bytes(void)
{
    return PARTS * (uint64_t)P_PART * 2;
}

static uint64_t x_bytes(int64_t cols)
{
    return PARTS * (uint64_t)STRIP * (uint64_t)cols * 2;
}

/* split_columns() of a row, or zero for NULL. */
ATTN_INLINE void split_row(dwords *part, const void *row, int64_t stride, int64_t c, int64_t n,
                           float factor)
{
    if (row) {
        split_columns(part, row, stride, c, n, factor);
        return;
    }
    for (int i = 0; i < PARTS; i++) {
        part[i] = d_zero();
    }
}

/* Packs a row of K as key `at` of the panel; zeros behind it may reach into the next row. */
ATTN_INLINE void pack_k_row(void *k, int64_t at, const void *row, int64_t stride, int64_t d,
                            attn_soon *soon)
{
    const int64_t d_pad = k_pad(d);
    uint16_t *to = (uint16_t *)k + at * d_pad;
    attn_fetch_soon(soon, d);
    for (int64_t c = 0; c < d_pad; c += 32) {
        dwords part[PARTS];
        split_columns(part, row, stride, c, d, 1);
        for (int i = 0; i < PARTS; i++) {
            d_store(to + i * PANEL_KEYS * d_pad + c, part[i]);
        }
    }
}

static void pack_k(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d)
{
    for (int64_t key = 0; key < n; key++) {
        const element *row = (const element *)src->data + key * src->row_stride;
        pack_k_row(k, at + key, row, src->col_stride, d, src->soon);
    }
}

static void pack_q(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d,
                   double factor, int lanes)
{
    (void)dtype;
    const int width = lanes > GROUP ? STRIP : GROUP; /* as much as qk reads */
    for (int64_t c = 0; c < d && Q_QUADS && lanes <= 4; c += 32) {
        dwords part[PARTS];
        vec x[4];
        for (int i = 0; i < 4; i++) {
            split_row(part, row[i], stride, c, d, (float)factor);
            x[i] = d_as_floats(part[0]);
        }
        quads_f32((float (*)[4])qt + c / 2 * STRIP / 4, STRIP / 4, x);
    }
    for (int64_t c = 0; c < d && !(Q_QUADS && lanes <= 4); c += 32) {
        for (int lane = 0; lane < width; lane += GROUP) {
            dwords split[GROUP][PARTS], x[GROUP];
            for (int i = 0; i < GROUP; i++) {
                split_row(split[i], row[lane + i], stride, c, d, (float)factor);
            }
            for (int part = 0; part < PARTS; part++) {
                for (int i = 0; i < GROUP; i++) {
                    x[i] = split[i][part];
                }
                transpose16((uint32_t *)qt + (part * pad32(d) + c) / 2 * STRIP + lane, STRIP, x);
            }
        }
    }
}

/* QT and X are made from the same parts. */
static void pack_both(void *qt, void *x, const void *const *row, int64_t stride, int32_t dtype,
                      int64_t n, int64_t cols, double factor)
{
    for (int64_t c = 0; c < cols; c += 32) {
        dwords low[GROUP][PARTS], high[GROUP][PARTS], of_part[2][GROUP];
        for (int i = 0; i < GROUP; i++) {
            split_row(low[i], row[i], stride, c, n, 1);
            split_row(high[i], row[GROUP + i], stride, c, n, 1);
        }
        for (int part = 0; part < PARTS; part++) {
            uint32_t *to = (uint32_t *)qt + (part * cols + c) / 2 * STRIP;
            for (int i = 0; i < GROUP; i++) {
                of_part[0][i] = low[i][part], of_part[1][i] = high[i][part];
                store_columns((uint16_t *)x + ((part * GROUP + i) * cols + c) * 2, low[i][part],
                              high[i][part]);
            }
            transpose16(to, STRIP, of_part[0]);
            transpose16(to + GROUP, STRIP, of_part[1]);
        }
    }
    if (factor != 1) {
        pack_q(qt, row, stride, dtype, n, factor, STRIP);
    }
}
