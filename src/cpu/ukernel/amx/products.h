/*
 * products.h: sums of products of parts on AMX tiles (sums.h), of 16 or 32 rows of A and 16 or 32
 * columns of B. Included by pairs/body.h, with its parameters.
 */
#include "cpu/ukernel/amx/sums.h"

enum { PRODUCTS = sizeof products / sizeof products[0] };

/* What is computed: its rows; its columns; its order:
 *
 *   passes  the small products of parts step by step, then the large one over all steps: only the
 *           latter rounds at the size of the sum. For scores, whose errors count most.
 *   steps   all products of a step, then the next step: fewer loads.
 *
 * Between products some of a softmax is done `meanwhile`, unless that is NULL. Arguments named so
 * are constants where these functions are inlined. */

ATTN_INLINE void load_a(const uint16_t *a, const factors *f, int part, const int rows)
{
    if (rows & LOW) {
        TILE_LOAD(4, a + part * f->a_part, f->a_stride);
    }
    if (rows & HIGH) {
        TILE_LOAD(5, a + f->a_rows + part * f->a_part, f->a_stride);
    }
}

ATTN_INLINE void load_b(const uint16_t *b, const factors *f, int part, const bool wide)
{
    TILE_LOAD(6, b + part * f->b_part, f->b_stride);
    if (wide) {
        TILE_LOAD(7, b + part * f->b_part + STRIP, f->b_stride);
    }
}

ATTN_INLINE void multiply(const int rows, const bool wide, exponentials *meanwhile)
{
    if (rows & LOW) {
        TILE_DP(0, 4, 6);
        if (wide) {
            TILE_DP(1, 4, 7);
        }
        if (meanwhile) {
            some_pairs(meanwhile);
        }
    }
    if (rows & HIGH) {
        TILE_DP(2, 5, 6);
        if (wide) {
            TILE_DP(3, 5, 7);
        }
        if (meanwhile) {
            some_pairs(meanwhile);
        }
    }
}

/* Chooses products of the table: the one of the largest parts, {0, 0}, or the others. */
enum { SMALL = 1, LARGE = 2, ALL = SMALL | LARGE };

/* Runs each step's products, in their order. A part is loaded when it changes. */
ATTN_INLINE void add_steps(const uint16_t *a, const factors *f, const int which, const int rows,
                           const bool wide, exponentials *meanwhile)
{
    const uint16_t *b = f->b;
    attn_fetch_soon(f->soon, f->steps * (which == ALL ? f->elements : f->elements / 2));
    for (int64_t i = 0; i < f->steps; i++, a += f->a_step, b += f->b_step) {
        part_product last = {-1, -1};
        ATTN_UNROLL for (int n = 0; n < PRODUCTS; n++)
        {
            const part_product next = products[n];
            if ((which & (next.a + next.b > 0 ? SMALL : LARGE)) == 0) {
                continue;
            }
            if (f->swapped ? next.b != last.b : next.a != last.a) {
                load_a(a, f, f->swapped ? next.b : next.a, rows);
            }
            if (f->swapped ? next.a != last.a : next.b != last.b) {
                load_b(b, f, f->swapped ? next.a : next.b, wide);
            }
            multiply(rows, wide, meanwhile);
            last = next;
        }
    }
}

/* Adds to the sums rows of A, which begins at a, times the columns of B. */
ATTN_INLINE void add_products(const uint16_t *a, const factors *f, const bool passes,
                              const int rows, const bool wide, exponentials *meanwhile)
{
    if (passes && PRODUCTS > 1) {
        add_steps(a, f, SMALL, rows, wide, meanwhile);
        add_steps(a, f, LARGE, rows, wide, meanwhile);
    } else {
        add_steps(a, f, ALL, rows, wide, meanwhile);
    }
}

/* ---- stored ---------------------------------------------------------------------------------- */

/* C = A B, 16 rows of 32 sums at a time. The stores of 16 rows wait for their last product: they
 * come after the products of the next 16 rows. For tables of one part. */
ATTN_INLINE void store_low_product(float *s, const factors *f, int64_t n, const bool passes,
                                   const bool wide)
{
    const uint16_t *a = f->a;
    for (int64_t key = 0; key < n; key += 2 * TILE, a += 2 * f->a_rows, s += 2 * TILE * STRIP) {
        zero_sums(LOW, wide);
        add_products(a, f, passes, LOW, wide, NULL);
        if (key > 0) {
            store_sums(s - 2 * TILE * STRIP, HIGH, wide);
        }
        if (key + TILE >= n) {
            store_sums(s, LOW, wide);
            return;
        }
        zero_sums(HIGH, wide);
        add_products(a, f, passes, HIGH, wide, NULL);
        store_sums(s, LOW, wide);
    }
    store_sums(s - 2 * TILE * STRIP, HIGH, wide);
}

ATTN_INLINE void store_block(float *s, const uint16_t *a, const factors *f, const bool passes,
                             const int rows, const bool wide, exponentials *meanwhile)
{
    zero_sums(rows, wide);
    add_products(a, f, passes, rows, wide, meanwhile);
    store_sums(s, rows, wide);
}

/* C = A B in 32 rows: two tile loads for three products instead of three for two. */
ATTN_INLINE void store_tall_product(float *s, const factors *f, int64_t n, const bool passes,
                                    const bool wide, exponentials *meanwhile)
{
    const uint16_t *a = f->a;
    for (int64_t key = 0; key < n; key += 2 * TILE, a += 2 * f->a_rows, s += 2 * TILE * STRIP) {
        if (n - key > TILE) {
            store_block(s, a, f, passes, BOTH, wide, meanwhile);
        } else {
            store_block(s, a, f, passes, LOW, wide, meanwhile);
        }
    }
}

/* C = A B for columns of `lanes`: all 32, or the first 16 for at most so many. */
ATTN_INLINE void store_product(float *s, const factors *f, int64_t n, const bool passes,
                               const int lanes)
{
    if (PARTS > 1 && lanes > TILE) {
        store_tall_product(s, f, n, passes, true, NULL);
    } else if (PARTS > 1) {
        store_tall_product(s, f, n, passes, false, NULL);
    } else if (lanes > TILE) {
        store_low_product(s, f, n, passes, true);
    } else {
        store_low_product(s, f, n, passes, false);
    }
}

/* ---- added ----------------------------------------------------------------------------------- */

/* A strip's factors that change nothing. */
static const float ones[STRIP] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* to = to alpha + A B for `rows` rows, a multiple of 32, of 32 columns; without alpha (NULL) to = A
 * B. The sums of 16 rows are added while the products of later rows run, as in
 * store_low_product(). */
ATTN_INLINE void add_product(float *to, int64_t stride, int64_t rows, const float *alpha,
                             const factors *f, const bool wide)
{
    float sum[2 * TILE * STRIP] __attribute__((aligned(64)));
    const float *low = sum, *high = sum + TILE * STRIP;
    const int64_t next = TILE * stride;
    const uint16_t *a = f->a;
    for (int64_t row = 0; row < rows; row += 2 * TILE, a += 2 * f->a_rows, to += 2 * next) {
        zero_sums(LOW, wide);
        add_products(a, f, false, LOW, wide, NULL);
        if (row > 0) {
            add_rows(to - 2 * next, stride, low, alpha, wide);
            store_sums(sum, HIGH, wide);
        }
        zero_sums(HIGH, wide);
        add_products(a, f, false, HIGH, wide, NULL);
        if (row > 0) {
            add_rows(to - next, stride, high, alpha, wide);
        }
        store_sums(sum, LOW, wide);
    }
    if (rows > 0) {
        add_rows(to - 2 * next, stride, low, alpha, wide);
        store_sums(sum, HIGH, wide);
        add_rows(to - next, stride, high, alpha, wide);
    }
}

/* to = to + A B, 32 x 32 sums at a time: four products for four loads. Sums are stored when all are
 * done, which pays off for sums of many products. */
ATTN_INLINE void add_tall_product(float *to, int64_t stride, int64_t rows, const factors *f)
{
    float sum[2][2 * TILE * STRIP] __attribute__((aligned(64)));
    const int64_t next = 2 * TILE * stride;
    const uint16_t *a = f->a;
    for (int64_t row = 0; row <= rows; row += 2 * TILE, a += 2 * f->a_rows, to += next) {
        float *now = sum[row / (2 * TILE) % 2], *before = sum[1 - row / (2 * TILE) % 2];
        if (row < rows) {
            zero_sums(BOTH, true);
            add_products(a, f, false, BOTH, true, NULL);
        }
        if (row > 0) {
            add_rows(to - next, stride, before, ones, true);
            add_rows(to - next + TILE * stride, stride, before + TILE * STRIP, ones, true);
        }
        if (row < rows) {
            store_sums(now, BOTH, true);
        }
    }
}

/* to = to + A B, for sums over query rows. */
ATTN_INLINE void add_rows_product(float *to, int64_t stride, int64_t rows, const factors *f)
{
    if (PARTS == 1) {
        add_product(to, stride, rows, ones, f, true);
    } else {
        add_tall_product(to, stride, rows, f);
    }
}

/* OT = V^T P. */
ATTN_INLINE factors value_factors(const void *v, int64_t at, const void *p, int64_t dv_pad,
                                  int64_t n)
{
    return (factors){
        .a = (const uint16_t *)v + at,
        .b = p,
        .a_stride = PANEL_KEYS * 2,
        .a_part = dv_pad * PANEL_KEYS,
        .a_step = 32,
        .a_rows = GROUP * PANEL_KEYS,
        .b_stride = STRIP * 4,
        .b_part = P_PART,
        .b_step = GROUP * 2 * STRIP,
        .steps = (n + KEY_STEP - 1) / KEY_STEP,
    };
}

/* Strips of at most 16 queries are half as wide. */
static void pv(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n,
               const void *alpha, int lanes)
{
    const factors f = value_factors(v, at, p, dv_pad, n);
    if (lanes > GROUP) {
        add_product(ot, STRIP, dv_pad, alpha, &f, true);
    } else {
        add_product(ot, STRIP, dv_pad, alpha, &f, false);
    }
}

#include "cpu/ukernel/amx/block.h"
#include "cpu/ukernel/amx/few.h"
#include "cpu/ukernel/amx/own.h"

/* ---- the table's own members ----------------------------------------------------------------- */

enum { BITS = ATTN_BITS_AMX, TILE_PRODUCTS = PRODUCTS, PAIR_PRODUCTS = 0 };

static void begin(void)
{
    tiles_begin();
}

static void end(void)
{
    tiles_end();
}
