/*
 * check_clean.c: clean_v and clean_x. A panel that was cleaned is, byte for byte, the panel of the
 * same rows with 0 in place of numbers that are not finite; and these are noted, each with its
 * sign, where no sum of parts makes it NaN.
 */
#include "checks.h"
#include "cpu/ukernel/table_grad.h"
#include "inputs.h"
#include "panel.h"

#include <math.h>
#include <string.h>

/* The matrix with 0 in place of numbers that are not finite. */
static attn_tensor without_specials(kernel_kit *kit, const attn_tensor *x)
{
    const int64_t rows = x->shape[1], cols = x->shape[3];
    void *data = kit_slot(kit, SLOT_SOURCE_2, (size_t)(rows * cols) * attn_dtype_size(kit->dtype));
    attn_tensor t = attn_tensor_bshd(data, (attn_dtype)kit->dtype, 1, rows, 1, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        const double element = panel_element(x, i / cols, i % cols);
        inputs_store(&t, 0, i / cols, 0, i % cols, isfinite(element) ? element : 0);
    }
    kit_lock(kit, SLOT_SOURCE_2);
    return t;
}

static attn_specials words_of(kernel_kit *kit, int64_t sets, int64_t bits)
{
    const size_t bytes = (size_t)(sets * attn_special_words(bits)) * sizeof(uint64_t);
    return (attn_specials){kit_slot(kit, SLOT_M, bytes), kit_slot(kit, SLOT_L, bytes)};
}

/* Set `set` has bit `bit` as the element wants it. */
static bool judge_bit(kernel_kit *kit, const attn_specials *found, int64_t word, int64_t bit,
                      double element)
{
    const bool parts = kit->uk->tile_products > 1 || kit->uk->pair_products > 1;
    const bool infinite = isinf(element) && !parts, nan = !isfinite(element) && !infinite;
    const bool plus = found->plus[word + bit / 64] >> bit % 64 & 1,
               minus = found->minus[word + bit / 64] >> bit % 64 & 1;
    if (plus == (nan || (infinite && element > 0)) && minus == (nan || (infinite && element < 0))) {
        return true;
    }
    kit_fail(kit, "word %lld, bit %lld: %d %d for %g", (long long)word, (long long)bit, plus, minus,
             element);
    return false;
}

/* ---- V --------------------------------------------------------------------------------------- */

static void judge_v(kernel_kit *kit, const attn_specials *found, const attn_tensor *v, int64_t at,
                    int64_t dv_pad, bool any)
{
    const int64_t words = attn_special_words(kit->uk->key_block), dv = v->shape[3];
    bool good = true, wanted = false;
    for (int64_t i = 0; good && i < dv_pad * words * 64; i++) {
        const int64_t c = i / (words * 64), bit = i % (words * 64), key = bit - at;
        const bool there = c < dv && key >= 0 && key < v->shape[1];
        const double element = there ? panel_element(v, key, c) : 0;
        wanted |= !isfinite(element);
        good = judge_bit(kit, found, c * words, bit, element);
    }
    if (good && any != wanted) {
        kit_fail(kit, "clean_v says %d", any);
    }
}

static void one_v(kernel_kit *kit, int64_t dv, int64_t n, int64_t turn)
{
    const attn_ukernel *table = kit->uk;
    const int64_t step = table->key_step, granule = table->granule,
                  dv_pad = (dv + granule - 1) / granule * granule;
    const int64_t at = kit_choice(kit, 5, turn, (table->key_block - n) / step + 1) * step;
    const attn_tensor v = panel_matrix(kit, SLOT_SOURCE, n, dv, VALUES_SPECIAL, panel_stride(turn)),
                      clean = without_specials(kit, &v);
    const attn_rows rows = panel_rows(&v, 0), clean_rows = panel_rows(&clean, 0);
    const size_t bytes = table->v_bytes(dv_pad);
    void *panel = kit_slot(kit, SLOT_V, bytes), *want = kit_slot(kit, SLOT_TARGET, bytes),
         *to = turn % 2 ? kit_slot(kit, SLOT_K, bytes) : panel;
    const attn_specials found = words_of(kit, dv_pad, table->key_block);
    bool any;
    kit_doing(kit, "dv=%lld n=%lld at=%lld dtype=%d turn=%lld", (long long)dv, (long long)n,
              (long long)at, kit->dtype, (long long)turn);
    KIT_CALL(kit, table->pack_v(panel, at, &rows, n, dv, dv_pad));
    KIT_CALL(kit, table->pack_v(want, at, &clean_rows, n, dv, dv_pad));
    if (to != panel) {
        kit_lock(kit, SLOT_V);
    }
    KIT_CALL(kit, any = table->clean_v(to, panel, at, n, dv_pad, &found));
    judge_v(kit, &found, &v, at, dv_pad, any);
    if (memcmp(to, want, bytes) != 0) {
        kit_fail(kit, "not the panel of the finite numbers");
    }
}

void check_clean_v(kernel_kit *kit)
{
    int64_t turn = 0;
    kit_member(kit, "clean_v");
    for (int i = 0; i < panel_dims_count; i++) {
        for (int64_t n = 1; n <= kit->uk->key_block; n += kit->uk->key_block / 4 - 3) {
            one_v(kit, panel_dims[i], n, turn++);
        }
    }
}

/* ---- X --------------------------------------------------------------------------------------- */

static void *make_x(kernel_kit *kit, enum slot slot, const attn_tensor *rows, int64_t cols)
{
    const int64_t d = rows->shape[3];
    void *x = kit_slot(kit, slot, kit->uk->grad->x_bytes(cols)),
         *qt = kit_slot(kit, SLOT_QT, kit->uk->q_bytes(d));
    const void *row[ATTN_MAX_STRIP] = {NULL};
    for (int64_t lane = 0; lane < kit->uk->strip; lane++) {
        row[lane] = lane < rows->shape[1] ? panel_row(rows, lane) : NULL;
    }
    KIT_CALL(kit, kit->uk->grad->pack_both(qt, x, row, rows->stride[3], kit->dtype, d, cols, 1));
    return x;
}

static void one_x(kernel_kit *kit, int64_t d, int64_t turn)
{
    const int64_t vector = kit->uk->grad->vector, cols = (d + vector - 1) / vector * vector,
                  words = attn_special_words(cols);
    const int lanes = kit_lanes(kit, turn);
    const attn_tensor rows = panel_matrix(kit, SLOT_SOURCE, lanes, d, VALUES_SPECIAL,
                                          panel_stride(turn)),
                      clean = without_specials(kit, &rows);
    void *x = make_x(kit, SLOT_V, &rows, cols), *want = make_x(kit, SLOT_TARGET, &clean, cols);
    const attn_specials found = words_of(kit, kit->uk->strip, cols);
    bool any, wanted = false, good = true;
    kit_doing(kit, "d=%lld lanes=%d dtype=%d turn=%lld", (long long)d, lanes, kit->dtype,
              (long long)turn);
    KIT_CALL(kit, any = kit->uk->grad->clean_x(x, cols, &found));
    for (int64_t i = 0; good && i < kit->uk->strip * words * 64; i++) {
        const int64_t lane = i / (words * 64), c = i % (words * 64);
        const double element = lane < lanes && c < d ? panel_element(&rows, lane, c) : 0;
        wanted |= !isfinite(element);
        good = judge_bit(kit, &found, lane * words, c, element);
    }
    if (good && any != wanted) {
        kit_fail(kit, "clean_x says %d", any);
    }
    if (memcmp(x, want, kit->uk->grad->x_bytes(cols)) != 0) {
        kit_fail(kit, "not the rows of the finite numbers");
    }
}

void check_clean_x(kernel_kit *kit)
{
    kit_member(kit, "grad->clean_x");
    for (int64_t turn = 0; turn < 4 * panel_dims_count; turn++) {
        one_x(kit, panel_dims[turn % panel_dims_count], turn);
    }
}
