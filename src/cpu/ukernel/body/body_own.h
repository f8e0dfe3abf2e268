/*
 * body_own.h: strips whose rows have keys of their own, few each: a part of body.h, with its
 * parameters.
 */

static void FN(own_qk)(void *s_, const void *kt_, const void *qt_, int64_t d, int lanes)
{
    real *s = s_;
    const real *kt = kt_, *qt = qt_;
    for (int lane = 0; lane < lanes; lane += VL) {
        if (FN(FEW) > 0 && lanes <= 4) { /* pack_q may write no others */
            FN(one_key)(s, kt, qt, d, true, true);
        } else {
            FN(one_key)(s + lane, kt + lane, qt + lane, d, false, true);
        }
    }
}

/* Columns c .. c+VL-1 of V^T P of a lane. */
ATTN_INLINE vec FN(own_sum)(const attn_own *rows, const real *p, int lane, int64_t c,
                            const int32_t dtype)
{
    const char *const *row = rows->v + lane;
    vec sum = v_set1(0);
    for (int64_t key = 0; key < rows->n; key++, p += STRIP, row += ATTN_MAX_STRIP) {
        sum = v_fma(FN(load_row)(*row, c, dtype), v_set1(p[lane]), sum);
    }
    return sum;
}

/* A row of O. Returns what is a NaN if a sum is not finite. */
ATTN_INLINE vec FN(own_row)(const attn_own *rows, const real *p, real divisor, int lane,
                            const int32_t dtype)
{
    const vec by = v_set1(divisor);
    vec bad = v_set1(0);
    for (int64_t c = 0, n; c < rows->dv; c += n) {
        real tile[FN(CHUNK)];
        char *to = (char *)rows->o[lane] + c * attn_element_size(rows->o_dtype);
        n = rows->dv - c < FN(CHUNK) ? rows->dv - c : FN(CHUNK);
        real *row = dtype == FN(OWN) ? (real *)(void *)to : tile;
        for (int64_t i = 0; i < n; i += VL) {
            const vec sum = FN(own_sum)(rows, p, lane, c + i, dtype);
            bad = v_fma(sum, v_set1(0), bad);
            v_store(row + i, v_add(divisor == 1 ? sum : FN(divide)(sum, by), v_set1(0)));
        }
        if (dtype != FN(OWN)) {
            FN(narrow)(to, 1, rows->o_dtype, tile, n);
        }
    }
    return bad;
}

static bool FN(own_pv)(const attn_own *rows, const void *p, const void *divisor)
{
    const real *by = divisor;
    vec bad = v_set1(0);
    real of[VL], any = 0;
    for (int lane = 0; lane < rows->lanes; lane++) {
        bad = v_add(bad, rows->dtype == FN(OWN)
                             ? FN(own_row)(rows, p, by[lane], lane, FN(OWN))
                             : FN(own_row)(rows, p, by[lane], lane, rows->dtype));
    }
    v_store(of, bad);
    for (int i = 0; i < VL; i++) {
        any += of[i];
    }
    return any == any;
}
