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

#ifdef v_lanes_at
/* For each lane that of a key of its own, where `keys` of them lie side by side. */
ATTN_INLINE ivec FN(side_lanes)(int keys, int key)
{
    int32_t at[VL];
    for (int lane = 0; lane < VL; lane++) {
        at[lane] = (lane & -keys) + key;
    }
    return i_load(at);
}

/* Scores of `count` of the keys side by side, which lie at lanes at[0] .. of KT, for VL lanes. */
ATTN_INLINE void FN(side_keys)(real *s, const real *kt, const real *qt, int64_t d, const ivec *at,
                               const int count)
{
    vec sum[SIDE];
    EACH sum[k] = v_set1(0);
    for (int64_t first = 0; first < d; first += ATTN_DOT_CHUNK) {
        const int64_t end = d - first < ATTN_DOT_CHUNK ? d : first + ATTN_DOT_CHUNK;
        vec x[SIDE];
        EACH x[k] = v_set1(0);
        for (int64_t c = first; c < end; c++) {
            const vec q = v_load(qt + c * STRIP), of = v_load(kt + c * STRIP);
            EACH x[k] = v_fma(v_lanes_at(of, at[k]), q, x[k]);
        }
        EACH sum[k] = first > 0 ? v_add(sum[k], x[k]) : x[k];
    }
    EACH v_store(s + k * STRIP, sum[k]);
}

static void FN(side_qk)(void *s_, const void *kt_, const void *qt_, int64_t d, int keys, int lanes)
{
    real *s = s_;
    const real *kt = kt_, *qt = qt_;
    ivec at[SIDE];
    for (int k = 0; k < SIDE; k++) at[k] = FN(side_lanes)(keys, k);
    for (int lane = 0; lane < lanes; lane += VL) {
        if (keys == 2) {
            FN(side_keys)(s + lane, kt + lane, qt + lane, d, at, 2);
        } else {
            FN(side_keys)(s + lane, kt + lane, qt + lane, d, at, SIDE);
        }
    }
}
#define SIDE_QK FN(side_qk)
#else
#define SIDE_QK NULL
#endif

static bool FN(own_fits)(const void *const *q, const void *const *keys, int32_t dtype, int64_t d,
                         int lanes)
{
    const real limit = REAL_MAX / 1024; /* the sum below is rounded, too */
    const int count = 2; /* chains side by side: a single one would wait for itself */
    vec sum[2] = {v_set1(0), v_set1(0)};
    real of[VL], all = 0;
    for (int lane = 0; lane < lanes; lane++) {
        int64_t c = 0;
        for (; c + 2 * VL <= d; c += 2 * VL) {
            EACH sum[k] = v_fma(v_abs(FN(load_row)(q[lane], c + k * VL, dtype)),
                                v_abs(FN(load_row)(keys[lane], c + k * VL, dtype)), sum[k]);
        }
        for (; c < d; c += VL) {
            sum[0] = v_fma(v_abs(FN(load_row)(q[lane], c, dtype)),
                           v_abs(FN(load_row)(keys[lane], c, dtype)), sum[0]);
        }
    }
    v_store(of, v_add(sum[0], sum[1]));
    for (int i = 0; i < VL; i++) {
        all += of[i];
    }
    return all < limit;
}

enum { FN(OWN_SUMS) = 4, FN(OWN_MANY) = 8 }; /* vectors of columns at a time */

/* `count` vectors of columns, from c on, of V^T P of a lane. */
ATTN_INLINE void FN(own_sums)(vec *sum, const attn_own *rows, const real *p, int lane, int64_t c,
                              const int32_t dtype, const int count)
{
    const char *const *row = rows->v + lane;
    EACH sum[k] = v_set1(0);
    for (int64_t key = 0; key < rows->n; key++, p += STRIP, row += ATTN_MAX_STRIP) {
        const vec one = v_set1(p[lane]);
        EACH sum[k] = v_fma(FN(load_row)(*row, c + k * VL, dtype), one, sum[k]);
    }
}

/* Divisors of a lane; `quick`: v_quotient does for them. */
typedef struct FN(own_divisor) {
    vec by, inverse;
    bool one, quick;
} FN(own_divisor);

/* Stores quotients of sums. Returns what is a NaN if a sum is not finite, which those of quick
 * quotients are. */
ATTN_INLINE vec FN(own_quotients)(real *to, const vec *sum, const FN(own_divisor) * d, vec bad,
                                  const int count)
{
    if (d->quick && v_can_quotients(sum, count)) {
        EACH v_store(to + k * VL, v_add(v_quotient(sum[k], d->by, d->inverse), v_set1(0)));
        return bad;
    }
    EACH {
        const vec y = d->one ? sum[k] : FN(divide)(sum[k], d->by);
        bad = v_fma(sum[k], v_set1(0), bad);
        v_store(to + k * VL, v_add(y, v_set1(0)));
    }
    return bad;
}

/* A row of O. Returns what is a NaN if a sum is not finite. */
ATTN_INLINE vec FN(own_row)(const attn_own *rows, const real *p, const FN(own_divisor) * d,
                            int lane, const int32_t dtype)
{
    vec bad = v_set1(0);
    for (int64_t c = 0, n; c < rows->dv; c += n) {
        real tile[FN(CHUNK)];
        char *to = (char *)rows->o[lane] + c * attn_element_size(rows->o_dtype);
        n = rows->dv - c < FN(CHUNK) ? rows->dv - c : FN(CHUNK);
        real *row = dtype == FN(OWN) ? (real *)(void *)to : tile;
        int64_t i = 0;
        vec sum[FN(OWN_MANY)];
        for (; i + FN(OWN_MANY) * VL <= n; i += FN(OWN_MANY) * VL) {
            FN(own_sums)(sum, rows, p, lane, c + i, dtype, FN(OWN_MANY));
            bad = FN(own_quotients)(row + i, sum, d, bad, FN(OWN_MANY));
        }
        for (; i + FN(OWN_SUMS) * VL <= n; i += FN(OWN_SUMS) * VL) {
            FN(own_sums)(sum, rows, p, lane, c + i, dtype, FN(OWN_SUMS));
            bad = FN(own_quotients)(row + i, sum, d, bad, FN(OWN_SUMS));
        }
        for (; i < n; i += VL) {
            FN(own_sums)(sum, rows, p, lane, c + i, dtype, 1);
            bad = FN(own_quotients)(row + i, sum, d, bad, 1);
        }
        if (dtype != FN(OWN)) {
            FN(narrow)(to, 1, rows->o_dtype, tile, n);
        }
    }
    return bad;
}

/* All rows of O. Returns what is a NaN if a sum is not finite. */
ATTN_INLINE vec FN(own_rows)(const attn_own *rows, const real *p, const real *by,
                             const int32_t dtype)
{
    real inverse[STRIP];
    const bool quick = rows->n > 1 && FN(inverses)(inverse, by, rows->lanes);
    vec bad = v_set1(0);
    for (int lane = 0; lane < rows->lanes; lane++) {
        const FN(own_divisor) d = {v_set1(by[lane]), v_set1(quick ? inverse[lane] : 1),
                                   by[lane] == 1, quick};
        bad = v_add(bad, FN(own_row)(rows, p, &d, lane, dtype));
    }
    return bad;
}

static bool FN(own_pv)(const attn_own *rows, const void *p, const void *divisor)
{
    real of[VL], any = 0;
    v_store(of, rows->dtype == FN(OWN) ? FN(own_rows)(rows, p, divisor, FN(OWN))
                                       : FN(own_rows)(rows, p, divisor, rows->dtype));
    for (int i = 0; i < VL; i++) {
        any += of[i];
    }
    return any == any;
}
