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

/* Adds the products of a pair of `steps` steps to the sums of rows of A, which are a_stride bytes
 * apart, `width` vectors each, a step's sums behind the other's. */
ATTN_INLINE void add_pair(vec *sum, const uint16_t *a, const uint16_t *b, const factors *f,
                          const int steps, const int rows, const int width)
{
    const int64_t apart = f->a_stride / 2;
    ATTN_UNROLL for (int i = 0; i < steps; i++, a += f->a_step, b += f->b_step)
    {
        dwords x[WIDE];
        ATTN_UNROLL for (int v = 0; v < width; v++) x[v] = d_load(b + v * STRIP);
        ATTN_UNROLL for (int r = 0; r < rows; r++)
        {
            const dwords one = d_pair(a + r * apart);
            ATTN_UNROLL for (int v = 0; v < width; v++, sum++) *sum = add_pairs(*sum, one, x[v]);
        }
    }
}

/* Adds the products of `steps` steps from `step` on, pair by pair of all; the last one may be
 * shorter, if `ends`. */
ATTN_INLINE void add_steps(vec *sum, const uint16_t *a, const factors *f, int64_t step,
                           const int steps, const int rows, const int width, const bool ends)
{
    const uint16_t *b = f->b + step * f->b_step;
    a += step * f->a_step;
    if (ends) {
        for (int64_t pair = 0; pair < f->last; pair++, a += 2, b += f->b_stride / 2) {
            add_pair(sum, a, b, f, steps, rows, width);
        }
    } else {
        ATTN_UNROLL_4 for (int pair = 0; pair < GROUP; pair++, a += 2, b += f->b_stride / 2) {
            add_pair(sum, a, b, f, steps, rows, width);
        }
    }
}

/* ---- stored ---------------------------------------------------------------------------------- */

/* Adds the chains of `steps` steps from `step` on to `count` sums, one step after the other; steps
 * times count is at most SUMS. */
ATTN_INLINE void add_chains(vec *sum, const uint16_t *a, const factors *f, int64_t step,
                            const int steps, const int count, const int width, const bool ends)
{
    vec chain[SUMS];
    ATTN_UNROLL for (int i = 0; i < steps * count; i++) chain[i] = v_set1(0);
    add_steps(chain, a, f, step, steps, count / width, width, ends);
    ATTN_UNROLL for (int c = 0; c < steps; c++)
    {
        ATTN_UNROLL for (int i = 0; i < count; i++) sum[i] =
            step + c == 0 ? chain[i] : v_add(sum[i], chain[c * count + i]);
    }
}

/* Scores of n keys, rounded up to count / width, for `width` vectors of lanes. The sums wait in
 * registers: a store of each step would keep the next one's products waiting. With count = SUMS
 * there is one step; else the chains of two steps run side by side: those of one would wait for
 * each other. */
ATTN_INLINE void store_groups(float *s, const factors *f, int64_t n, const int count,
                              const int width)
{
    const int rows = count / width;
    const int64_t whole = f->last == GROUP ? f->steps : f->steps - 1;
    const uint16_t *a = f->a;
    for (int64_t key = 0; key < n; key += rows, a += rows * f->a_stride / 2, s += rows * STRIP) {
        vec sum[SUMS];
        int64_t step = 0;
        ATTN_UNROLL for (int i = 0; i < count; i++) sum[i] = v_set1(0);
        for (; count < SUMS && step + 2 <= whole; step += 2)
            add_chains(sum, a, f, step, 2, SUMS / 2, width, false);
        if (step < whole) {
            add_chains(sum, a, f, step, 1, count, width, false);
        }
        if (whole < f->steps) {
            add_chains(sum, a, f, whole, 1, count, width, true);
        }
        ATTN_UNROLL for (int i = 0; i < count; i++) v_store(s + i / width * STRIP + i % width * VL,
                                                            sum[i]);
    }
}

ATTN_INLINE void store_scores(float *s, const factors *f, int64_t n, const int width)
{
    if (f->steps == 1) {
        store_groups(s, f, n, SUMS, width);
    } else {
        store_groups(s, f, n, SUMS / 2, width);
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
            store_scores(s + lane, &part, n, 1);
        } else {
            store_scores(s + lane, &part, n, WIDE);
        }
    }
}

/* ---- added ----------------------------------------------------------------------------------- */

ATTN_INLINE void add_groups(float *to, int64_t stride, int64_t rows, const factors *f,
                            const int width)
{
    const int group = SUMS / width;
    const uint16_t *a = f->a;
    for (int64_t row = 0; row < rows; row += group, a += group * f->a_stride / 2) {
        vec sum[SUMS];
        ATTN_UNROLL for (int i = 0; i < SUMS; i++) sum[i] = v_set1(0);
        for (int64_t step = 0; step < f->steps; step++) {
            add_steps(sum, a, f, step, 1, group, width, false);
        }
        ATTN_UNROLL for (int i = 0; i < SUMS; i++)
        {
            float *o = to + (row + i / width) * stride + i % width * VL;
            v_store(o, v_add(v_load(o), sum[i]));
        }
    }
}

/* to = to + A B for `rows` rows, a multiple of 32, of 32 columns: sums over query rows. */
ATTN_INLINE void add_rows_product(float *to, int64_t stride, int64_t rows, const factors *f)
{
    for (int lane = 0; lane < STRIP; lane += WIDE * GROUP) {
        const factors part = lanes_from(f, lane);
        add_groups(to + lane, stride, rows, &part, WIDE);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

/* to = to alpha + sum for a group of sums, or without alpha (NULL) the sum. */
ATTN_INLINE void end_group(float *to, const float *alpha, const vec *sum, const int width)
{
    if (!alpha) {
        ATTN_UNROLL for (int i = 0; i < SUMS; i++) v_store(
            to + i / width * STRIP + i % width * VL, sum[i]);
        return;
    }
    ATTN_UNROLL for (int i = 0; i < SUMS; i++)
    {
        float *o = to + i / width * STRIP + i % width * VL;
        v_store(o, v_fma(v_load(o), v_load(alpha + i % width * VL), sum[i]));
    }
}

/* OT = OT alpha + V^T P for `width` vectors of lanes and pairs of keys; without alpha (NULL) OT =
 * V^T P. */
ATTN_INLINE void value_groups(float *ot, const float *alpha, const uint16_t *v, const uint16_t *p,
                              int64_t pairs, int64_t dv_pad, const int width)
{
    const int group = SUMS / width;
    for (int64_t c = 0; c < dv_pad; c += group, ot += group * STRIP) {
        const uint16_t *a = v + c / RUN * V_RUN + c % RUN * 2, *b = p;
        vec sum[SUMS];
        ATTN_UNROLL for (int i = 0; i < SUMS; i++) sum[i] = v_set1(0);
        ATTN_UNROLL_4 for (int64_t pair = 0; pair < pairs; pair++, a += 2 * RUN, b += 2 * STRIP) {
            dwords x[WIDE];
            ATTN_UNROLL for (int i = 0; i < width; i++) x[i] = d_load(b + i * STRIP);
            ATTN_UNROLL for (int r = 0; r < group; r++)
            {
                const dwords one = d_pair(a + r / RUN * V_RUN + r % RUN * 2);
                ATTN_UNROLL for (int i = 0; i < width; i++) sum[r * width + i] =
                    add_pairs(sum[r * width + i], one, x[i]);
            }
        }
        end_group(ot, alpha, sum, width);
    }
}

static void pv(void *ot_, const void *v_, int64_t at, const void *p, int64_t dv_pad, int64_t n,
               const void *alpha_, int lanes)
{
    const uint16_t *v = (const uint16_t *)v_ + v_key_bytes(at) / 2;
    const int width = lanes > GROUP ? WIDE : 1;
    for (int lane = 0; lane < lanes; lane += width * GROUP) {
        float *ot = (float *)ot_ + lane;
        const float *alpha = alpha_ ? (const float *)alpha_ + lane : NULL;
        const uint16_t *b = (const uint16_t *)p + 2 * lane;
        if (width == 1) {
            value_groups(ot, alpha, v, b, (n + 1) / 2, dv_pad, 1);
        } else {
            value_groups(ot, alpha, v, b, (n + 1) / 2, dv_pad, WIDE);
        }
    }
}

/* ---- values as rows -------------------------------------------------------------------------- */

#if defined COLUMNS
#define VALUES_AT(v, at, dv) ((const uint16_t *)(v) + v_key_bytes(at) / 2)

/* A run of V is a vector of columns. */
ATTN_INLINE void row_products_f32(vec *sum, const void *v_, int64_t c, int64_t dv, const void *p_,
                                  int64_t n, const int rows, const int cols)
{
    const uint16_t *v = (const uint16_t *)v_ + c / RUN * V_RUN, *p = p_;
    (void)dv;
    ATTN_UNROLL for (int i = 0; i < rows * cols; i++) sum[i] = v_set1(0);
    ATTN_UNROLL_4 for (int64_t key = 0; key < n; key += 2, v += 2 * RUN, p += 2 * STRIP) {
        dwords x[COLUMNS];
        ATTN_UNROLL for (int i = 0; i < cols; i++) x[i] = d_load(v + i * V_RUN);
        ATTN_UNROLL for (int r = 0; r < rows; r++)
        {
            const dwords one = d_pair(p + 2 * r);
            ATTN_UNROLL for (int i = 0; i < cols; i++) sum[r * cols + i] =
                add_pairs(sum[r * cols + i], x[i], one);
        }
    }
}
#endif

#include "cpu/ukernel/body/body_values.h"
#include "cpu/ukernel/pairs/dots_own.h"

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
