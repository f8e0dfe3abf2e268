/*
 * check_grad_products.c: the products of the backward pass as a table has them, in whatever form:
 * tiles of P and dS are split, rows of X packed, G += P X (rows, and after clean_x) and dQT += K^T
 * dS (pv) compared with float64. The bound is gamma of the additions, and what a table loses where
 * P and dS have fewer bits. That tables with the bits of scalar have them here too is
 * check_grad.c's.
 */
#include "checks.h"
#include "cpu/specials.h"
#include "cpu/ukernel/table_grad.h"
#include "panel.h"

#include <math.h>
#include <string.h>

enum { MOST_COLS = 160 };

typedef struct product_case {
    int64_t at, n, strips, cols, d; /* cols: of X, d: those that its rows have */
    /* [key][row] */
    double p[ATTN_MAX_ROW_BLOCK * ATTN_MAX_KEY_BLOCK], ds[ATTN_MAX_ROW_BLOCK * ATTN_MAX_KEY_BLOCK];
    unsigned char visible[ATTN_MAX_ROW_BLOCK * ATTN_MAX_KEY_BLOCK]; /* [strip][key_block][strip] */
    bool careful;
    attn_tensor x, k;
    char *p_left, *ds_left, *right;
} product_case;

static int64_t rows_of(const kernel_kit *kit, const product_case *test)
{
    return test->strips * kit->uk->strip;
}

static int64_t visible_at(const kernel_kit *kit, int64_t key, int64_t row)
{
    return (row / kit->uk->strip * kit->uk->key_block + key) * kit->uk->strip +
           row % kit->uk->strip;
}

static void fill(kernel_kit *kit, product_case *test, int64_t turn)
{
    const int64_t rows = rows_of(kit, test);
    for (int64_t i = 0; i < test->n * rows; i++) {
        bool seen = !test->careful || kit_choice(kit, 81, i + turn, 3) != 0;
        test->visible[visible_at(kit, test->at + i / rows, i % rows)] = seen;
        test->p[i] = seen ? (double)(float)fabs(kit_value(kit, VALUES_NORMAL, 82, i + turn, 1)) : 0;
        test->ds[i] = seen ? (double)(float)kit_value(kit, VALUES_NORMAL, 83, i + turn, 1) : 0;
    }
}

/* The tile of n keys that begins at key `first` of the part, of one strip. */
static void put_tile(const kernel_kit *kit, const product_case *test, const double *from, void *to,
                     int64_t strip, int64_t first, int64_t n)
{
    const int64_t width = kit->uk->strip;
    for (int64_t i = 0; i < n * width; i++) {
        kit_put(kit, to, i,
                from[(first + i / width) * rows_of(kit, test) + strip * width + i % width]);
    }
}

/* Left factors of all strips, and the last strip's dS for pv. */
static void make_factors(kernel_kit *kit, product_case *test)
{
    const attn_ukernel *table = kit->uk;
    const bool in_place = table->grad->split == NULL;
    const int64_t line = table->strip * table->real_size;
    const int64_t left = in_place ? table->key_block * line : (int64_t)table->p_bytes();
    test->p_left = kit_slot(kit, SLOT_P, (size_t)(test->strips * left));
    test->ds_left = kit_slot(kit, SLOT_BIAS, (size_t)(test->strips * left));
    test->right = in_place ? test->ds_left + (test->strips - 1) * left + test->at * line
                           : kit_slot(kit, SLOT_QT, (size_t)left);
    for (int64_t strip = 0; strip < test->strips; strip++) {
        char *p = test->p_left + strip * left, *ds = test->ds_left + strip * left;
        for (int64_t done = 0; done < test->n; done += table->grad->key_tile) {
            const int64_t n =
                test->n - done < table->grad->key_tile ? test->n - done : table->grad->key_tile;
            void *s = in_place ? p + (test->at + done) * line
                               : kit_slot(kit, SLOT_S, (size_t)(table->grad->key_tile * line));
            void *dp = in_place ? ds + (test->at + done) * line
                                : kit_slot(kit, SLOT_K, (size_t)(table->grad->key_tile * line));
            put_tile(kit, test, test->p, s, strip, done, n);
            put_tile(kit, test, test->ds, dp, strip, done, n);
            if (!in_place) {
                const attn_grad_forms to = {p, ds, test->right, test->at + done, done};
                KIT_CALL(kit, table->grad->split(&to, s, dp, n, NULL));
            }
        }
        if (in_place) { /* split does this for the other tables */
            KIT_CALL(kit, table->grad->clear(p, test->at + test->n, table->key_block));
            KIT_CALL(kit, table->grad->clear(ds, test->at + test->n, table->key_block));
        }
    }
}

/* X of a strip; the QT beside it must be pack_q's. */
static void pack_strip(kernel_kit *kit, const product_case *test, const void *const *row, void *x,
                       double factor)
{
    const size_t bytes = kit->uk->q_bytes(test->d);
    void *qt = kit_slot(kit, SLOT_S, bytes), *alone = kit_slot(kit, SLOT_K, bytes);
    KIT_CALL(kit, kit->uk->pack_q(alone, row, test->x.stride[3], kit->dtype, test->d, factor,
                                  kit->uk->strip));
    KIT_CALL(kit, kit->uk->grad->pack_both(qt, x, row, test->x.stride[3], kit->dtype, test->d,
                                           test->cols, factor));
    if (memcmp(qt, alone, bytes) != 0) {
        kit_fail(kit, "QT of pack_both is not that of pack_q");
    }
}

static char *make_x(kernel_kit *kit, const product_case *test)
{
    const uint64_t bytes = kit->uk->grad->x_bytes(test->cols);
    char *x = kit_slot(kit, SLOT_V, (size_t)test->strips * bytes);
    for (int64_t strip = 0; strip < test->strips; strip++) {
        const void *row[ATTN_MAX_STRIP];
        for (int64_t lane = 0; lane < kit->uk->strip; lane++) {
            row[lane] = panel_row(&test->x, strip * kit->uk->strip + lane);
        }
        /* a row that is not there */
        row[kit->uk->strip / 2] = strip == 0 ? NULL : row[kit->uk->strip / 2];
        pack_strip(kit, test, row, x + strip * (int64_t)bytes, strip % 2 ? -1 : 1);
    }
    return x;
}

static double relative(const kernel_kit *kit, int64_t terms)
{
    return kit->uk->losses.weights + kit_gamma(kit, (double)terms + 40);
}

static bool judge(kernel_kit *kit, const char *what, int64_t i, double got, double start,
                  double exact, double size, int64_t terms)
{
    const double want = start + exact;
    /* an infinity may be NaN as a sum of parts */
    if (isfinite(want) ? !(fabs(got - want) <= relative(kit, terms) * (size + fabs(start)))
                       : isfinite(got) || (isnan(want) && !isnan(got))) {
        kit_fail(kit, "%s[%lld] = %.9g, exact %.9g", what, (long long)i, got, want);
        return false;
    }
    return true;
}

static bool judge_rows(kernel_kit *kit, const product_case *test, const void *g, double start)
{
    bool good = true;
    for (int64_t i = 0; good && i < test->n * test->cols; i++) {
        const int64_t key = i / test->cols, col = i % test->cols, rows = rows_of(kit, test);
        double exact = 0, size = 0;
        for (int64_t row = 0; row < rows && col < test->d; row++) {
            if (row != kit->uk->strip / 2 && test->visible[visible_at(kit, test->at + key, row)]) {
                double term = test->p[key * rows + row] * panel_element(&test->x, row, col);
                exact += term, size += fabs(term);
            }
        }
        good = judge(kit, "G", i, kit_get(kit, g, i), start, exact, size, rows);
    }
    return good;
}

/* Lanes that see each key, of all strips. */
static const uint64_t *make_seen(kernel_kit *kit, const product_case *test)
{
    const int64_t strip = kit->uk->strip, keys = test->strips * kit->uk->key_block;
    uint64_t *seen = kit_slot(kit, SLOT_VISIBLE, (size_t)keys * sizeof(uint64_t));
    memset(seen, 0, (size_t)keys * sizeof(uint64_t));
    for (int64_t i = 0; i < test->n * rows_of(kit, test); i++) {
        const int64_t row = i % rows_of(kit, test),
                      at = visible_at(kit, test->at + i / rows_of(kit, test), row);
        seen[at / strip] |= (uint64_t)test->visible[at] << row % strip;
    }
    return seen;
}

/* rows of X with its numbers that are not finite apart. */
static void rows_apart(kernel_kit *kit, const product_case *test, void *g, char *x)
{
    const attn_ukernel *table = kit->uk;
    const int64_t words = attn_special_words(test->cols) * table->strip;
    const size_t bytes = (size_t)(test->strips * words) * sizeof(uint64_t);
    const attn_specials found = {kit_slot(kit, SLOT_LO, bytes), kit_slot(kit, SLOT_HI, bytes)};
    for (int64_t i = 0; i < test->strips; i++) {
        const attn_specials of_strip = {found.plus + i * words, found.minus + i * words};
        KIT_CALL(kit, table->grad->clean_x(x + i * (int64_t)table->grad->x_bytes(test->cols),
                                           test->cols, &of_strip));
    }
    KIT_CALL(kit, table->grad->rows(g, test->p_left, test->at, x, test->cols, test->n, 0,
                                    (int)rows_of(kit, test)));
    attn_specials_add_rows(table, g, &found, test->cols, make_seen(kit, test) + test->at, test->n,
                           (int)test->strips);
}

static void run_rows(kernel_kit *kit, product_case *test)
{
    const int64_t step = kit->uk->grad->key_step, room = (test->n + step - 1) / step * step;
    const double start = 0.25;
    char *x = make_x(kit, test);
    void *g = kit_slot(kit, SLOT_OT, (size_t)(room * test->cols * kit->uk->real_size));
    for (int64_t i = 0; i < room * test->cols; i++) {
        kit_put(kit, g, i, start);
    }
    kit_lock(kit, SLOT_P);
    if (test->careful) {
        rows_apart(kit, test, g, x);
    } else {
        kit_lock(kit, SLOT_V);
        KIT_CALL(kit, kit->uk->grad->rows(g, test->p_left, test->at, x, test->cols, test->n, 0,
                                          (int)rows_of(kit, test)));
    }
    judge_rows(kit, test, g, start);
}

/* dQT of the last strip. */
static void run_pv(kernel_kit *kit, product_case *test)
{
    const int64_t width = kit->uk->strip, first = (test->strips - 1) * width, pad = test->cols;
    void *panel = kit_slot(kit, SLOT_TARGET, kit->uk->v_bytes(pad)),
         *ones = kit_slot(kit, SLOT_ALPHA, (size_t)(width * 8));
    void *dqt = kit_slot(kit, SLOT_L, (size_t)(pad * width * kit->uk->real_size));
    memset(panel, 0, kit->uk->v_bytes(pad));
    const attn_rows source = panel_rows(&test->k, 0);
    KIT_CALL(kit, kit->uk->pack_v(panel, test->at, &source, test->n, test->d, pad));
    for (int64_t lane = 0; lane < width; lane++) {
        kit_put(kit, ones, lane, 1);
    }
    for (int64_t i = 0; i < pad * width; i++) {
        kit_put(kit, dqt, i, 0);
    }
    KIT_CALL(kit,
             kit->uk->pv(dqt, panel, test->at, test->right, pad, test->n, ones, kit->uk->strip));
    for (int64_t i = 0; i < test->d * width; i++) {
        double exact = 0, size = 0;
        for (int64_t key = 0; key < test->n; key++) {
            double term = test->ds[key * rows_of(kit, test) + first + i % width] *
                          panel_element(&test->k, key, i / width);
            exact += term, size += fabs(term);
        }
        if (!judge(kit, "dQT", i, kit_get(kit, dqt, i), 0, exact, size, test->n)) {
            return;
        }
    }
}

static void one(kernel_kit *kit, int64_t d, int64_t n, int64_t turn, bool careful)
{
    static product_case test;
    const attn_ukernel_grad *grad = kit->uk->grad;
    const int64_t pad = grad->vector > kit->uk->granule ? grad->vector : kit->uk->granule,
                  room = kit->uk->key_block - n;
    test = (product_case){.n = n, .d = d, .cols = (d + pad - 1) / pad * pad, .careful = careful};
    test.at = turn % 2 ? room / grad->key_step * grad->key_step : 0;
    test.strips = 1 + turn % (grad->row_block / kit->uk->strip);
    kit_doing(kit, "d=%lld n=%lld at=%lld strips=%lld dtype=%d careful=%d", (long long)d,
              (long long)n, (long long)test.at, (long long)test.strips, kit->dtype, careful);
    test.x = panel_matrix(kit, SLOT_SOURCE, rows_of(kit, &test), d,
                          careful ? VALUES_SPECIAL : VALUES_NORMAL, panel_stride(turn));
    test.k = panel_matrix(kit, SLOT_SOURCE_2, n, d, VALUES_NORMAL, panel_stride(turn + 1));
    fill(kit, &test, turn);
    make_factors(kit, &test);
    run_rows(kit, &test);
    run_pv(kit, &test);
}

void check_grad_products(kernel_kit *kit)
{
    int64_t turn = 0;
    kit_member(kit, "grad->products");
    for (int i = 0; i < panel_dims_count; i += 2) {
        for (int64_t n = 1; panel_dims[i] <= MOST_COLS && n <= kit->uk->key_block;
             n += kit->uk->key_block / 4 - 3) {
            one(kit, panel_dims[i], n, turn++, false);
        }
        if (panel_dims[i] <= 40) {
            one(kit, panel_dims[i], 1 + kit_choice(kit, 84, turn, kit->uk->key_block), turn, true);
            turn++;
        }
    }
}
