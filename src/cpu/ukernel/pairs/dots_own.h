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

/* A row of O. Returns what is a NaN if a sum is not finite. */
ATTN_INLINE vec own_row(const attn_own *rows, const uint16_t *p, float divisor, int lane)
{
    const vec by = v_set1(divisor), zero = v_set1(0);
    uint16_t *to = rows->o[lane];
    vec bad = zero;
    for (int64_t c = 0; c < rows->dv; c += 2 * GROUP, to += 2 * GROUP) {
        const int64_t left = rows->dv - c;
        uint16_t part[2 * GROUP];
        vec sum[2];
        own_sums(sum, rows, p, lane, c);
        ATTN_UNROLL for (int i = 0; i < 2; i++)
        {
            bad = v_fma(sum[i], zero, bad);
            sum[i] = v_add(divisor == 1 ? sum[i] : divide_f32(sum[i], by), zero);
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
    float of[VL], any = 0;
    for (int lane = 0; lane < rows->lanes; lane++) {
        bad = v_add(bad, own_row(rows, p, ((const float *)divisor)[lane], lane));
    }
    v_store(of, bad);
    for (int i = 0; i < VL; i++) {
        any += of[i];
    }
    return any == any;
}

#define OWN_MEMBERS .own_qk = own_qk, .own_pv = own_pv
#endif
