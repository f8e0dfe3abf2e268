/*
 * check_grad_rows.c: rows and rows_careful of table_grad.h in tables with the bits of scalar:
 * sums over rows against the chain of fused multiply-adds that the contract gives. Tables with
 * products of their own: check_grad_products.c.
 */
#include "checks.h"
#include "cpu/ukernel/table_grad.h"

#include <math.h>
#include <string.h>

enum { MOST_ROWS = 96, MOST_COLS = 144 };

typedef struct rows_case {
    int64_t at, cols, n;
    int first, last;
    const void *p, *x;
    const unsigned char *visible;
} rows_case;

static double want_element(const kit *k, const rows_case *c, int64_t key, int64_t col)
{
    const int64_t strip = k->uk->strip;
    double chain = 0;
    for (int64_t row = c->first; row < c->last; row++) {
        int64_t i = (row / strip * ATTN_KEY_BLOCK + c->at + key) * strip + row % strip;
        if (!c->visible || c->visible[i]) {
            chain = kit_fused(k, kit_get(k, c->p, i), kit_get(k, c->x, row * c->cols + col), chain);
        }
    }
    return chain;
}

static void compare_rows(kit *k, const rows_case *c, const void *before, const void *g)
{
    for (int64_t i = 0; i < c->n * c->cols; i++) {
        double want =
                   kit_sum(k, kit_get(k, before, i), want_element(k, c, i / c->cols, i % c->cols)),
               got = kit_get(k, g, i);
        if (got != want && !(isnan(got) && isnan(want))) {
            kit_fail(k, "G[%lld][%lld] = %a, wanted %a", (long long)(i / c->cols),
                     (long long)(i % c->cols), got, want);
            return;
        }
    }
}

/* X of rows x[row][cols] in the form of the table. */
static const void *pack_x(kit *k, const char *x, int64_t cols, int64_t strips)
{
    const int64_t strip = k->uk->strip, bytes = (int64_t)k->uk->grad->x_bytes(cols);
    char *panel = kit_slot(k, SLOT_V, (size_t)(strips * bytes));
    void *qt = kit_slot(k, SLOT_QT, k->uk->q_bytes(cols));
    for (int64_t i = 0; i < strips; i++) {
        const void *row[ATTN_MAX_STRIP];
        for (int64_t lane = 0; lane < strip; lane++) {
            row[lane] = x + (i * strip + lane) * cols * k->uk->real_size;
        }
        const int32_t dtype = k->uk->real_size == 4 ? ATTN_F32 : ATTN_F64;
        KIT_CALL(k, k->uk->grad->pack_both(qt, panel + i * bytes, row, 1, dtype, cols, cols, 1));
    }
    return panel;
}

static void one_rows(kit *k, int64_t cols, int64_t n, int64_t strips, int64_t turn, bool careful)
{
    static double before[ATTN_KEY_BLOCK * MOST_COLS];
    const int64_t strip = k->uk->strip, tile = strips * ATTN_KEY_BLOCK * strip,
                  step = k->uk->grad->key_step, room = (n + step - 1) / step * step,
                  row_step = k->uk->grad->row_step;
    const int64_t at = turn % 2 ? (ATTN_KEY_BLOCK - n) / step * step : 0,
                  most = strips * strip / row_step;
    const int64_t first = turn % 3 ? kit_choice(k, 89, turn, most) : 0;
    const int64_t last = turn % 4 < 2 ? most : first + 1 + kit_choice(k, 88, turn, most - first);
    enum values kind = (enum values)(turn % VALUES_KINDS);
    void *p = kit_reals(k, SLOT_S, tile), *x = kit_reals(k, SLOT_K, strips * strip * cols),
         *g = kit_reals(k, SLOT_OT, room * cols);
    unsigned char *visible = kit_slot(k, SLOT_VISIBLE, (size_t)tile);
    for (int64_t i = 0; i < tile; i++) {
        visible[i] = kit_choice(k, 3, i + turn, 3) != 0;
        kit_put(k, p, i,
                careful && !visible[i] ? 0 : kit_value(k, VALUES_NORMAL, 90, i + turn, tile));
    }
    for (int64_t i = 0; i < strips * strip * cols; i++) {
        kit_put(k, x, i,
                kit_value(k, kind == VALUES_SPECIAL && !careful ? VALUES_NORMAL : kind, 91,
                          i + turn, tile));
    }
    for (int64_t i = 0; i < room * cols; i++) {
        kit_put(k, g, i, kit_value(k, VALUES_NORMAL, 92, i + turn, 1));
    }
    memcpy(before, g, (size_t)(n * cols * k->uk->real_size));
    const rows_case c = {at,
                         cols,
                         n,
                         (int)(first * row_step),
                         (int)(last * row_step),
                         p,
                         x,
                         careful ? visible : NULL};
    kit_doing(k, "cols=%lld n=%lld rows=%d..%d kind=%d", (long long)cols, (long long)n, c.first,
              c.last, kind);
    const void *panel = pack_x(k, x, cols, strips);
    kit_lock(k, SLOT_S);
    kit_lock(k, SLOT_V);
    kit_lock(k, SLOT_VISIBLE);
    if (careful) {
        KIT_CALL(k, k->uk->grad->rows_careful(g, p, at, panel, cols, n, c.first, c.last, visible));
    } else {
        KIT_CALL(k, k->uk->grad->rows(g, p, at, panel, cols, n, c.first, c.last));
    }
    compare_rows(k, &c, before, g);
}

static void all_rows(kit *k, bool careful)
{
    const int64_t most = MOST_ROWS / k->uk->strip, vector = k->uk->grad->vector;
    int64_t turn = 0;
    for (int64_t cols = vector; cols <= MOST_COLS; cols += vector * (cols < 8 * vector ? 1 : 3)) {
        for (int64_t n = 1 + turn % 5; n <= ATTN_KEY_BLOCK; n += careful ? 29 : 9) {
            one_rows(k, cols, n, 1 + turn % most, turn, careful);
            turn++;
        }
    }
    one_rows(k, vector, ATTN_KEY_BLOCK, most, turn, careful);
}

void check_grad_rows(kit *k)
{
    kit_member(k, "grad->rows");
    if (k->same_bits) { /* others: check_grad_products.c */
        all_rows(k, false);
        kit_member(k, "grad->rows_careful");
        all_rows(k, true);
    }
}
