/*
 * check_pack.c: members that move and convert without arithmetic, hence must be exact: the packing
 * of K, V and Q in their documented layout, bias, store and finite. Packing and store round as
 * support/half.h does, by the formula.
 */
#include "checks.h"
#include "half.h"
#include "inputs.h"
#include "oracle.h"
#include "panel.h"

#include <math.h>
#include <string.h>

/* ---- pack_k, pack_v, pack_q ------------------------------------------------------------------ */

/* Every bit pattern of a 16-bit type, or values of all kinds. */
static void fill_source(kernel_kit *kit, attn_tensor *t, int64_t turn)
{
    int64_t n = t->shape[1], d = t->shape[3];
    for (int64_t i = 0; i < n * d; i++) {
        char *at = (char *)t->data + (i / d * t->stride[1] + i % d * t->stride[3]) *
                                         (int64_t)attn_dtype_size(t->dtype);
        if (attn_dtype_size(t->dtype) == 2) {
            memcpy(at, &(uint16_t){(uint16_t)(turn * n * d + i)}, 2);
        } else {
            inputs_store(t, 0, i / d, 0, i % d,
                         kit_value(kit, VALUES_SPECIAL, 90, turn * n * d + i, 1));
        }
    }
}

/* Quiet NaN is NaN; the rest bit for bit. */
static void expect(kernel_kit *kit, const char *what, const void *panel, int64_t at, double want)
{
    double one[1] = {0};
    kit_put(kit, one, 0, want);
    if (!kit_same(kit, panel, at, one, 0)) {
        kit_fail(kit, "%s[%lld] = %a, want %a", what, (long long)at, kit_get(kit, panel, at), want);
    }
}

/* pack_k gives [key][d], pack_v [key][dv_pad] with zeroes in the padding. Only for tables of that
 * layout. */
static void one_pack(kernel_kit *kit, int64_t n, int64_t d, int64_t turn, bool values)
{
    int64_t granule = kit->uk->granule, pad = values ? (d + granule - 1) / granule * granule : d;
    attn_tensor t = panel_matrix(kit, SLOT_SOURCE, n, d, VALUES_NORMAL, panel_stride(turn));
    void *source = kit_slot(kit, SLOT_SOURCE,
                            (size_t)((n * t.stride[1]) * (int64_t)attn_dtype_size(kit->dtype)));
    t.data =
        (char *)source + (t.stride[3] < 0 ? (d - 1) * (int64_t)attn_dtype_size(kit->dtype) : 0);
    fill_source(kit, &t, turn);
    kit_lock(kit, SLOT_SOURCE);
    kit_doing(kit, "%s n=%lld d=%lld dtype=%d turn=%lld", values ? "V" : "K", (long long)n,
              (long long)d, kit->dtype, (long long)turn);
    void *panel = kit_slot(kit, SLOT_K, values ? kit->uk->v_bytes(pad) : kit->uk->k_bytes(d));
    attn_rows rows = panel_rows(&t, 0);
    int64_t at = kit->uk->key_block - n;
    if (values) {
        KIT_CALL(kit, kit->uk->pack_v(panel, at, &rows, n, d, pad));
    } else {
        KIT_CALL(kit, kit->uk->pack_k(panel, at, &rows, n, d));
    }
    for (int64_t i = 0; i < n * pad; i++) {
        double want = i % pad < d ? oracle_element(&t, 0, i / pad, 0, i % pad) : 0;
        expect(kit, "panel", panel, at * pad + i, want);
    }
    for (int64_t i = 0; i < at * pad; i++) {
        if (!isnan(kit_get(kit, panel, i))) {
            kit_fail(kit, "writes key %lld, before the first", (long long)(i / pad));
            return;
        }
    }
}

void check_pack(kernel_kit *kit)
{
    kit_member(kit, "pack");
    for (int64_t turn = 0; kit->same_bits && turn < 160; turn++) {
        int64_t d = panel_dims[turn % panel_dims_count],
                n = 1 + kit_choice(kit, 91, turn, kit->uk->key_block);
        one_pack(kit, n, d, turn, turn & 1);
    }
    /* every 16-bit pattern */
    for (int64_t turn = 0; kit->same_bits && turn < 65536 / (64 * 128); turn++) {
        /* stride 1: whole vectors; 5 is the period of the strides */
        one_pack(kit, 64, 128, turn * 5, false);
        one_pack(kit, 64, 128, turn * 5 + 2, false);
    }
}

/* ---- bias ------------------------------------------------------------------------------------ */

/* The sharing of rows between lanes and keys, for a check's turn. */
typedef struct bias_case {
    int64_t n, rows, bias_stride, mask_stride; /* lane i has row i % rows */
    int32_t mask_dtype;
    int64_t mask_first; /* of bits: the first key's place in its byte */
    bool bias, mask;
} bias_case;

static bias_case make_case(const kernel_kit *kit, int64_t n, int64_t turn)
{
    const int64_t strip = kit->uk->strip;
    bias_case test = {.n = n, .bias = turn % 5 != 4, .mask = turn % 3 != 2};
    test.rows = turn % 7 < 4 ? strip : turn % 7 == 4 ? 1 : turn % 7 == 5 ? strip - 1 : 2;
    test.bias_stride = test.bias && turn % 4 != 3 ? panel_stride(turn) : 0;
    static const int32_t masks[] = {ATTN_BOOL, ATTN_U8, ATTN_I8, ATTN_I32, ATTN_I64, ATTN_B1X8};
    test.mask_dtype = masks[turn % 13 < 6 ? turn % 13 : 0];
    test.mask_first = test.mask_dtype == ATTN_B1X8 ? turn % 8 : 0;
    test.mask_stride = !test.mask || turn % 11 < 4 ? 0 : turn % 11 < 8 ? 1 : 2;
    return test;
}

/* A tile from any type with any stride, each lane with a row of its own or several with one. */
static void one_bias(kernel_kit *kit, int32_t dtype, int64_t n, int64_t turn)
{
    const int64_t strip = kit->uk->strip, size = (int64_t)attn_dtype_size(dtype);
    const bias_case test = make_case(kit, n, turn);
    const int64_t reach =
        (n - 1) * (test.bias_stride < 0 ? -test.bias_stride : test.bias_stride) + 1;
    const int64_t each = test.mask_dtype == ATTN_B1X8 ? 8 : 1;
    const int64_t span = (test.mask_first + n - 1) / each * test.mask_stride + 1;
    unsigned char *first = kit_slot(kit, SLOT_SOURCE, (size_t)(test.rows * reach * size));
    attn_tensor t = attn_tensor_bshd(first + (test.bias_stride < 0 ? (reach - 1) * size : 0),
                                     (attn_dtype)dtype, test.rows, n, 1, 1);
    t.stride[0] = reach, t.stride[1] = test.bias_stride;
    for (int64_t i = 0; i < test.rows * n; i++) {
        bool low = kit_choice(kit, 92, i + turn, 9) == 0;
        inputs_store(&t, i / n, i % n, 0, 0,
                     low ? -(double)INFINITY : kit_value(kit, VALUES_NORMAL, 93, i + turn, 1));
    }
    kit_lock(kit, SLOT_SOURCE);
    const int64_t mask_size = (int64_t)attn_dtype_size(test.mask_dtype);
    char *mask = kit_slot(kit, SLOT_VISIBLE, (size_t)(test.rows * span * mask_size));
    attn_tensor m = attn_tensor_bshd(mask, (attn_dtype)test.mask_dtype, test.rows, 1, 1, span);
    for (int64_t i = 0; i < test.rows * span * each; i++) { /* a bit of any byte */
        const double one = exp2((double)(i % (8 * mask_size - 1)));
        inputs_store(&m, i / (span * each), 0, 0, i % (span * each),
                     kit_choice(kit, 94, i + turn, 3) ? one : 0);
    }
    m.stride[3] = test.mask_stride;
    kit_lock(kit, SLOT_VISIBLE);
    attn_bias_rows rows = {.bias_stride = test.bias_stride,
                           .mask_stride = test.mask_stride,
                           .dtype = dtype,
                           .mask_dtype = test.mask_dtype,
                           .mask_first = test.mask_first};
    for (int64_t lane = 0; lane < strip; lane++) {
        const int64_t row = lane % test.rows;
        rows.bias[lane] = test.bias ? (char *)t.data + row * reach * size : NULL;
        rows.mask[lane] = test.mask ? mask + row * span * mask_size : NULL;
    }
    void *tile = kit_slot(kit, SLOT_BIAS, (size_t)(n * strip * kit->uk->real_size));
    kit_doing(kit, "n=%lld dtype=%d %d rows=%lld strides=%lld %lld bias=%d mask=%d", (long long)n,
              dtype, test.mask_dtype, (long long)test.rows, (long long)test.bias_stride,
              (long long)test.mask_stride, test.bias, test.mask);
    KIT_CALL(kit, kit->uk->bias(tile, n, &rows));
    for (int64_t i = 0; i < n * strip; i++) {
        const int64_t row = i % strip % test.rows, key = i / strip;
        bool hidden = test.mask && oracle_element(&m, row, 0, 0, test.mask_first + key) == 0;
        expect(kit, "tile", tile, i,
               hidden      ? -(double)INFINITY
               : test.bias ? oracle_element(&t, row, key, 0, 0)
                           : 0);
    }
}

void check_bias(kernel_kit *kit)
{
    static const int32_t dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    kit_member(kit, "bias");
    for (int64_t n = 1, turn = 0; n <= kit->uk->key_tile; n++) {
        for (int type = 0; type < 4; type++) {
            for (int i = 0; i < 5; i++) {
                one_bias(kit, dtypes[type], n, turn++);
            }
        }
    }
}

/* ---- store ----------------------------------------------------------------------------------- */

/* x rounded once to dtype, through real as the kernels' accumulators are. */
static double rounded(const kernel_kit *kit, int32_t dtype, double x)
{
    double real = kit->uk->real_size == 4 || dtype != ATTN_F64 ? (double)(float)x : x;
    switch (dtype) {
    case ATTN_F16:
        return half_f16_to_double(half_f16_from_double(real));
    case ATTN_BF16:
        return half_bf16_to_double(half_bf16_from_double(real));
    default:
        return real;
    }
}

/* Values that overflow or underflow f16, halves between two of its numbers, NaN and infinities. */
static double store_value(const kernel_kit *kit, int64_t i)
{
    static const double values[] = {65504,
                                    65519.99,
                                    65520,
                                    1e5,
                                    -70000,
                                    6e-8,
                                    2.9e-8,
                                    3e-8,
                                    6.1e-5,
                                    1.00048828125,
                                    1e-41,
                                    3.39e38,
                                    0,
                                    -0.0,
                                    (double)NAN,
                                    (double)INFINITY,
                                    -(double)INFINITY,
                                    1.00390625};
    int64_t which = kit_choice(kit, 95, i, 40);
    return which < (int64_t)(sizeof values / sizeof values[0])
               ? values[which]
               : kit_value(kit, VALUES_NORMAL, 96, i, 1);
}

static void one_store(kernel_kit *kit, int32_t dtype, int64_t dv, int lanes, int64_t turn)
{
    int64_t strip = kit->uk->strip, size = (int64_t)attn_dtype_size(dtype),
            stride = panel_stride(turn);
    int64_t reach = (dv - 1) * (stride < 0 ? -stride : stride), row_stride = reach + 2;
    int64_t pad = (dv + kit->uk->granule - 1) / kit->uk->granule * kit->uk->granule;
    void *ot = kit_slot(kit, SLOT_OT, (size_t)(pad * strip * kit->uk->real_size)),
         *rows[KIT_MOST_LANES];
    void *divisor = kit_slot(kit, SLOT_L, (size_t)(strip * kit->uk->real_size));
    unsigned char *target =
        kit_slot(kit, SLOT_TARGET, (size_t)(((lanes - 1) * row_stride + reach + 1) * size));
    for (int64_t i = 0; i < pad * strip; i++) {
        kit_put(kit, ot, i, store_value(kit, i + turn));
    }
    for (int lane = 0; lane < strip; lane++) {
        kit_put(kit, divisor, lane, lane % 5 == 3 ? 0 : lane % 5 == 1 ? 3 : 1);
        rows[lane] =
            lane < lanes ? target + (lane * row_stride + (stride < 0 ? reach : 0)) * size : NULL;
    }
    kit_lock(kit, SLOT_OT);
    kit_lock(kit, SLOT_L);
    kit_doing(kit, "dv=%lld lanes=%d dtype=%d stride=%lld", (long long)dv, lanes, dtype,
              (long long)stride);
    const bool divides = turn % 4 != 3;
    KIT_CALL(kit, kit->uk->store(rows, stride, dtype, ot, dv, divides ? divisor : NULL, lanes));
    attn_tensor t = attn_tensor_bshd(rows[0], (attn_dtype)dtype, 1, lanes, 1, dv);
    t.stride[1] = row_stride, t.stride[3] = stride;
    for (int64_t i = 0; i < lanes * dv; i++) {
        int64_t lane = i / dv, c = i % dv;
        double by = divides ? kit_get(kit, divisor, lane) : 1,
               x = kit_get(kit, ot, c * strip + lane), got = oracle_element(&t, 0, lane, 0, c);
        double quotient = by == 0                   ? 0
                          : kit->uk->real_size == 4 ? (double)((float)x / (float)by)
                                                    : x / by;
        double want = rounded(kit, dtype, quotient);
        if (!(got == want && signbit(got) == 0 ? true : got == want && want != 0) &&
            !(isnan(got) && isnan(want))) {
            kit_fail(kit, "row %lld column %lld = %a, want %a", (long long)lane, (long long)c, got,
                     want);
        }
    }
    /* memory between the elements */
    for (int64_t i = 0; i < (int64_t)(row_stride * (lanes - 1)); i++) {
        bool element =
            i % row_stride <= reach && i % row_stride % (stride < 0 ? -stride : stride) == 0;
        if (!element && (target[i * size] != 0xFF || target[i * size + size - 1] != 0xFF)) {
            kit_fail(kit, "writes between its elements");
            return;
        }
    }
}

void check_store(kernel_kit *kit)
{
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    kit_member(kit, "store");
    for (int64_t turn = 0; turn < 600; turn++) {
        int32_t dtype = dtypes[kit->uk->real_size == 8 ? turn % 2 * 3 : turn % 3];
        one_store(kit, dtype, panel_dims[turn % panel_dims_count],
                  1 + (int)(turn * 7 % kit->uk->strip), turn);
    }
}

/* ---- finite ---------------------------------------------------------------------------------- */

/* One NaN or infinity anywhere counts, unless its lane is beyond those in use. */
void check_finite(kernel_kit *kit)
{
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    int64_t strip = kit->uk->strip;
    kit_member(kit, "finite");
    for (int64_t turn = 0; turn < 600; turn++) {
        int64_t dv = panel_dims[turn % panel_dims_count],
                at = kit_choice(kit, 97, turn, dv * strip);
        int lanes = 1 + (int)(turn * 7 % strip);
        void *ot = kit_slot(kit, SLOT_OT, (size_t)(dv * strip * kit->uk->real_size));
        for (int64_t i = 0; i < dv * strip; i++) {
            kit_put(kit, ot, i, i % 3 ? (kit->uk->real_size == 4 ? 3.4e38 : 1.7e308) : -0.0);
        }
        bool spoil = turn % 4 != 0, finite;
        if (spoil) {
            kit_put(kit, ot, at, bad[turn % 3]);
        }
        kit_lock(kit, SLOT_OT);
        kit_doing(kit, "dv=%lld lanes=%d at=%lld", (long long)dv, lanes, (long long)at);
        KIT_CALL(kit, finite = kit->uk->finite(ot, dv, lanes));
        if (finite != !(spoil && at % strip < lanes)) {
            kit_fail(kit, "says %d", finite);
        }
    }
}
