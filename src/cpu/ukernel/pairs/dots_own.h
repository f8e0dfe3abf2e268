/*
 * dots_own.h: products of strips whose rows have keys of their own, few each. Each sum is the same
 * as in dots.h, which includes this file.
 */
#ifdef v_pair_bf16

static void own_qk(void *s, const void *kt, const void *qt, int64_t d, int lanes)
{
    const bool four = Q_QUADS && lanes <= 4; /* pack_q writes no others */
    for (int lane = 0; lane < lanes; lane += GROUP) {
        const uint16_t *k = (const uint16_t *)kt + 2 * lane;
        const factors f = score_factors(kt, 0, (const uint16_t *)qt + 2 * lane, d);
        if (four) {
            one_key(s, k, &f, true, true);
        } else {
            one_key((float *)s + lane, k, &f, false, true);
        }
    }
}

ATTN_INLINE dwords side_lanes(int keys, int key)
{
    int32_t at[GROUP];
    for (int lane = 0; lane < GROUP; lane++) {
        at[lane] = (lane & -keys) + key;
    }
    return d_load(at);
}

/* Scores of `count` of the keys side by side, as in body_own.h. */
ATTN_INLINE void side_keys(float *s, const uint16_t *kt, const factors *f, const dwords *at,
                           const int count)
{
    vec sum[SIDE];
    EACH sum[k] = v_set1(0);
    for (int64_t step = 0; step < f->steps; step++) {
        const int64_t pairs = step + 1 < f->steps ? GROUP : f->last;
        const uint16_t *q = f->b + step * f->b_step, *of = kt + step * f->b_step;
        vec chain[SIDE];
        EACH chain[k] = v_set1(0);
        for (int64_t pair = 0; pair < pairs; pair++, q += 2 * STRIP, of += 2 * STRIP) {
            const dwords x = d_load(of), y = d_load(q);
            EACH chain[k] = add_pairs(chain[k], d_lanes_at(x, at[k]), y);
        }
        EACH sum[k] = step > 0 ? v_add(sum[k], chain[k]) : chain[k];
    }
    EACH v_store(s + k * STRIP, sum[k]);
}

static void side_qk(void *s, const void *kt, const void *qt, int64_t d, int keys, int lanes)
{
    dwords at[SIDE];
    for (int k = 0; k < SIDE; k++) at[k] = side_lanes(keys, k);
    for (int lane = 0; lane < lanes; lane += GROUP) {
        const uint16_t *k = (const uint16_t *)kt + 2 * lane;
        const factors f = score_factors(kt, 0, (const uint16_t *)qt + 2 * lane, d);
        if (keys == 2) {
            side_keys((float *)s + lane, k, &f, at, 2);
        } else {
            side_keys((float *)s + lane, k, &f, at, SIDE);
        }
    }
}

/* Sums of V^T P of a lane: of columns c, c + 2 .. c + 30, and of those behind them. */
ATTN_INLINE void own_sums(vec *sum, const attn_own *rows, const uint16_t *p, int lane, int64_t c)
{
    const char *const *row = rows->v + lane;
    sum[0] = sum[1] = v_set1(0);
    for (int64_t key = 0; key < rows->n; key += 2, p += 2 * STRIP, row += 2 * ATTN_MAX_STRIP) {
        const dwords one = d_pair(p + 2 * lane);
        dwords x, y;
        split_row(&x, row[0], 1, c, rows->dv, 1);
        split_row(&y, key + 1 < rows->n ? row[ATTN_MAX_STRIP] : NULL, 1, c, rows->dv, 1);
        sum[0] = add_pairs(sum[0], d_low_halves(x, y), one);
        sum[1] = add_pairs(sum[1], d_high_halves(x, y), one);
    }
}

/* A row of O; `quick`: v_quotient does for its divisor. Returns what is a NaN if a sum is not
 * finite. */
ATTN_INLINE vec own_row(const attn_own *rows, const uint16_t *p, float divisor, float inverse_,
                        int lane, const bool quick)
{
    const vec by = v_set1(divisor), inverse = v_set1(inverse_), zero = v_set1(0);
    uint16_t *to = rows->o[lane];
    vec bad = zero;
    for (int64_t c = 0; c < rows->dv; c += 2 * GROUP, to += 2 * GROUP) {
        const int64_t left = rows->dv - c;
        uint16_t part[2 * GROUP];
        vec sum[2];
        own_sums(sum, rows, p, lane, c);
        const bool near = quick && v_can_quotients(sum, 2);
        ATTN_UNROLL for (int i = 0; i < 2; i++)
        {
            const vec y = divisor == 1 ? sum[i]
                          : near       ? v_quotient(sum[i], by, inverse)
                                       : divide_f32(sum[i], by);
            bad = v_fma(sum[i], zero, bad);
            sum[i] = v_add(y, zero);
        }
        v_store(left < 2 * GROUP ? part : to, v_pair_bf16(sum[0], sum[1]));
        if (left < 2 * GROUP) {
            memcpy(to, part, (size_t)left * sizeof *to);
        }
    }
    return bad;
}

static bool own_pv(const attn_own *rows, const void *p, const void *divisor)
{
    vec bad = v_set1(0);
    float of[VL], inverse[STRIP], any = 0;
    const float *by = divisor;
    const bool quick = rows->n > 1 && inverses_f32(inverse, by, rows->lanes);
    for (int lane = 0; lane < rows->lanes; lane++) {
        bad = v_add(bad, own_row(rows, p, by[lane], quick ? inverse[lane] : 1, lane, quick));
    }
    v_store(of, bad);
    for (int i = 0; i < VL; i++) {
        any += of[i];
    }
    return any == any;
}

#define OWN_MEMBERS .own_qk = own_qk, .side_qk = side_qk, .own_pv = own_pv
#endif
