/*
 * check_grad_rows.c: rows of table_grad.h, and after clean_x, in tables with the bits of scalar:
 * sums over rows against the chain of fused multiply-adds that the contract gives. Tables with
 * products of their own: check_grad_products.c.
 */
#include "checks.h"
#include "cpu/specials.h"
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

static double want_element(const kernel_kit *kit, const rows_case *c, int64_t key, int64_t col)
{
    const int64_t strip = kit->uk->strip;
    double chain = 0;
    for (int64_t row = c->first; row < c->last; row++) {
        int64_t i = (row / strip * ATTN_KEY_BLOCK + c->at + key) * strip + row % strip;
        if (!c->visible || c->visible[i]) {
            chain = kit_fused(kit, kit_get(kit, c->p, i), kit_get(kit, c->x, row * c->cols + col),
                              chain);
        }
    }
    return chain;
}

static void compare_rows(kernel_kit *kit, const rows_case *c, const void *before, const void *g)
{
    for (int64_t i = 0; i < c->n * c->cols; i++) {
        double want = kit_sum(kit, kit_get(kit, before, i),
                              want_element(kit, c, i / c->cols, i % c->cols)),
               got = kit_get(kit, g, i);
        if (got != want && !(isnan(got) && isnan(want))) {
            kit_fail(kit, "G[%lld][%lld] = %a, wanted %a", (long long)(i / c->cols),
                     (long long)(i % c->cols), got, want);
            return;
        }
    }
}

/* X of rows x[row][cols] in the form of the table. */
static char *pack_x(kernel_kit *kit, const char *x, int64_t cols, int64_t strips)
{
    const int64_t strip = kit->uk->strip, bytes = (int64_t)kit->uk->grad->x_bytes(cols);
    char *panel = kit_slot(kit, SLOT_V, (size_t)(strips * bytes));
    void *qt = kit_slot(kit, SLOT_QT, kit->uk->q_bytes(cols));
    for (int64_t i = 0; i < strips; i++) {
        const void *row[ATTN_MAX_STRIP];
        for (int64_t lane = 0; lane < strip; lane++) {
            row[lane] = x + (i * strip + lane) * cols * kit->uk->real_size;
        }
        const int32_t dtype = kit->uk->real_size == 4 ? ATTN_F32 : ATTN_F64;
        KIT_CALL(kit,
                 kit->uk->grad->pack_both(qt, panel + i * bytes, row, 1, dtype, cols, cols, 1));
    }
    return panel;
}

/* Lanes of rows first .. last-1 that see each key, of all strips. */
static const uint64_t *make_seen(kernel_kit *kit, const rows_case *c, int64_t strips)
{
    const int64_t strip = kit->uk->strip;
    uint64_t *seen =
        kit_slot(kit, SLOT_VISIBLE, (size_t)(strips * ATTN_KEY_BLOCK) * sizeof(uint64_t));
    memset(seen, 0, (size_t)(strips * ATTN_KEY_BLOCK) * sizeof(uint64_t));
    for (int64_t i = 0; i < strips * ATTN_KEY_BLOCK * strip; i++) {
        const int64_t row = i / (ATTN_KEY_BLOCK * strip) * strip + i % strip;
        const bool sees = c->visible[i] && row >= c->first && row < c->last;
        seen[i / strip] |= (uint64_t)sees << i % strip;
    }
    return seen;
}

/* rows of X with its numbers that are not finite apart. */
static void rows_apart(kernel_kit *kit, const rows_case *c, void *g, char *x, int64_t strips)
{
    const attn_ukernel *table = kit->uk;
    const int64_t words = attn_special_words(c->cols) * table->strip;
    const size_t bytes = (size_t)(strips * words) * sizeof(uint64_t);
    const attn_specials found = {kit_slot(kit, SLOT_LO, bytes), kit_slot(kit, SLOT_HI, bytes)};
    for (int64_t i = 0; i < strips; i++) {
        const attn_specials of_strip = {found.plus + i * words, found.minus + i * words};
        KIT_CALL(kit, table->grad->clean_x(x + i * (int64_t)table->grad->x_bytes(c->cols), c->cols,
                                           &of_strip));
    }
    KIT_CALL(kit, table->grad->rows(g, c->p, c->at, x, c->cols, c->n, c->first, c->last));
    attn_specials_add_rows(table, g, &found, c->cols, make_seen(kit, c, strips) + c->at, c->n,
                           (int)strips);
}

static void one_rows(kernel_kit *kit, int64_t cols, int64_t n, int64_t strips, int64_t turn,
                     bool careful)
{
    static double before[ATTN_KEY_BLOCK * MOST_COLS];
    const int64_t strip = kit->uk->strip, tile = strips * ATTN_KEY_BLOCK * strip,
                  step = kit->uk->grad->key_step, room = (n + step - 1) / step * step,
                  row_step = kit->uk->grad->row_step;
    const int64_t at = turn % 2 ? (ATTN_KEY_BLOCK - n) / step * step : 0,
                  most = strips * strip / row_step;
    const int64_t first = turn % 3 ? kit_choice(kit, 89, turn, most) : 0;
    const int64_t last = turn % 4 < 2 ? most : first + 1 + kit_choice(kit, 88, turn, most - first);
    enum values kind = (enum values)(turn % VALUES_KINDS);
    void *p = kit_reals(kit, SLOT_S, tile), *x = kit_reals(kit, SLOT_K, strips * strip * cols),
         *g = kit_reals(kit, SLOT_OT, room * cols);
    static unsigned char visible[MOST_ROWS * ATTN_KEY_BLOCK];
    for (int64_t i = 0; i < tile; i++) {
        visible[i] = kit_choice(kit, 3, i + turn, 3) != 0;
        const double weight = kit_value(kit, VALUES_NORMAL, 90, i + turn, tile);
        kit_put(kit, p, i, !careful ? weight : visible[i] ? fabs(weight) : 0);
    }
    for (int64_t i = 0; i < strips * strip * cols; i++) {
        kit_put(kit, x, i,
                kit_value(kit, kind == VALUES_SPECIAL && !careful ? VALUES_NORMAL : kind, 91,
                          i + turn, tile));
    }
    for (int64_t i = 0; i < room * cols; i++) {
        kit_put(kit, g, i, kit_value(kit, VALUES_NORMAL, 92, i + turn, 1));
    }
    memcpy(before, g, (size_t)(n * cols * kit->uk->real_size));
    const rows_case test = {at,
                            cols,
                            n,
                            (int)(first * row_step),
                            (int)(last * row_step),
                            p,
                            x,
                            careful ? visible : NULL};
    kit_doing(kit, "cols=%lld n=%lld rows=%d..%d kind=%d", (long long)cols, (long long)n,
              test.first, test.last, kind);
    char *panel = pack_x(kit, x, cols, strips);
    kit_lock(kit, SLOT_S);
    if (careful) {
        rows_apart(kit, &test, g, panel, strips);
    } else {
        kit_lock(kit, SLOT_V);
        KIT_CALL(kit, kit->uk->grad->rows(g, p, at, panel, cols, n, test.first, test.last));
    }
    compare_rows(kit, &test, before, g);
}

static void all_rows(kernel_kit *kit, bool careful)
{
    const int64_t most = MOST_ROWS / kit->uk->strip, vector = kit->uk->grad->vector;
    int64_t turn = 0;
    for (int64_t cols = vector; cols <= MOST_COLS; cols += vector * (cols < 8 * vector ? 1 : 3)) {
        for (int64_t n = 1 + turn % 5; n <= ATTN_KEY_BLOCK; n += careful ? 29 : 9) {
            one_rows(kit, cols, n, 1 + turn % most, turn, careful);
            turn++;
        }
    }
    one_rows(kit, vector, ATTN_KEY_BLOCK, most, turn, careful);
}

void check_grad_rows(kernel_kit *kit)
{
    kit_member(kit, "grad->rows");
    if (kit->same_bits) { /* others: check_grad_products.c */
        all_rows(kit, false);
        kit_member(kit, "grad->rows, specials apart");
        all_rows(kit, true);
    }
}
