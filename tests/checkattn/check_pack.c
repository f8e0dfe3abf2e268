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
static void fill_source(kit *k, attn_tensor *t, int64_t turn)
{
    int64_t n = t->shape[1], d = t->shape[3];
    for (int64_t i = 0; i < n * d; i++) {
        char *at = (char *)t->data + (i / d * t->stride[1] + i % d * t->stride[3]) *
                                         (int64_t)attn_dtype_size(t->dtype);
        if (attn_dtype_size(t->dtype) == 2) {
            memcpy(at, &(uint16_t){(uint16_t)(turn * n * d + i)}, 2);
        } else {
            inputs_store(t, 0, i / d, 0, i % d,
                         kit_value(k, VALUES_SPECIAL, 90, turn * n * d + i, 1));
        }
    }
}

/* Quiet NaN is NaN; the rest bit for bit. */
static void expect(kit *k, const char *what, const void *panel, int64_t at, double want)
{
    double one[1] = {0};
    kit_put(k, one, 0, want);
    if (!kit_same(k, panel, at, one, 0)) {
        kit_fail(k, "%s[%lld] = %a, want %a", what, (long long)at, kit_get(k, panel, at), want);
    }
}

/* pack_k gives [key][d], pack_v [key][dv_pad] with zeroes in the padding. Only for tables of that
 * layout. */
static void one_pack(kit *k, int64_t n, int64_t d, int64_t turn, bool values)
{
    int64_t granule = k->uk->granule, pad = values ? (d + granule - 1) / granule * granule : d;
    attn_tensor t = panel_matrix(k, SLOT_SOURCE, n, d, VALUES_NORMAL, panel_stride(turn));
    void *source =
        kit_slot(k, SLOT_SOURCE, (size_t)((n * t.stride[1]) * (int64_t)attn_dtype_size(k->dtype)));
    t.data = (char *)source + (t.stride[3] < 0 ? (d - 1) * (int64_t)attn_dtype_size(k->dtype) : 0);
    fill_source(k, &t, turn);
    kit_lock(k, SLOT_SOURCE);
    kit_doing(k, "%s n=%lld d=%lld dtype=%d turn=%lld", values ? "V" : "K", (long long)n,
              (long long)d, k->dtype, (long long)turn);
    void *panel = kit_slot(k, SLOT_K, values ? k->uk->v_bytes(pad) : k->uk->k_bytes(d));
    attn_rows rows = panel_rows(&t, 0);
    int64_t at = k->uk->key_block - n;
    if (values) {
        KIT_CALL(k, k->uk->pack_v(panel, at, &rows, n, d, pad));
    } else {
        KIT_CALL(k, k->uk->pack_k(panel, at, &rows, n, d));
    }
    for (int64_t i = 0; i < n * pad; i++) {
        double want = i % pad < d ? oracle_element(&t, 0, i / pad, 0, i % pad) : 0;
        expect(k, "panel", panel, at * pad + i, want);
    }
    for (int64_t i = 0; i < at * pad; i++) {
        if (!isnan(kit_get(k, panel, i))) {
            kit_fail(k, "writes key %lld, before the first", (long long)(i / pad));
            return;
        }
    }
}

void check_pack(kit *k)
{
    kit_member(k, "pack");
    for (int64_t turn = 0; k->same_bits && turn < 160; turn++) {
        int64_t d = panel_dims[turn % panel_dims_count],
                n = 1 + kit_choice(k, 91, turn, k->uk->key_block);
        one_pack(k, n, d, turn, turn & 1);
    }
    /* every 16-bit pattern */
    for (int64_t turn = 0; k->same_bits && turn < 65536 / (64 * 128); turn++) {
        /* stride 1: whole vectors; 5 is the period of the strides */
        one_pack(k, 64, 128, turn * 5, false);
        one_pack(k, 64, 128, turn * 5 + 2, false);
    }
}

/* ---- bias ------------------------------------------------------------------------------------ */

/* The sharing of rows between lanes and keys, for a check's turn. */
typedef struct bias_case {
    int64_t n, rows, bias_stride, mask_stride; /* lane i has row i % rows */
    int32_t mask_dtype;
    bool bias, mask;
} bias_case;

static bias_case make_case(const kit *k, int64_t n, int64_t turn)
{
    const int64_t strip = k->uk->strip;
    bias_case c = {.n = n, .bias = turn % 5 != 4, .mask = turn % 3 != 2};
    c.rows = turn % 7 < 4 ? strip : turn % 7 == 4 ? 1 : turn % 7 == 5 ? strip - 1 : 2;
    c.bias_stride = c.bias && turn % 4 != 3 ? panel_stride(turn) : 0;
    static const int32_t masks[] = {ATTN_BOOL, ATTN_U8, ATTN_I8, ATTN_I32, ATTN_I64};
    c.mask_dtype = masks[turn % 13 < 5 ? turn % 13 : 0];
    c.mask_stride = !c.mask || turn % 11 < 4 ? 0 : turn % 11 < 8 ? 1 : 2;
    return c;
}

/* A tile from any type with any stride, each lane with a row of its own or several with one. */
static void one_bias(kit *k, int32_t dtype, int64_t n, int64_t turn)
{
    const int64_t strip = k->uk->strip, size = (int64_t)attn_dtype_size(dtype);
    const bias_case c = make_case(k, n, turn);
    const int64_t reach = (n - 1) * (c.bias_stride < 0 ? -c.bias_stride : c.bias_stride) + 1;
    const int64_t span = (n - 1) * c.mask_stride + 1;
    unsigned char *first = kit_slot(k, SLOT_SOURCE, (size_t)(c.rows * reach * size));
    attn_tensor t = attn_tensor_bshd(first + (c.bias_stride < 0 ? (reach - 1) * size : 0),
                                     (attn_dtype)dtype, c.rows, n, 1, 1);
    t.stride[0] = reach, t.stride[1] = c.bias_stride;
    for (int64_t i = 0; i < c.rows * n; i++) {
        bool low = kit_choice(k, 92, i + turn, 9) == 0;
        inputs_store(&t, i / n, i % n, 0, 0,
                     low ? -(double)INFINITY : kit_value(k, VALUES_NORMAL, 93, i + turn, 1));
    }
    kit_lock(k, SLOT_SOURCE);
    const int64_t mask_size = (int64_t)attn_dtype_size(c.mask_dtype);
    char *mask = kit_slot(k, SLOT_VISIBLE, (size_t)(c.rows * span * mask_size));
    const attn_tensor m = attn_tensor_bshd(mask, (attn_dtype)c.mask_dtype, c.rows, span, 1, 1);
    for (int64_t i = 0; i < c.rows * span; i++) { /* a bit of any byte */
        const double one = exp2((double)(i % (8 * mask_size - 1)));
        inputs_store(&m, i / span, i % span, 0, 0, kit_choice(k, 94, i + turn, 3) ? one : 0);
    }
    kit_lock(k, SLOT_VISIBLE);
    attn_bias_rows rows = {.bias_stride = c.bias_stride,
                           .mask_stride = c.mask_stride,
                           .dtype = dtype,
                           .mask_dtype = c.mask_dtype};
    for (int64_t lane = 0; lane < strip; lane++) {
        const int64_t row = lane % c.rows;
        rows.bias[lane] = c.bias ? (char *)t.data + row * reach * size : NULL;
        rows.mask[lane] = c.mask ? mask + row * span * mask_size : NULL;
    }
    void *tile = kit_slot(k, SLOT_BIAS, (size_t)(n * strip * k->uk->real_size));
    kit_doing(k, "n=%lld dtype=%d %d rows=%lld strides=%lld %lld bias=%d mask=%d", (long long)n,
              dtype, c.mask_dtype, (long long)c.rows, (long long)c.bias_stride,
              (long long)c.mask_stride, c.bias, c.mask);
    KIT_CALL(k, k->uk->bias(tile, n, &rows));
    for (int64_t i = 0; i < n * strip; i++) {
        const int64_t row = i % strip % c.rows, key = i / strip;
        bool hidden = c.mask && oracle_element(&m, row, key * c.mask_stride, 0, 0) == 0;
        expect(k, "tile", tile, i,
               hidden   ? -(double)INFINITY
               : c.bias ? oracle_element(&t, row, key, 0, 0)
                        : 0);
    }
}

void check_bias(kit *k)
{
    static const int32_t dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    kit_member(k, "bias");
    for (int64_t n = 1, turn = 0; n <= k->uk->key_tile; n++) {
        for (int type = 0; type < 4; type++) {
            for (int i = 0; i < 5; i++) {
                one_bias(k, dtypes[type], n, turn++);
            }
        }
    }
}

/* ---- store ----------------------------------------------------------------------------------- */

/* x rounded once to dtype, through real as the kernels' accumulators are. */
static double rounded(const kit *k, int32_t dtype, double x)
{
    double real = k->uk->real_size == 4 || dtype != ATTN_F64 ? (double)(float)x : x;
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
static double store_value(const kit *k, int64_t i)
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
    int64_t which = kit_choice(k, 95, i, 40);
    return which < (int64_t)(sizeof values / sizeof values[0])
               ? values[which]
               : kit_value(k, VALUES_NORMAL, 96, i, 1);
}

static void one_store(kit *k, int32_t dtype, int64_t dv, int lanes, int64_t turn)
{
    int64_t strip = k->uk->strip, size = (int64_t)attn_dtype_size(dtype),
            stride = panel_stride(turn);
    int64_t reach = (dv - 1) * (stride < 0 ? -stride : stride), row_stride = reach + 2;
    int64_t pad = (dv + k->uk->granule - 1) / k->uk->granule * k->uk->granule;
    void *ot = kit_slot(k, SLOT_OT, (size_t)(pad * strip * k->uk->real_size)),
         *rows[KIT_MOST_LANES];
    void *divisor = kit_slot(k, SLOT_L, (size_t)(strip * k->uk->real_size));
    unsigned char *target =
        kit_slot(k, SLOT_TARGET, (size_t)(((lanes - 1) * row_stride + reach + 1) * size));
    for (int64_t i = 0; i < pad * strip; i++) {
        kit_put(k, ot, i, store_value(k, i + turn));
    }
    for (int lane = 0; lane < strip; lane++) {
        kit_put(k, divisor, lane, lane % 5 == 3 ? 0 : lane % 5 == 1 ? 3 : 1);
        rows[lane] =
            lane < lanes ? target + (lane * row_stride + (stride < 0 ? reach : 0)) * size : NULL;
    }
    kit_lock(k, SLOT_OT);
    kit_lock(k, SLOT_L);
    kit_doing(k, "dv=%lld lanes=%d dtype=%d stride=%lld", (long long)dv, lanes, dtype,
              (long long)stride);
    const bool divides = turn % 4 != 3;
    KIT_CALL(k, k->uk->store(rows, stride, dtype, ot, dv, divides ? divisor : NULL, lanes));
    attn_tensor t = attn_tensor_bshd(rows[0], (attn_dtype)dtype, 1, lanes, 1, dv);
    t.stride[1] = row_stride, t.stride[3] = stride;
    for (int64_t i = 0; i < lanes * dv; i++) {
        int64_t lane = i / dv, c = i % dv;
        double by = divides ? kit_get(k, divisor, lane) : 1, x = kit_get(k, ot, c * strip + lane),
               got = oracle_element(&t, 0, lane, 0, c);
        double quotient = by == 0                 ? 0
                          : k->uk->real_size == 4 ? (double)((float)x / (float)by)
                                                  : x / by;
        double want = rounded(k, dtype, quotient);
        if (!(got == want && signbit(got) == 0 ? true : got == want && want != 0) &&
            !(isnan(got) && isnan(want))) {
            kit_fail(k, "row %lld column %lld = %a, want %a", (long long)lane, (long long)c, got,
                     want);
        }
    }
    /* memory between the elements */
    for (int64_t i = 0; i < (int64_t)(row_stride * (lanes - 1)); i++) {
        bool element =
            i % row_stride <= reach && i % row_stride % (stride < 0 ? -stride : stride) == 0;
        if (!element && (target[i * size] != 0xFF || target[i * size + size - 1] != 0xFF)) {
            kit_fail(k, "writes between its elements");
            return;
        }
    }
}

void check_store(kit *k)
{
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    kit_member(k, "store");
    for (int64_t turn = 0; turn < 600; turn++) {
        int32_t dtype = dtypes[k->uk->real_size == 8 ? turn % 2 * 3 : turn % 3];
        one_store(k, dtype, panel_dims[turn % panel_dims_count], 1 + (int)(turn * 7 % k->uk->strip),
                  turn);
    }
}

/* ---- finite ---------------------------------------------------------------------------------- */

/* One NaN or infinity anywhere counts, unless its lane is beyond those in use. */
void check_finite(kit *k)
{
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    int64_t strip = k->uk->strip;
    kit_member(k, "finite");
    for (int64_t turn = 0; turn < 600; turn++) {
        int64_t dv = panel_dims[turn % panel_dims_count], at = kit_choice(k, 97, turn, dv * strip);
        int lanes = 1 + (int)(turn * 7 % strip);
        void *ot = kit_slot(k, SLOT_OT, (size_t)(dv * strip * k->uk->real_size));
        for (int64_t i = 0; i < dv * strip; i++) {
            kit_put(k, ot, i, i % 3 ? (k->uk->real_size == 4 ? 3.4e38 : 1.7e308) : -0.0);
        }
        bool spoil = turn % 4 != 0, finite;
        if (spoil) {
            kit_put(k, ot, at, bad[turn % 3]);
        }
        kit_lock(k, SLOT_OT);
        kit_doing(k, "dv=%lld lanes=%d at=%lld", (long long)dv, lanes, (long long)at);
        KIT_CALL(k, finite = k->uk->finite(ot, dv, lanes));
        if (finite != !(spoil && at % strip < lanes)) {
            kit_fail(k, "says %d", finite);
        }
    }
}
