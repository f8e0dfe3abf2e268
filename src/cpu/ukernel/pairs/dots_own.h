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

enum { OWN_COLUMNS = 2 * GROUP };
typedef struct own_space {
    const char *row;
} own_space;

/* Sums of V^T P of a lane: of columns c, c + 2 .. c + 30, and of those behind them. */
ATTN_INLINE void own_sums(vec *sum, own_space *space, const attn_own *rows, const uint16_t *p,
                          int lane, int64_t c, int64_t columns)
{
    (void)space, (void)columns;
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

#include "cpu/ukernel/pairs/own_rows.h"
#endif
