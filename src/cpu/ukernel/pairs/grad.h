/*
 * grad.h: the backward pass's members (table_grad.h): P and dS of a tile into the forms of pairs.h,
 * dropout of P, the products. Included by body.h after its products.
 */
#include "cpu/ukernel/body/body_grad.h"

/* P and dS of 16 queries for one key. */
typedef struct pair {
    vec p, ds;
} pair;

/* Constants of a lane's dS and P. */
typedef struct lane_values {
    vec c, least, factor, lse[2], delta[2], by[2]; /* delta; and times factor */
} lane_values;

/* As grad_softmax, with the exp2 and the roundings of this table, and without dS (and P Z) where P
 * is below 2^-125. */
ATTN_INLINE pair softmax_pair(const float *s, const float *dp_, const float *keep, float *plain,
                              const lane_values *t, int group)
{
    /* NaN stays */
    const vec zero = v_set1(0), d = v_at_most_0(v_sub(v_load(s), t->lse[group]));
    const vec z = keep ? v_load(keep) : zero, dp = keep ? v_mul(v_load(dp_), z) : v_load(dp_);
    const vec p = probability(d, t->c, t->least, false), grad = v_fms(dp, t->factor, t->by[group]);
    if (plain) {
        v_store(plain, v_mul_unless_lt(d, t->least, p, v_sub(dp, t->delta[group])));
    }
    /* with the mask: keys beyond the tile's last have no Z */
    return (pair){keep ? v_mul_unless_lt(d, t->least, p, z) : p,
                  v_mul_unless_lt(d, t->least, p, grad)};
}

/* Two keys' rows of P and dS, 32 queries each, into their forms. [key][group] */
ATTN_INLINE void store_forms(uint16_t *p, uint16_t *ds, uint16_t *right, pair x[2][2])
{
    dwords part[2][2][PARTS];
    for (int i = 0; i < 4; i++) {
        split(part[i / 2][i % 2], x[i / 2][i % 2].p);
    }
    store_parts(p, part[0][0], part[0][1]);
    store_parts(p + STRIP, part[1][0], part[1][1]);
    for (int i = 0; i < 4; i++) {
        split(part[i / 2][i % 2], x[i / 2][i % 2].ds);
    }
    store_parts(ds, part[0][0], part[0][1]);
    store_parts(ds + STRIP, part[1][0], part[1][1]);
    store_parts(right, part[0][0], part[1][0]);
    store_parts(right + STRIP, part[0][1], part[1][1]);
}

static void grad_split(const attn_grad_forms *to, void *s_, void *dp_, int64_t n,
                       const attn_grad_tile *tile)
{
    float *s = s_, *dp = dp_;
    uint16_t *p = (uint16_t *)to->p + to->at * STRIP, *ds = (uint16_t *)to->ds + to->at * STRIP;
    uint16_t *right = (uint16_t *)to->right + to->done * STRIP;
    lane_values t = {.c = v_set1(0)};
    if (tile) {
        t = (lane_values){.c = v_set1((float)tile->exponent),
                          .least = v_set1((float)(EXP2_MIN / tile->exponent))};
        t.factor = v_set1((float)tile->factor);
        for (int g = 0; g < 2; g++) {
            t.lse[g] = v_load((const float *)tile->lse + g * VL);
            t.delta[g] = v_load((const float *)tile->delta + g * VL);
            t.by[g] = v_mul(t.delta[g], t.factor);
        }
    }
    for (int64_t i = n * STRIP; i < pad32(n) * STRIP; i += VL) {
        v_store(s + i, v_set1(tile ? -INFINITY : 0)); /* P = 0 */
        v_store(dp + i, v_set1(0));
    }
    for (int64_t i = 0; i < pad32(n) * STRIP; i += 2 * STRIP) {
        pair x[2][2];
        for (int k = 0; k < 4; k++) {
            const int64_t at = i + k * VL;
            const float *keep = tile && tile->keep ? (const float *)tile->keep + at : NULL;
            float *plain = tile && tile->plain ? (float *)tile->plain + at : NULL;
            x[k / 2][k % 2] = tile ? softmax_pair(s + at, dp + at, keep, plain, &t, k % 2)
                                   : (pair){v_load(s + at), v_load(dp + at)};
        }
        store_forms(p + i, ds + i, right + i, x);
    }
}

static void grad_clear(void *p, int64_t first, int64_t last)
{
    for (int part = 0; part < PARTS; part++) {
        memset((uint16_t *)p + part * P_PART + first * STRIP, 0,
               (size_t)((last - first) * STRIP) * sizeof(uint16_t));
    }
}

static void drop(void *tile, int64_t done, int64_t n, const attn_drop_tile *lanes, bool times)
{
    float z[KEY_TILE * STRIP];
    uint16_t *p = (uint16_t *)tile + done * STRIP;
    if (!times) {
        grad_drop_f32(tile, done, n, lanes, false);
        return;
    }
    memset(z, 0, sizeof z); /* a key beyond an odd n has P = 0 */
    grad_drop_f32(z, 0, n, lanes, false);
    for (int64_t key = 0; key < n; key += 2) {
        for (int g = 0; g < STRIP; g += VL) {
            scale_pair(p + key * STRIP + 2 * g, v_load(z + key * STRIP + g),
                       v_load(z + (key + 1) * STRIP + g), 0xFFFF);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

enum {
    ROW_BLOCK = ATTN_MAX_ROW_BLOCK,
    /* with splits the tile unit falls asleep (docs/cpu-pairs.md), so tiles are few and long */
    GRAD_TILE = PARTS == 1 ? 32 : 128
};

/* Products of parts step by step: dS depends on them linearly, and stands more roundings than a
 * score. */
static void grad_dp(void *dp, const void *v, int64_t at, const void *d_o_t, int64_t dv, int64_t n,
                    int lanes)
{
    (void)lanes; /* whole strips */
    const factors f = score_factors(v, at, d_o_t, dv);
    store_product(dp, &f, n, false, STRIP);
}

static void grad_rows(void *g, const void *p, int64_t at, const void *x, int64_t cols, int64_t n,
                      int first, int last)
{
    const int strip_index = first / STRIP;
    for (int64_t c = 0; c < cols; c += 2 * GROUP) {
        const factors f = {
            .a = (const uint16_t *)p + strip_index * PARTS * P_PART + at * STRIP,
            .b = (const uint16_t *)x + strip_index * PARTS * GROUP * cols * 2 + c * 2,
            .a_stride = STRIP * 2,
            .a_part = P_PART,
            .a_step = PARTS * P_PART,
            .a_rows = GROUP * STRIP,
            .b_stride = cols * 4,
            .b_part = GROUP * cols * 2,
            .b_step = PARTS * GROUP * cols * 2,
            .steps = last / STRIP - strip_index,
        };
        add_rows_product((float *)g + c, cols, pad32(n), &f);
    }
}

static const attn_ukernel_grad grad = {
    .vector = 2 * GROUP,
    .row_block = ROW_BLOCK,
    .key_tile = GRAD_TILE,
    .key_step = KEY_STEP,
    .row_step = STRIP,
    .x_bytes = x_bytes,
    .pack_both = pack_both,
    .dp = grad_dp,
    .softmax = grad_softmax_f32,
    .softcap = grad_softcap_f32,
    .split = grad_split,
    .clear = grad_clear,
    .rows = grad_rows,
    .clean_x = clean_x,
    .put = grad_put_f32,
    .drop = drop,
};
