/*
 * check_block.c: softmax and pv of one block or two together, O = OT / l, against float64: for
 * every table, whatever form its probabilities and its maximum have. The bound is gamma of the
 * additions; where P has 16 bits, 2^-8 for the rounding of each p, and 2^-8 again since l may be
 * the sum of the rounded ones.
 */
#include "checks.h"
#include "cpu/specials.h"
#include "panel.h"
#include "sums.h"

#include <math.h>
#include <string.h>

enum { MOST_KEYS = 2 * KIT_MOST_KEYS };

typedef struct block_case {
    int64_t n, dv, dv_pad;
    int lanes;
    bool careful;
    attn_tensor value;
    /* scores, times log2(e) exponents; -inf = not visible */
    double s[MOST_KEYS * KIT_MOST_LANES];
} block_case;

/* Sums of the blocks so far, and the block under way. */
typedef struct block_state {
    attn_running running;
    void *ot, *panel, *s, *p;
    uint64_t *seen;
} block_state;

/* The values, column by column: the same for all lanes. */
static double columns[KIT_MOST_D][MOST_KEYS];

static bool judge_lane(kernel_kit *kit, const block_case *block, int64_t lane, const void *ot,
                       double l, double relative)
{
    double s[MOST_KEYS];
    for (int64_t key = 0; key < block->n; key++) {
        s[key] = block->s[key * kit->uk->strip + lane];
    }
    if (!exact_softmax(kit, s, block->n)) {
        return true;
    }
    for (int64_t col = 0; col < block->dv; col++) {
        const exact_sum exact = exact_average(kit, columns[col], block->n);
        double got = kit_get(kit, ot, col * kit->uk->strip + lane) / l,
               error = fabs(got - exact.value);
        /* an infinity may be NaN as a sum of parts */
        if (isfinite(exact.value) ? !(error <= relative * exact.size)
                                  : isfinite(got) || (isnan(exact.value) && !isnan(got))) {
            kit_fail(kit, "O[%lld][%lld] = %.9g, exact %.9g", (long long)col, (long long)lane, got,
                     exact.value);
            return false;
        }
    }
    return true;
}

static void judge(kernel_kit *kit, const block_case *block, const void *ot, const void *l,
                  int lanes)
{
    const double relative = 2 * kit->uk->losses.weights + kit_gamma(kit, 2 * (double)block->n + 40);
    bool good = true;
    for (int64_t col = 0; col < block->dv; col++) {
        for (int64_t key = 0; key < block->n; key++) {
            columns[col][key] = panel_element(&block->value, key, col);
        }
    }
    for (int64_t lane = 0; good && lane < lanes; lane++) {
        good = judge_lane(kit, block, lane, ot, kit_get(kit, l, lane), relative);
    }
}

/* Scores, a third of them hidden if careful. In every third turn they rise from tile to tile, far
 * and less far, so sums relative to earlier maxima have to be scaled down. */
static void fill(kernel_kit *kit, block_case *block, int64_t turn)
{
    for (int64_t i = 0; i < block->n * kit->uk->strip; i++) {
        const bool visible = !block->careful || kit_choice(kit, 71, i + turn, 3) != 0;
        double size = turn % 3 == 0 ? 8 : 2,
               rise = turn % 3 == 0 ? (double)(i / kit->uk->strip) * (turn % 2 ? 0.8 : 0.1) : 0;
        double x = visible ? size * kit_value(kit, VALUES_NORMAL, 70, i + turn, 1) + rise
                           : -(double)INFINITY;
        block->s[i] = kit->uk->real_size == 4 ? (double)(float)x : x;
    }
}

static void *make_state(kernel_kit *kit, enum slot slot, int64_t rows, double value)
{
    void *state = kit_slot(kit, slot, (size_t)(rows * kit->uk->strip * kit->uk->real_size));
    for (int64_t i = 0; i < rows * kit->uk->strip; i++) {
        kit_put(kit, state, i, value);
    }
    return state;
}

/* Rows of V from key `first` on in a panel of the slot, packed in two runs. */
static void *pack(kernel_kit *kit, enum slot slot, const block_case *block, int64_t first,
                  int64_t n)
{
    const size_t size = kit->uk->v_bytes(block->dv_pad);
    unsigned char *panel = kit_slot(kit, slot, size);
    /* keys beyond n have weight 0: they must be finite */
    memset(panel, 0, size);
    for (int64_t at = 0, end = n / 3; at < n; at = end, end = n) {
        const attn_rows source = panel_rows(&block->value, first + at);
        if (end > at) {
            KIT_CALL(kit, kit->uk->pack_v(panel, at, &source, end - at, block->dv, block->dv_pad));
        }
    }
    return panel;
}

static void weigh(kernel_kit *kit, const block_case *block, block_state *state, int64_t first,
                  int64_t n)
{
    const int64_t strip = kit->uk->strip, tile = kit->uk->key_tile;
    for (int64_t done = 0; done < n; done += tile) {
        const int64_t keys = n - done < tile ? n - done : tile;
        for (int64_t i = 0; i < keys * strip; i++) {
            kit_put(kit, state->s, i, block->s[(first + done) * strip + i]);
        }
        attn_specials_seen(kit->uk, state->seen + done, state->s, keys, block->lanes);
        KIT_CALL(kit, kit->uk->softmax(state->p, done, state->s, keys, 1.4426950408889634,
                                       &state->running, block->lanes));
    }
}

/* pv_few of the n keys from `first` on, from the panel or from rows, gives the bits of pv in the
 * state. `before` is OT before. */
static void compare_few(kernel_kit *kit, const block_case *block, const block_state *state,
                        const attn_values *panel, int64_t first, int64_t n, const void *alpha,
                        const void *before)
{
    const char *rows[ATTN_MAX_KEY_BLOCK];
    const size_t size = (size_t)(block->dv_pad * kit->uk->strip * kit->uk->real_size);
    void *got = memcpy(kit_slot(kit, SLOT_TARGET, size), before, size);
    attn_values values = *panel;
    values.rows = rows, values.count = n, values.dv = block->dv;
    for (int64_t key = 0; key < n; key++) {
        rows[key] = panel_rows(&block->value, first + key).data;
    }
    KIT_CALL(kit, kit->uk->pv_few(got, &values, state->p, n, alpha, block->lanes));
    kit_compare_lanes(kit, "OT of few", got, state->ot, block->dv, block->lanes);
}

/* Rows of O in the type of V. */
static unsigned char *make_rows(kernel_kit *kit, enum slot slot, const block_case *block,
                                void **rows)
{
    const size_t size = (size_t)(block->dv * attn_element_size(kit->dtype));
    unsigned char *first = kit_slot(kit, slot, size * (size_t)block->lanes);
    for (int lane = 0; lane < block->lanes; lane++) {
        rows[lane] = first + (size_t)lane * size;
    }
    return first;
}

/* Sums as rows are those of pv in the state, and O is that of store; `before` is OT before. */
static void compare_rows(kernel_kit *kit, const block_case *block, const block_state *state,
                         const void *panel, int64_t n, const void *alpha, const void *before)
{
    const attn_ukernel *table = kit->uk;
    const int64_t strip = table->strip, dv = block->dv;
    void *want[ATTN_MAX_STRIP], *got[ATTN_MAX_STRIP];
    void *sum = kit_reals(kit, SLOT_TARGET, strip * dv), *flat = kit_reals(kit, SLOT_K, strip * dv);
    attn_row_sums to = {.sum = sum,
                        .alpha = alpha,
                        .o = got,
                        .divisor = state->running.l,
                        .o_dtype = kit->dtype,
                        .dv = dv};
    const unsigned char *o = make_rows(kit, SLOT_HI, block, got),
                        *stored = make_rows(kit, SLOT_LO, block, want);
    bool done;
    for (int64_t i = 0; i < strip * dv; i++) {
        kit_put(kit, sum, i, kit_get(kit, before, i % dv * strip + i / dv));
    }
    KIT_CALL(kit, done = table->pv_rows(&to, panel, 0, state->p, n, block->lanes));
    KIT_CALL(kit, done = done || table->end_rows(&to, block->lanes));
    KIT_CALL(kit, table->store(want, 1, kit->dtype, state->ot, dv, state->running.l, block->lanes));
    if (done != table->finite(state->ot, dv, block->lanes) ||
        (done && memcmp(o, stored, (size_t)(dv * block->lanes * attn_element_size(kit->dtype))))) {
        kit_fail(kit, "O of rows is not that of columns");
    }
    if (alpha == NULL) {
        to.o = NULL;
        KIT_CALL(kit, table->pv_rows(&to, panel, 0, state->p, n, block->lanes));
        for (int64_t i = 0; i < strip * dv; i++) {
            kit_put(kit, flat, i % dv * strip + i / dv, kit_get(kit, sum, i));
        }
        kit_compare_lanes(kit, "OT of rows", flat, state->ot, dv, block->lanes);
    }
}

/* Adds the n keys of the panel with its numbers that are not finite apart. */
static void add_careful(kernel_kit *kit, const block_case *block, const block_state *state,
                        void *panel, int64_t n, const void *alpha)
{
    const attn_ukernel *table = kit->uk;
    const size_t bytes = (size_t)(block->dv_pad * attn_special_words(table->key_block)) * 8;
    const attn_specials found = {kit_slot(kit, SLOT_LO, bytes), kit_slot(kit, SLOT_HI, bytes)};
    KIT_CALL(kit, table->clean_v(panel, panel, 0, n, block->dv_pad, &found));
    KIT_CALL(kit, table->pv(state->ot, panel, 0, state->p, block->dv_pad, n, alpha, block->lanes));
    attn_specials_add_keys(table, state->ot, &found, block->dv_pad, state->seen, block->lanes);
}

/* Adds the n keys from `first` on. alpha: NULL or the state's. */
static void add_block(kernel_kit *kit, const block_case *block, block_state *state, int64_t first,
                      int64_t n, const void *alpha)
{
    const attn_ukernel *table = kit->uk;
    const size_t size = (size_t)(block->dv_pad * table->strip * table->real_size);
    const attn_rows source = panel_rows(&block->value, first);
    const bool fits =
        table->takes_rows && source.col_stride == 1 && table->takes_rows(source.dtype, block->dv);
    void *panel = pack(kit, SLOT_V, block, first, n);
    weigh(kit, block, state, first, n);
    if (block->careful) {
        add_careful(kit, block, state, panel, n, alpha);
        return;
    }
    void *before = kit_slot(kit, SLOT_QT, size);
    memcpy(before, state->ot, size);
    KIT_CALL(kit, table->pv(state->ot, panel, 0, state->p, block->dv_pad, n, alpha, block->lanes));
    if (table->row_columns > 0 && block->dv > 0 && block->dv % table->row_columns == 0) {
        compare_rows(kit, block, state, panel, n, alpha, before);
    }
    if (block->lanes > table->few_lanes) {
        return;
    }
    attn_values values = {.v = panel, .dv_pad = block->dv_pad};
    if (table->rows_are_panels) {
        compare_few(kit, block, state, &values, first, n, alpha, before);
    }
    values.dtype = source.dtype;
    if (fits) {
        compare_few(kit, block, state, &values, first, n, alpha, before);
    }
}

static void one(kernel_kit *kit, int64_t dv, int64_t n, int64_t turn, bool careful)
{
    static block_case block;
    const int64_t strip = kit->uk->strip, granule = kit->uk->granule, most = kit->uk->key_block;
    const size_t row = (size_t)(strip * kit->uk->real_size);
    block.n = n, block.dv = dv, block.dv_pad = (dv + granule - 1) / granule * granule;
    block.lanes = kit_lanes(kit, turn), block.careful = careful;
    kit_doing(kit, "dv=%lld n=%lld lanes=%d dtype=%d turn=%lld careful=%d", (long long)dv,
              (long long)n, block.lanes, kit->dtype, (long long)turn, careful);
    block.value = panel_matrix(kit, SLOT_SOURCE, n, dv, careful ? VALUES_SPECIAL : VALUES_NORMAL,
                               panel_stride(turn));
    block_state state = {.s = kit_slot(kit, SLOT_S, (size_t)kit->uk->key_tile * row)};
    state.p = kit->uk->p_bytes() > 0 ? kit_slot(kit, SLOT_P, kit->uk->p_bytes()) : state.s;
    state.ot = make_state(kit, SLOT_OT, block.dv_pad, turn % 3 ? 0 : (double)NAN);
    attn_running *running = &state.running;
    running->m = make_state(kit, SLOT_M, 1, -(double)INFINITY);
    running->l = make_state(kit, SLOT_L, 1, 0);
    running->top = kit->uk->lags ? make_state(kit, SLOT_TOP, 1, -(double)INFINITY) : running->m;
    running->alpha = kit_slot(kit, SLOT_ALPHA, row);
    state.seen = kit_slot(kit, SLOT_VISIBLE, (size_t)most * sizeof *state.seen);
    fill(kit, &block, turn);
    for (int64_t first = 0; first < n; first += most) {
        add_block(kit, &block, &state, first, n - first < most ? n - first : most,
                  first == 0 && turn % 3 == 0 ? NULL : running->alpha);
    }
    judge(kit, &block, state.ot, running->l, block.lanes);
}

void check_block(kernel_kit *kit)
{
    const int64_t most = 2 * kit->uk->key_block;
    int64_t turn = 0;
    kit_member(kit, "block");
    for (int i = 0; i < panel_dims_count; i += 3) {
        for (int64_t n = 1; n <= most; n += 43) {
            one(kit, panel_dims[i], n, turn++, false);
        }
        one(kit, panel_dims[i], kit->uk->key_block, turn++, false);
        one(kit, panel_dims[i], most, turn++, false);
        one(kit, panel_dims[i], 1 + kit_choice(kit, 72, turn, most), turn, true);
    }
}
