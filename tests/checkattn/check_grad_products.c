/*
 * check_grad_products.c: the products of the backward pass as a table has them, in whatever form:
 * tiles of P and dS are split, rows of X packed, G += P X (rows, rows_careful) and dQT += K^T dS
 * (pv) compared with float64. The bound is gamma of the additions, and what a table loses where P
 * and dS have fewer bits. That tables with the bits of scalar have them here too is check_grad.c's.
 */
#include "checks.h"
#include "cpu/ukernel/table_grad.h"
#include "panel.h"

#include <math.h>
#include <string.h>

enum { MOST_COLS = 160 };

typedef struct products {
    int64_t at, n, strips, cols, d; /* cols: of X, d: those that its rows have */
    /* [key][row] */
    double p[ATTN_MAX_ROW_BLOCK * ATTN_MAX_KEY_BLOCK], ds[ATTN_MAX_ROW_BLOCK * ATTN_MAX_KEY_BLOCK];
    unsigned char visible[ATTN_MAX_ROW_BLOCK * ATTN_MAX_KEY_BLOCK]; /* [strip][key_block][strip] */
    bool careful;
    attn_tensor x, k;
    char *p_left, *ds_left, *right;
} products;

static int64_t rows_of(const kit *k, const products *c)
{
    return c->strips * k->uk->strip;
}

static int64_t visible_at(const kit *k, int64_t key, int64_t row)
{
    return (row / k->uk->strip * k->uk->key_block + key) * k->uk->strip + row % k->uk->strip;
}

static void fill(kit *k, products *c, int64_t turn)
{
    const int64_t rows = rows_of(k, c);
    for (int64_t i = 0; i < c->n * rows; i++) {
        bool seen = !c->careful || kit_choice(k, 81, i + turn, 3) != 0;
        c->visible[visible_at(k, c->at + i / rows, i % rows)] = seen;
        c->p[i] = seen ? (double)(float)fabs(kit_value(k, VALUES_NORMAL, 82, i + turn, 1)) : 0;
        c->ds[i] = seen ? (double)(float)kit_value(k, VALUES_NORMAL, 83, i + turn, 1) : 0;
    }
}

/* The tile of n keys that begins at key `first` of the part, of one strip. */
static void put_tile(const kit *k, const products *c, const double *from, void *to, int64_t strip,
                     int64_t first, int64_t n)
{
    const int64_t width = k->uk->strip;
    for (int64_t i = 0; i < n * width; i++) {
        kit_put(k, to, i, from[(first + i / width) * rows_of(k, c) + strip * width + i % width]);
    }
}

/* Left factors of all strips, and the last strip's dS for pv. */
static void make_factors(kit *k, products *c)
{
    const attn_ukernel *uk = k->uk;
    const bool in_place = uk->grad->split == NULL;
    const int64_t line = uk->strip * uk->real_size;
    const int64_t left = in_place ? uk->key_block * line : (int64_t)uk->p_bytes();
    c->p_left = kit_slot(k, SLOT_P, (size_t)(c->strips * left));
    c->ds_left = kit_slot(k, SLOT_BIAS, (size_t)(c->strips * left));
    c->right = in_place ? c->ds_left + (c->strips - 1) * left + c->at * line
                        : kit_slot(k, SLOT_QT, (size_t)left);
    for (int64_t strip = 0; strip < c->strips; strip++) {
        char *p = c->p_left + strip * left, *ds = c->ds_left + strip * left;
        for (int64_t done = 0; done < c->n; done += uk->grad->key_tile) {
            const int64_t n = c->n - done < uk->grad->key_tile ? c->n - done : uk->grad->key_tile;
            void *s = in_place ? p + (c->at + done) * line
                               : kit_slot(k, SLOT_S, (size_t)(uk->grad->key_tile * line));
            void *dp = in_place ? ds + (c->at + done) * line
                                : kit_slot(k, SLOT_K, (size_t)(uk->grad->key_tile * line));
            put_tile(k, c, c->p, s, strip, done, n);
            put_tile(k, c, c->ds, dp, strip, done, n);
            if (!in_place) {
                const attn_grad_forms to = {p, ds, c->right, c->at + done, done};
                KIT_CALL(k, uk->grad->split(&to, s, dp, n, NULL));
            }
        }
        if (in_place) { /* split does this for the other tables */
            KIT_CALL(k, uk->grad->clear(p, c->at + c->n, uk->key_block));
            KIT_CALL(k, uk->grad->clear(ds, c->at + c->n, uk->key_block));
        }
    }
}

/* X of a strip; the QT beside it must be pack_q's. */
static void pack_strip(kit *k, const products *c, const void *const *row, void *x, double factor)
{
    const size_t bytes = k->uk->q_bytes(c->d);
    void *qt = kit_slot(k, SLOT_S, bytes), *alone = kit_slot(k, SLOT_K, bytes);
    KIT_CALL(k, k->uk->pack_q(alone, row, c->x.stride[3], k->dtype, c->d, factor, k->uk->strip));
    KIT_CALL(k,
             k->uk->grad->pack_both(qt, x, row, c->x.stride[3], k->dtype, c->d, c->cols, factor));
    if (memcmp(qt, alone, bytes) != 0) {
        kit_fail(k, "QT of pack_both is not that of pack_q");
    }
}

static void *make_x(kit *k, const products *c)
{
    const uint64_t bytes = k->uk->grad->x_bytes(c->cols);
    char *x = kit_slot(k, SLOT_V, (size_t)c->strips * bytes);
    for (int64_t strip = 0; strip < c->strips; strip++) {
        const void *row[ATTN_MAX_STRIP];
        for (int64_t lane = 0; lane < k->uk->strip; lane++) {
            row[lane] = panel_row(&c->x, strip * k->uk->strip + lane);
        }
        /* a row that is not there */
        row[k->uk->strip / 2] = strip == 0 ? NULL : row[k->uk->strip / 2];
        pack_strip(k, c, row, x + strip * (int64_t)bytes, strip % 2 ? -1 : 1);
    }
    return x;
}

static double relative(const kit *k, int64_t terms)
{
    return k->uk->losses.weights + kit_gamma(k, (double)terms + 40);
}

static bool judge(kit *k, const char *what, int64_t i, double got, double start, double exact,
                  double size, int64_t terms)
{
    const double want = start + exact;
    if (isfinite(want) && !(fabs(got - want) <= relative(k, terms) * (size + fabs(start)))) {
        kit_fail(k, "%s[%lld] = %.9g, exact %.9g", what, (long long)i, got, want);
        return false;
    }
    return true;
}

static bool judge_rows(kit *k, const products *c, const void *g, double start)
{
    bool good = true;
    for (int64_t i = 0; good && i < c->n * c->cols; i++) {
        const int64_t key = i / c->cols, col = i % c->cols, rows = rows_of(k, c);
        double exact = 0, size = 0;
        for (int64_t row = 0; row < rows && col < c->d; row++) {
            if (row != k->uk->strip / 2 && c->visible[visible_at(k, c->at + key, row)]) {
                double term = c->p[key * rows + row] * panel_element(&c->x, row, col);
                exact += term, size += fabs(term);
            }
        }
        good = judge(k, "G", i, kit_get(k, g, i), start, exact, size, rows);
    }
    return good;
}

static void run_rows(kit *k, products *c)
{
    const int64_t step = k->uk->grad->key_step, room = (c->n + step - 1) / step * step;
    const double start = 0.25;
    const void *x = make_x(k, c);
    void *g = kit_slot(k, SLOT_OT, (size_t)(room * c->cols * k->uk->real_size));
    for (int64_t i = 0; i < room * c->cols; i++) {
        kit_put(k, g, i, start);
    }
    kit_lock(k, SLOT_P);
    kit_lock(k, SLOT_V);
    if (c->careful) {
        KIT_CALL(k, k->uk->grad->rows_careful(g, c->p_left, c->at, x, c->cols, c->n, 0,
                                              (int)rows_of(k, c), c->visible));
    } else {
        KIT_CALL(k,
                 k->uk->grad->rows(g, c->p_left, c->at, x, c->cols, c->n, 0, (int)rows_of(k, c)));
    }
    judge_rows(k, c, g, start);
}

/* dQT of the last strip. */
static void run_pv(kit *k, products *c)
{
    const int64_t width = k->uk->strip, first = (c->strips - 1) * width, pad = c->cols;
    void *panel = kit_slot(k, SLOT_TARGET, k->uk->v_bytes(pad)),
         *ones = kit_slot(k, SLOT_ALPHA, (size_t)(width * 8));
    void *dqt = kit_slot(k, SLOT_L, (size_t)(pad * width * k->uk->real_size));
    memset(panel, 0, k->uk->v_bytes(pad));
    const attn_rows source = panel_rows(&c->k, 0);
    KIT_CALL(k, k->uk->pack_v(panel, c->at, &source, c->n, c->d, pad));
    for (int64_t lane = 0; lane < width; lane++) {
        kit_put(k, ones, lane, 1);
    }
    for (int64_t i = 0; i < pad * width; i++) {
        kit_put(k, dqt, i, 0);
    }
    KIT_CALL(k, k->uk->pv(dqt, panel, c->at, c->right, pad, c->n, ones, k->uk->strip));
    for (int64_t i = 0; i < c->d * width; i++) {
        double exact = 0, size = 0;
        for (int64_t key = 0; key < c->n; key++) {
            double term = c->ds[key * rows_of(k, c) + first + i % width] *
                          panel_element(&c->k, key, i / width);
            exact += term, size += fabs(term);
        }
        if (!judge(k, "dQT", i, kit_get(k, dqt, i), 0, exact, size, c->n)) {
            return;
        }
    }
}

static void one(kit *k, int64_t d, int64_t n, int64_t turn, bool careful)
{
    static products c;
    const attn_ukernel_grad *grad = k->uk->grad;
    const int64_t pad = grad->vector > k->uk->granule ? grad->vector : k->uk->granule,
                  room = k->uk->key_block - n;
    c = (products){.n = n, .d = d, .cols = (d + pad - 1) / pad * pad, .careful = careful};
    c.at = turn % 2 ? room / grad->key_step * grad->key_step : 0;
    c.strips = 1 + turn % (grad->row_block / k->uk->strip);
    kit_doing(k, "d=%lld n=%lld at=%lld strips=%lld dtype=%d careful=%d", (long long)d,
              (long long)n, (long long)c.at, (long long)c.strips, k->dtype, careful);
    c.x = panel_matrix(k, SLOT_SOURCE, rows_of(k, &c), d, careful ? VALUES_SPECIAL : VALUES_NORMAL,
                       panel_stride(turn));
    c.k = panel_matrix(k, SLOT_SOURCE_2, n, d, VALUES_NORMAL, panel_stride(turn + 1));
    fill(k, &c, turn);
    make_factors(k, &c);
    run_rows(k, &c);
    run_pv(k, &c);
}

void check_grad_products(kit *k)
{
    int64_t turn = 0;
    kit_member(k, "grad->products");
    for (int i = 0; i < panel_dims_count; i += 2) {
        for (int64_t n = 1; panel_dims[i] <= MOST_COLS && n <= k->uk->key_block;
             n += k->uk->key_block / 4 - 3) {
            one(k, panel_dims[i], n, turn++, false);
        }
        if (panel_dims[i] <= 40) {
            one(k, panel_dims[i], 1 + kit_choice(k, 84, turn, k->uk->key_block), turn, true);
            turn++;
        }
    }
}
