/*
 * careful.h: products that leave out positions that a lane or a key must not see, one by one, for
 * rows that may hold NaN or Inf.
 */

static void pv_careful(void *ot, const void *v_, int64_t at, const void *p, int64_t dv_pad,
                       int64_t n, const void *alpha, const unsigned char *visible, int lanes)
{
    for (int64_t c = 0; c < dv_pad; c++) {
        const uint16_t *v = (const uint16_t *)v_ + c * PANEL_KEYS + at;
        for (int lane = 0; lane < lanes; lane++) {
            float sum = 0, *o = (float *)ot + c * STRIP + lane;
            for (int64_t key = 0; key < n; key++) {
                if (visible[key * STRIP + lane]) {
                    const uint16_t *w =
                        (const uint16_t *)p + (key / 2 * STRIP + lane) * 2 + key % 2;
                    sum = fmaf(whole(v + key, dv_pad * PANEL_KEYS), whole(w, P_PART), sum);
                }
            }
            *o = alpha ? fmaf(*o, ((const float *)alpha)[lane], sum) : sum;
        }
    }
}

static void grad_rows_careful(void *g, const void *p_, int64_t at, const void *x_, int64_t cols,
                              int64_t n, int first, int last, const unsigned char *visible)
{
    const int64_t x_part = GROUP * cols * 2;
    for (int64_t i = 0; i < n * cols; i++) {
        const int64_t key = i / cols, c = i % cols;
        float sum = 0;
        for (int row = first; row < last; row++) {
            const int64_t strip = row / STRIP, low = row % GROUP, half = row % STRIP / GROUP;
            const uint16_t *p =
                (const uint16_t *)p_ + strip * PARTS * P_PART + (at + key) * STRIP + 2 * low + half;
            const uint16_t *x =
                (const uint16_t *)x_ + strip * PARTS * x_part + (low * cols + c) * 2 + half;
            if (visible[(strip * KEY_BLOCK + at + key) * STRIP + row % STRIP]) {
                sum = fmaf(whole(p, P_PART), whole(x, x_part), sum);
            }
        }
        ((float *)g)[i] += sum;
    }
}
