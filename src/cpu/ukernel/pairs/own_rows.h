/*
 * own_rows.h: rows of O of strips whose rows have keys of their own. A table's products define
 * before it own_sums(): `columns` sums of V^T P of a lane from column c on, in twos of vectors as
 * store_results() takes them, OWN_COLUMNS at most; and own_space, which begins with a pointer, NULL
 * at first: memory in which own_sums() keeps what the next call, or the next lane, may take again.
 */

/* A row of O; `quick`: v_quotient does for its divisor. Returns what is a NaN if a sum is not
 * finite. */
ATTN_INLINE vec own_row(own_space *space, const attn_own *rows, const uint16_t *p, float divisor,
                        float inverse_, int lane, const bool quick)
{
    const vec by = v_set1(divisor), inverse = v_set1(inverse_), zero = v_set1(0);
    element *to = rows->o[lane];
    vec bad = zero, sums[OWN_COLUMNS / VL];
    for (int64_t c = 0; c < rows->dv; c += 2 * GROUP, to += 2 * GROUP) {
        const int64_t left = rows->dv - c;
        element part[2 * GROUP];
        if (c % OWN_COLUMNS == 0) {
            own_sums(sums, space, rows, p, lane, c, left < OWN_COLUMNS ? left : OWN_COLUMNS);
        }
        vec *sum = sums + c % OWN_COLUMNS / VL;
        const bool near = quick && v_can_quotients(sum, 2);
        ATTN_UNROLL for (int i = 0; i < 2; i++)
        {
            const vec y = divisor == 1 ? sum[i]
                          : near       ? v_quotient(sum[i], by, inverse)
                                       : divide_f32(sum[i], by);
            bad = v_fma(sum[i], zero, bad);
            sum[i] = v_add(y, zero);
        }
        store_results(left < 2 * GROUP ? part : to, sum[0], sum[1]);
        if (left < 2 * GROUP) {
            memcpy(to, part, (size_t)left * sizeof *to);
        }
    }
    return bad;
}

static bool own_pv(const attn_own *rows, const void *p, const void *divisor)
{
    own_space space;
    space.row = NULL;
    vec bad = v_set1(0);
    float of[VL], inverse[STRIP], any = 0;
    const float *by = divisor;
    const bool quick = rows->n > 1 && inverses_f32(inverse, by, rows->lanes);
    for (int lane = 0; lane < rows->lanes; lane++) {
        const float one = quick ? inverse[lane] : 1;
        bad = v_add(bad, own_row(&space, rows, p, by[lane], one, lane, quick));
    }
    v_store(of, bad);
    for (int i = 0; i < VL; i++) {
        any += of[i];
    }
    return any == any;
}

#ifndef OWN_FITS
#define OWN_FITS NULL
#endif
#define OWN_MEMBERS .own_qk = own_qk, .side_qk = side_qk, .own_fits = OWN_FITS, .own_pv = own_pv
