/*
 * body_pack.h: rows of Q as lanes: a part of body.h, with its parameters. Not here: rows of K and V
 * as panels (body_codes.h, cpu/forward/pack.c).
 */

/* from[i] = n columns of row[i] as reals, where they are or in the tile, zeros for NULL; false if
 * all are NULL. */
ATTN_INLINE bool FN(gather)(const real **from, real (*tile)[FN(CHUNK)], const void *const *row,
                            int64_t first, int64_t stride, int32_t dtype, int64_t n)
{
    static const real zeros[FN(CHUNK)];
    const bool in_place = FN(in_place)(stride, dtype, n);
    bool any = false;
    for (int i = 0; i < VL; i++) {
        const char *at = row[i] ? (const char *)row[i] + first : NULL;
        any |= at != NULL;
        from[i] = !at ? zeros : in_place ? (const real *)(const void *)at : tile[i];
        if (at && !in_place) {
            FN(widen)(tile[i], at, stride, dtype, n);
        }
    }
    return any;
}

/* Moves columns c .. c+VL-1, as far as below n, of VL rows to lanes; `whole`: all of them. */
ATTN_INLINE void FN(pack_q_block)(real *to, const real *const *from, int64_t c, int64_t n, vec by,
                                  const bool whole)
{
    vec x[VL];
    ATTN_UNROLL for (int i = 0; i < VL; i++) x[i] = v_load(from[i] + c);
    FN(transpose)(x);
    ATTN_UNROLL for (int i = 0; i < VL; i++) {
        if (whole || c + i < n) {
            v_store(to + (c + i) * STRIP, v_mul(x[i], by));
        }
    }
}

static void FN(pack_q)(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d,
                       double factor, int lanes)
{
    real tile[VL][FN(CHUNK)];
    const real *from[VL];
    const vec by = v_set1((real)factor);
    int64_t step = stride * attn_element_size(dtype);
    if (FN(FEW) > 0 && lanes <= 4 && FN(in_place)(stride, dtype, d)) {
        FN(pack_q_quads)(qt, row, d, by);
        return;
    }
    for (int64_t c0 = 0; c0 < d; c0 += FN(CHUNK)) {
        int64_t n = d - c0 < FN(CHUNK) ? d - c0 : FN(CHUNK);
        for (int lane = 0; lane < lanes; lane += VL) {
            real *to = (real *)qt + c0 * STRIP + lane;
            bool any = FN(gather)(from, tile, row + lane, c0 * step, stride, dtype, n);
            int64_t c = 0;
            for (; !any && c < n; c++) {
                v_store(to + c * STRIP, v_set1(0));
            }
            for (; c + VL <= n; c += VL) {
                FN(pack_q_block)(to, from, c, n, by, true);
            }
            if (c < n) {
                FN(pack_q_block)(to, from, c, n, by, false);
            }
        }
    }
}
