/*
 * test_codes.c: attn_quantize and attn_dequantize: every code of every type, the error that attn.h
 * states, groups that are not finite, what is refused.
 */
#include "codes_kit.h"
#include "oracle.h"

/* All codes of a type are the numbers of its definition, and come back. */
static void test_codes(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(types); i++) {
        uint8_t bytes[256], again[256];
        double numbers[512];
        float one = 1;
        const int64_t each = codes_columns(types[i]);
        for (int at = 0; at < 256; at++) {
            bytes[at] = (uint8_t)at;
        }
        attn_quantize_args a = {.struct_size = sizeof a, .scale_given = 1};
        a.x = attn_tensor_bshd(numbers, ATTN_F64, 1, 1, 1, 256 * each);
        a.codes = attn_tensor_bshd(bytes, (attn_dtype)types[i], 1, 1, 1, 256);
        a.scale = attn_tensor_bshd(&one, ATTN_F32, 1, 1, 1, 1);
        assert_ok(attn_dequantize(NULL, &a));
        for (int64_t c = 0; c < 256 * each; c++) {
            const double want = codes_number(types[i], bytes[c / each], c % each != 0);
            assert_true(numbers[c] == want || (isnan(numbers[c]) && isnan(want)));
        }
        a.codes.data = again;
        assert_ok(attn_quantize(NULL, &a));
        for (int64_t c = 0; c < 256 * each; c++) {
            const double most = types[i] == ATTN_I8     ? 127
                                : types[i] == ATTN_I4X2 ? 7
                                : types[i] == ATTN_E4M3 ? 448
                                                        : 57344;
            const double got = codes_number(types[i], again[c / each], c % each != 0),
                         want = fmax(-most, fmin(most, numbers[c]));
            assert_true(isnan(numbers[c]) ? isnan(got) : got == want);
        }
    }
}

static double code_error(int32_t dtype, double x, double scale, double shift, bool shifted,
                         double p)
{
    const double most = dtype == ATTN_I8 ? 127 : 7, size = fabs(x);
    const double rounding = 0x1p-24 * (size + scale * 8);
    return dtype == ATTN_E4M3 ? fmax(0x1p-4 * size, 0x1p-10 * scale) + rounding
           : dtype == ATTN_E5M2
               ? fmax(0x1p-3 * size, 0x1p-17 * scale) + rounding
               : scale / 2 + rounding + (shifted ? p * (fabs(shift) + (most + 1) * scale) : 0);
}

/* The error that attn.h states, for every kind of scale. */
static void test_error(void **state)
{
    static const int32_t factors[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    static const double p[] = {0x1p-24, 0x1p-11, 0x1p-8};
    static const int64_t scales[][4] = {{3, 4, 2, 1}, {3, 4, 2, 4}, {1, 1, 1, 1}, {3, 4, 1, 2}};
    const int64_t n[4] = {3, 4, 2, 32};
    double worst = 0;
    (void)state;
    for (int i = 0; i < COUNT(types) * 3 * COUNT(scales) * 2 * 4; i++) {
        const int32_t type = types[i % 4], factor = factors[i / 4 % 3];
        const int64_t *s = scales[i / 12 % 4], m[4] = {3, 4, 2, 32 / codes_columns(type)};
        const bool shifted = i / 48 % 2 && (type == ATTN_I8 || type == ATTN_I4X2);
        attn_quantize_args a = {.struct_size = sizeof a, .x = fresh(ATTN_F32, n)};
        a.codes = fresh(type, m), a.scale = fresh(factor, s);
        a.shift = shifted ? fresh(factor, s) : a.shift;
        inputs_fill(&a.x,
                    i / 96 == 0   ? INPUTS_NORMAL
                    : i / 96 == 1 ? INPUTS_OUTLIER
                    : i / 96 == 2 ? INPUTS_OFFSET
                                  : INPUTS_EQUAL,
                    (uint64_t)i, INPUTS_V);
        assert_ok(attn_quantize(NULL, &a));
        const attn_tensor x = values_of(&a.codes, &a.scale, &a.shift, ATTN_F64);
        for (int64_t at = 0; at < 3 * 4 * 2 * 32; at++) {
            const int64_t c = at % 32, h = at / 32 % 2, j = at / 64 % 4, b = at / 256;
            const int64_t of[4] = {s[0] == 1 ? 0 : b, s[1] == 1 ? 0 : j, s[2] == 1 ? 0 : h,
                                   c / (32 / s[3])};
            const double exact = oracle_element(&a.x, b, j, h, c),
                         scale = oracle_element(&a.scale, of[0], of[1], of[2], of[3]),
                         shift = shifted ? oracle_element(&a.shift, of[0], of[1], of[2], of[3]) : 0;
            const double error = fabs(oracle_element(&x, b, j, h, c) - exact) /
                                 code_error(type, exact, scale, shift, shifted, p[i / 4 % 3]);
            worst = error > worst ? error : worst;
        }
        free(x.data);
        free(a.x.data);
        free(a.codes.data);
        free(a.scale.data);
        free(a.shift.data);
    }
    print_message("largest error of a code: %.3f of the bound\n", worst);
    assert_true(worst <= 1 && worst > 0.9);
}

/* The scale and the shift that attn.h states: the ends of a group have the ends of the codes. */
static void test_scale(void **state)
{
    static const double most[] = {127, 7, 448, 57344}; /* by types */
    const int64_t n[4] = {1, 1, 1, 32}, one[4] = {1, 1, 1, 1};
    (void)state;
    for (int i = 0; i < 2 * COUNT(types); i++) {
        const int32_t type = types[i / 2];
        const bool shifted = i % 2 && (type == ATTN_I8 || type == ATTN_I4X2);
        const int64_t m[4] = {1, 1, 1, 32 / codes_columns(type)};
        attn_quantize_args a = {.struct_size = sizeof a, .x = fresh(ATTN_F32, n)};
        a.codes = fresh(type, m), a.scale = fresh(ATTN_F32, one);
        a.shift = shifted ? fresh(ATTN_F32, one) : a.shift;
        inputs_fill(&a.x, INPUTS_OFFSET, 1, INPUTS_V);
        double low = INFINITY, high = -INFINITY;
        for (int c = 0; c < 32; c++) {
            low = fmin(low, oracle_element(&a.x, 0, 0, 0, c));
            high = fmax(high, oracle_element(&a.x, 0, 0, 0, c));
        }
        assert_ok(attn_quantize(NULL, &a));
        const double scale = oracle_element(&a.scale, 0, 0, 0, 0),
                     want = shifted ? (high - low) / (2 * most[i / 2] + 1)
                                    : fmax(-low, high) / most[i / 2];
        assert_true(fabs(scale - want) <= 0x1p-23 * want);
        if (shifted) {
            const double shift = oracle_element(&a.shift, 0, 0, 0, 0),
                         shift_want = low + (most[i / 2] + 1) * scale;
            assert_true(fabs(shift - shift_want) <= 0x1p-23 * fabs(shift_want));
        }
        free(a.x.data);
        free(a.codes.data);
        free(a.scale.data);
        free(a.shift.data);
    }
}

/* A NaN or an infinity makes its group NaN, and no other group. */
static void test_not_finite(void **state)
{
    const int64_t n[4] = {1, 2, 1, 16}, s[4] = {1, 2, 1, 2};
    (void)state;
    for (int i = 0; i < 2 * COUNT(types); i++) {
        const int32_t type = types[i / 2];
        const int64_t m[4] = {1, 2, 1, 16 / codes_columns(type)};
        attn_quantize_args a = {.struct_size = sizeof a, .x = fresh(ATTN_F32, n)};
        a.codes = fresh(type, m), a.scale = fresh(ATTN_F32, s);
        inputs_fill(&a.x, INPUTS_NORMAL, 1, INPUTS_V);
        inputs_store(&a.x, 0, 1, 0, 3, i % 2 ? (double)NAN : -(double)INFINITY);
        assert_ok(attn_quantize(NULL, &a));
        const attn_tensor x = values_of(&a.codes, &a.scale, &a.shift, ATTN_F32);
        for (int64_t at = 0; at < 32; at++) {
            assert_true(isnan(((float *)x.data)[at]) == (at >= 16 && at < 24));
        }
        free(x.data);
        free(a.x.data);
        free(a.codes.data);
        free(a.scale.data);
    }
}

static void test_quantize_refused(void **state)
{
    float x[8], scale[2];
    uint8_t codes[8];
    (void)state;
    const attn_quantize_args good = {.struct_size = sizeof good,
                                     .x = attn_tensor_bshd(x, ATTN_F32, 1, 2, 1, 4),
                                     .codes = attn_tensor_bshd(codes, ATTN_I8, 1, 2, 1, 4),
                                     .scale = attn_tensor_bshd(scale, ATTN_F32, 1, 2, 1, 1)};
    attn_quantize_args a = good;
    memset(x, 0, sizeof x);
    assert_ok(attn_quantize(NULL, &a));
    a.codes.dtype = ATTN_U8;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    a = good, a.codes.dtype = ATTN_I4X2;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(),
                        "codes.shape[3] = 4 of i4x2, 2 columns each, but x.shape[3] = 4");
    a = good, a.scale.data = x;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(),
                        "x and scale overlap: outputs must not share memory with other tensors");
    a = good, a.scale.stride[1] = 0;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    a.scale_given = 1;
    assert_ok(attn_quantize(NULL, &a));
    a.scale_given = 2;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    a = good, a.x.shape[1] = 0, a.codes.shape[1] = 0;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    a.scale.shape[1] = 1;
    assert_ok(attn_quantize(NULL, &a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_quantize_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
