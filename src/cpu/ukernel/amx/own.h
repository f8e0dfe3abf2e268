/*
 * own.h: products of strips whose rows have keys of their own, few each, as vectors of multiply-
 * adds. The sums are those of tiles: of each 32 products one chain of the even and one of the odd
 * ones, their sum added, with subnormal numbers as 0. Included by products.h.
 */
#include "cpu/machine/host.h"
#include <float.h>

enum { OWN_COLUMNS = 64, OWN_KEYS = 16 };

/* Adds a tile's products, 16 pairs, of 16 lanes; a's lanes are those at `at`, or all (NULL). */
ATTN_INLINE vec add_tile(vec sum, const uint16_t *a, const uint16_t *b, const dwords *at)
{
    vec even = v_set1(0), odd = v_set1(0);
    ATTN_UNROLL for (int pair = 0; pair < GROUP; pair++)
    {
        const dwords x = d_load(a + pair * 2 * STRIP), y = d_load(b + pair * 2 * STRIP),
                     z = at ? d_lanes_at(x, *at) : x;
        even = v_fma(d_floats(z), d_floats(y), even);
        odd = v_fma(d_odd_floats(z), d_odd_floats(y), odd);
    }
    return v_add(sum, v_add(even, odd));
}

/* Adds the products of `which` parts. */
ATTN_INLINE vec add_parts(vec sum, const uint16_t *kt, const uint16_t *qt, int64_t d,
                          const dwords *at, const int which)
{
    const int64_t part = pad32(d) * STRIP;
    for (int64_t c = 0; c < part; c += GROUP * 2 * STRIP) {
        ATTN_UNROLL for (int n = 0; n < PRODUCTS; n++)
        {
            const part_product of = products[n];
            if (which & (of.a + of.b > 0 ? SMALL : LARGE)) {
                sum = add_tile(sum, kt + of.a * part + c, qt + of.b * part + c, at);
            }
        }
    }
    return sum;
}

/* The scores of 16 lanes and a key of each, in the order of store_product(). */
ATTN_INLINE vec own_scores(const uint16_t *kt, const uint16_t *qt, int64_t d, const dwords *at)
{
    if (PRODUCTS > 1) {
        return add_parts(add_parts(v_set1(0), kt, qt, d, at, SMALL), kt, qt, d, at, LARGE);
    }
    return add_parts(v_set1(0), kt, qt, d, at, ALL);
}

/* Not inlined, since it runs between two changes of the processor's state. */
static ATTN_NOINLINE void score_lanes(float *s, const uint16_t *kt, const uint16_t *qt, int64_t d,
                                      int keys, int lanes)
{
    for (int lane = 0; lane < lanes; lane += GROUP) {
        for (int key = 0; key < keys; key++) {
            const dwords at = side_lanes(keys, key);
            v_store(s + key * STRIP + lane, own_scores(kt + 2 * lane, qt + 2 * lane, d, &at));
        }
        if (keys == 0) {
            v_store(s + lane, own_scores(kt + 2 * lane, qt + 2 * lane, d, NULL));
        }
    }
}

static void side_qk(void *s, const void *kt, const void *qt, int64_t d, int keys, int lanes)
{
    attn_host_flush(true);
    score_lanes(s, kt, qt, d, keys, lanes);
    attn_host_flush(FLUSHES);
}

static void own_qk(void *s, const void *kt, const void *qt, int64_t d, int lanes)
{
    side_qk(s, kt, qt, d, 0, lanes);
}

static bool own_fits(const void *const *q, const void *const *keys, int32_t dtype, int64_t d,
                     int lanes)
{
    vec sum[2] = {v_set1(0), v_set1(0)};
    float of[VL], all = 0;
    (void)dtype;
    for (int lane = 0; lane < lanes; lane++) {
        for (int64_t c = 0; c < d; c += 2 * GROUP) {
            vec x[2], y[2];
            load_floats(x, q[lane], c, d);
            load_floats(y, keys[lane], c, d);
            ATTN_UNROLL for (int i = 0; i < 2; i++) sum[i] =
                v_fma(v_abs(x[i]), v_abs(y[i]), sum[i]);
        }
    }
    v_store(of, v_add(sum[0], sum[1]));
    for (int i = 0; i < VL; i++) {
        all += of[i];
    }
    return all < FLT_MAX / 1024; /* sums are rounded, here and there */
}

/* Parts of the rows of V of a lane as floats, lower and upper halves of dwords; lanes of the same
 * keys share them. */
typedef struct own_space {
    const char *row; /* of the first key; NULL: there are none */
    vec part[OWN_COLUMNS / (2 * GROUP)][OWN_KEYS][PARTS][2];
} own_space;

ATTN_INLINE void split_values(own_space *space, const attn_own *rows, int lane, int64_t c,
                              int64_t columns)
{
    for (int64_t i = 0; i < columns; i += 2 * GROUP) {
        for (int64_t key = 0; key < rows->n; key++) {
            vec(*to)[2] = space->part[i / (2 * GROUP)][key];
            dwords x[PARTS];
            split_row(x, rows->v[key * ATTN_MAX_STRIP + lane], 1, c + i, rows->dv, 1);
            ATTN_UNROLL for (int part = 0; part < PARTS; part++)
            {
                to[part][0] = d_floats(x[part]), to[part][1] = d_odd_floats(x[part]);
            }
        }
    }
    space->row = rows->dv <= OWN_COLUMNS ? rows->v[lane] : NULL;
}

/* Sums of V^T P of a lane and 32 columns. */
ATTN_INLINE void own_columns(vec *sum, vec (*x)[PARTS][2], float (*p)[OWN_KEYS], int64_t n)
{
    sum[0] = sum[1] = v_set1(0);
    ATTN_UNROLL for (int i = 0; i < PRODUCTS; i++)
    {
        const part_product of = products[i];
        vec low[2], high[2];
        ATTN_UNROLL for (int odd = 0; odd < 2; odd++) low[odd] = high[odd] = v_set1(0);
        for (int64_t key = 0; key < n; key += 2) {
            ATTN_UNROLL for (int odd = 0; odd < 2; odd++)
            {
                if (key + odd < n) {
                    const vec by = v_set1(p[of.b][key + odd]);
                    low[odd] = v_fma(x[key + odd][of.a][0], by, low[odd]);
                    high[odd] = v_fma(x[key + odd][of.a][1], by, high[odd]);
                }
            }
        }
        sum[0] = v_add(sum[0], v_add(low[0], low[1]));
        sum[1] = v_add(sum[1], v_add(high[0], high[1]));
    }
}

/* The same of `columns` columns. Not inlined, as score_lanes(). */
static ATTN_NOINLINE void own_chunk(vec *sum, own_space *space, const attn_own *rows,
                                    const uint16_t *p, int lane, int64_t c, int64_t columns)
{
    float weight[PARTS][OWN_KEYS];
    if (space->row != rows->v[lane]) {
        split_values(space, rows, lane, c, columns);
    }
    for (int64_t key = 0; key < rows->n; key++) {
        const int64_t at = key / 2 * 2 * STRIP + 2 * lane + key % 2;
        ATTN_UNROLL for (int part = 0; part < PARTS; part++) weight[part][key] =
            p ? attn_bf16_to_f32(p[part * P_PART + at]) : part == 0;
    }
    for (int64_t i = 0; i < columns; i += 2 * GROUP, sum += 2) {
        own_columns(sum, space->part[i / (2 * GROUP)], weight, rows->n);
    }
}

ATTN_INLINE void own_sums(vec *sum, own_space *space, const attn_own *rows, const uint16_t *p,
                          int lane, int64_t c, int64_t columns)
{
    attn_host_flush(true);
    own_chunk(sum, space, rows, p, lane, c, columns);
    attn_host_flush(false);
}

#define OWN_FITS own_fits
#include "cpu/ukernel/pairs/own_rows.h"
