/*
 * dots.h: sums of dot products of pairs of bf16, for CPUs whose vectors have them. A dword of A,
 * two columns or two keys of a row, is broadcast and multiplied with vectors of B, the same two of
 * 16 lanes each. Included by pairs/body.h as a table's products. The table's file defines before it
 *
 *   DOTS_HEADER   add_pairs(sum, a, b); DOT_BITS, the class of its sums
 *   SUMS, WIDE    vectors of sums at a time, and how many of them are side by side: 1 or 2
 *   FEW_LANES     the most rows of strips of dots_few.h
 *
 * Scores are sums of steps of 32 products, each step a chain of its own, as in body.h. The other
 * sums are one chain: their roundings are small beside those of P and dS.
 */
#include DOTS_HEADER

_Static_assert(PARTS == 1 && ATTN_DOT_CHUNK == 2 * GROUP, "a step is a chunk");

/* Adds the products of step i to the sums of rows of A, `width` vectors each. */
ATTN_INLINE void add_step(vec *sum, const uint16_t *a, const factors *f, int64_t step,
                          const int rows, const int width)
{
    const uint16_t *b = f->b + step * f->b_step;
    const int64_t apart = f->a_stride / 2;
    a += step * f->a_step;
    ATTN_UNROLL_4 for (int pair = 0; pair < GROUP; pair++, a += 2, b += f->b_stride / 2) {
        dwords x[WIDE];
        ATTN_UNROLL for (int v = 0; v < width; v++) x[v] = d_load(b + v * STRIP);
        ATTN_UNROLL for (int r = 0; r < rows; r++)
        {
            const dwords one = d_pair(a + r * apart);
            ATTN_UNROLL for (int v = 0; v < width; v++) sum[r * width + v] =
                add_pairs(sum[r * width + v], one, x[v]);
        }
    }
}

/* ---- stored ---------------------------------------------------------------------------------- */

/* Scores of n keys, rounded up to `rows`, for `width` vectors of lanes. Half of the sums are those
 * of the step at hand, the others wait in registers: a store of each step would keep the next one's
 * products waiting. */
ATTN_INLINE void store_groups(float *s, const factors *f, int64_t n, const int width)
{
    const int count = SUMS / 2, rows = count / width;
    const uint16_t *a = f->a;
    for (int64_t key = 0; key < n; key += rows, a += rows * f->a_stride / 2, s += rows * STRIP) {
        vec sum[SUMS], chain[SUMS];
        ATTN_UNROLL for (int i = 0; i < count; i++) sum[i] = v_set1(0);
        if (f->steps > 0) { /* without columns scores are 0 */
            add_step(sum, a, f, 0, rows, width);
        }
        for (int64_t step = 1; step < f->steps; step++) {
            ATTN_UNROLL for (int i = 0; i < count; i++) chain[i] = v_set1(0);
            add_step(chain, a, f, step, rows, width);
            ATTN_UNROLL for (int i = 0; i < count; i++) sum[i] = v_add(sum[i], chain[i]);
        }
        ATTN_UNROLL for (int i = 0; i < count; i++) v_store(s + i / width * STRIP + i % width * VL,
                                                            sum[i]);
    }
}

#include "cpu/ukernel/pairs/dots_few.h"

/* The lanes from `first` on of factors. */
ATTN_INLINE factors lanes_from(const factors *f, int first)
{
    factors rest = *f;
    rest.b += 2 * first;
    return rest;
}

/* C = A B, for columns of `lanes`. */
ATTN_INLINE void store_product(float *s, const factors *f, int64_t n, const bool passes,
                               const int lanes)
{
    (void)passes;
    if (lanes <= FEW_LANES) {
        few_scores(s, f, n, lanes);
        return;
    }
    const int width = lanes > GROUP ? WIDE : 1;
    for (int lane = 0; lane < lanes; lane += width * GROUP) {
        const factors part = lanes_from(f, lane);
        if (width == 1) {
            store_groups(s + lane, &part, n, 1);
        } else {
            store_groups(s + lane, &part, n, WIDE);
        }
    }
}

/* ---- added ----------------------------------------------------------------------------------- */

/* to = to alpha + sum for a group of sums, or without alpha (NULL) the sum. */
ATTN_INLINE void end_group(float *to, int64_t stride, const float *alpha, const vec *sum,
                           const int width)
{
    if (!alpha) {
        ATTN_UNROLL for (int i = 0; i < SUMS; i++) v_store(
            to + i / width * stride + i % width * VL, sum[i]);
        return;
    }
    ATTN_UNROLL for (int i = 0; i < SUMS; i++)
    {
        float *o = to + i / width * stride + i % width * VL;
        v_store(o, v_fma(v_load(o), v_load(alpha + i % width * VL), sum[i]));
    }
}

ATTN_INLINE void add_groups(float *to, int64_t stride, int64_t rows, const float *alpha,
                            const factors *f, const int width)
{
    const int group = SUMS / width;
    const uint16_t *a = f->a;
    for (int64_t row = 0; row < rows; row += group, a += group * f->a_stride / 2) {
        vec sum[SUMS];
        ATTN_UNROLL for (int i = 0; i < SUMS; i++) sum[i] = v_set1(0);
        for (int64_t step = 0; step < f->steps; step++) {
            add_step(sum, a, f, step, group, width);
        }
        end_group(to + row * stride, stride, alpha, sum, width);
    }
}

/* to = to alpha + A B for `rows` rows, a multiple of 32, of 32 columns or 16; without alpha (NULL)
 * to = A B. */
ATTN_INLINE void add_product(float *to, int64_t stride, int64_t rows, const float *alpha,
                             const factors *f, const bool wide)
{
    if (wide && WIDE == 2) {
        add_groups(to, stride, rows, alpha, f, WIDE);
        return;
    }
    add_groups(to, stride, rows, alpha, f, 1);
    if (wide) {
        const factors rest = lanes_from(f, GROUP);
        add_groups(to + GROUP, stride, rows, alpha ? alpha + GROUP : NULL, &rest, 1);
    }
}

/* to = to + A B, for sums over query rows. */
ATTN_INLINE void add_rows_product(float *to, int64_t stride, int64_t rows, const factors *f)
{
    add_product(to, stride, rows, ones, f, true);
}

/* ---- the table's own members ----------------------------------------------------------------- */

#include "cpu/ukernel/pairs/block.h"

static void qk_softmax(void *p, int64_t done, void *s, const attn_keys *keys, double c,
                       const attn_running *state, int lanes)
{
    if (lanes > GROUP) {
        tiles_in_turn(p, done, s, keys, v_set1((float)c), state, STRIP, 2);
    } else {
        tiles_in_turn(p, done, s, keys, v_set1((float)c), state, lanes, 1);
    }
}

enum { BITS = DOT_BITS, TILE_PRODUCTS = 0, PAIR_PRODUCTS = 1 };

static void begin(void)
{
}

static void end(void)
{
}
