/*
 * test_code_calls.c: calls with quantised tensors at their edges: what may share memory and
 * what may not, extents of 0, contexts, reserved fields.
 */
#include "codes_kit.h"
#include "inputs.h"
#include "oracle.h"

static void assert_refuses(const attn_forward_args *args, const char *sentence)
{
    assert_int_equal(attn_forward(NULL, args), ATTN_ERR_INVALID_ARGUMENT);
    if (strstr(attn_last_error(), sentence) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", attn_last_error(), sentence);
    }
}

/* Scales that a call only reads may be one tensor; those that an append writes are outputs. */
static void test_scales_that_overlap(void **state)
{
    (void)state;
    op_trial t = trial_open("b=2 hq=2 nq=3 nk=20 d=16 kv_dtype=i8 kv_shift=1");
    attn_forward_args *a = t.args;
    const attn_forward_args good = *a;
    a->v_scale = a->k_scale, a->v_shift = a->k_shift;
    assert_ok(attn_forward(NULL, a));
    *a = good, a->k_scale.data = a->o.data;
    assert_refuses(a, "o and k_scale overlap");
    *a = good, a->v_shift.data = a->o.data;
    assert_refuses(a, "o and v_shift overlap");
    *a = good, a->k_new = a->v_new = a->q;
    assert_ok(attn_forward(NULL, a));
    a->k_scale.data = a->q.data;
    assert_refuses(a, "k_scale and q overlap");
    *a = good, a->k_new = a->v_new = a->q, a->v_scale = a->k_scale;
    assert_refuses(a, "k_scale and v_scale overlap");
    *a = good, a->v_new = a->q, a->v_shift.data = a->k_shift.data;
    assert_refuses(a, "v_shift and k_shift overlap");
    *a = good;
    trial_close(&t);
}

/* A scale that keys share is given, so an append reads it. */
static void test_shared_scales_are_read(void **state)
{
    (void)state;
    op_trial t = trial_open("b=2 hq=2 nq=3 nk=20 d=16 kv_dtype=e4m3 kv_scale=h");
    attn_forward_args *a = t.args;
    a->k_new = a->v_new = a->q, a->v_scale = a->k_scale;
    assert_ok(attn_forward(NULL, a));
    trial_close(&t);
}

/* The same numbers, each beside a NaN. */
static attn_tensor spaced(const attn_tensor *t)
{
    const int64_t *n = t->shape;
    attn_tensor apart = fresh(t->dtype, (int64_t[4]){n[0], n[1], n[2], 2 * n[3]});
    apart.shape[3] = n[3], apart.stride[3] = 2;
    for (int64_t at = 0; at < n[0] * n[1] * n[2] * n[3]; at++) {
        const int64_t i3 = at % n[3], i2 = at / n[3] % n[2], i1 = at / n[3] / n[2] % n[1],
                      i0 = at / n[3] / n[2] / n[1];
        inputs_store(&apart, i0, i1, i2, i3, oracle_element(t, i0, i1, i2, i3));
    }
    return apart;
}

static void test_factors_with_gaps(void **state)
{
    (void)state;
    op_trial plain = trial_open("hq=2 nq=3 nk=20 d=16 kv_dtype=i8 kv_group=4 kv_shift=1"),
             gaps = trial_open("hq=2 nq=3 nk=20 d=16 kv_dtype=i8 kv_group=4 kv_shift=1");
    attn_forward_args *a = gaps.args, good = *a;
    attn_tensor *const factors[] = {&a->k_scale, &a->k_shift, &a->v_scale, &a->v_shift};
    for (int i = 0; i < 4; i++) {
        *factors[i] = spaced(factors[i]);
    }
    assert_ok(attn_forward(NULL, plain.args));
    assert_ok(attn_forward(NULL, a));
    assert_same_outputs(&plain, &gaps);
    for (int i = 0; i < 4; i++) {
        free(factors[i]->data);
    }
    *a = good;
    trial_close(&plain);
    trial_close(&gaps);
}

static void test_no_codes(void **state)
{
    float x[8] = {0}, scale[2] = {7, 7};
    uint8_t codes[8];
    (void)state;
    const attn_quantize_args good = {.struct_size = sizeof good,
                                     .x = attn_tensor_bshd(x, ATTN_F32, 1, 2, 1, 4),
                                     .codes = attn_tensor_bshd(codes, ATTN_I8, 1, 2, 1, 4),
                                     .scale = attn_tensor_bshd(scale, ATTN_F32, 1, 2, 1, 1)};
    attn_quantize_args a = good;
    a.x.shape[3] = a.codes.shape[3] = 0;
    assert_ok(attn_quantize(NULL, &a));
    assert_true(scale[0] == 7 && scale[1] == 7); /* no rows, no scales */
    a.reserved = 1;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "scale_given = 0 must be 0 or 1, reserved 0");
    a = good, a.x.shape[2] = 2;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    a = good, a.x.shape[0] = a.x.shape[1] = INT64_MAX, a.x.shape[2] = 0;
    a.codes.shape[0] = a.codes.shape[1] = INT64_MAX, a.codes.shape[2] = 0;
    a.scale.shape[0] = a.scale.shape[1] = 1;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_OVERFLOW);
    assert_string_equal(attn_last_error(), "the rows of x do not fit in 64 bits");
    a = good, a.x.data = NULL;
    assert_int_equal(attn_dequantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "x.data is NULL");
    assert_int_equal(attn_quantize(NULL, NULL), ATTN_ERR_INVALID_ARGUMENT);
}

/* Inputs of one call may be views of one memory. */
static void test_inputs_that_overlap(void **state)
{
    float x[4] = {1, 2, 3, 4};
    uint8_t codes[4], again[4];
    (void)state;
    const attn_quantize_args good = {.struct_size = sizeof good,
                                     .x = attn_tensor_bshd(x, ATTN_F32, 1, 1, 1, 4),
                                     .codes = attn_tensor_bshd(codes, ATTN_I8, 1, 1, 1, 4),
                                     .scale = attn_tensor_bshd(x, ATTN_F32, 1, 1, 1, 1),
                                     .scale_given = 1};
    attn_quantize_args a = good;
    assert_ok(attn_quantize(NULL, &a)); /* x[0] is the scale */
    assert_memory_equal(codes, ((uint8_t[]){1, 2, 3, 4}), 4);
    a.codes.data = x;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    a = good, a.shift = a.scale, a.codes.data = again;
    assert_ok(attn_quantize(NULL, &a));
    assert_memory_equal(again, ((uint8_t[]){0, 1, 2, 3}), 4);
    a.scale.data = codes;
    assert_int_equal(attn_dequantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT); /* x is the shift */
    float strided[8] = {0};
    a = good, a.x.data = strided, a.x.stride[3] = 2, a.codes.data = strided + 6;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT); /* its last element */
    a = good, a.x.data = (float[4]){0};
    assert_ok(attn_dequantize(NULL, &a));
    assert_true(((float *)a.x.data)[3] == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scales_that_overlap), cmocka_unit_test(test_shared_scales_are_read),
        cmocka_unit_test(test_factors_with_gaps),   cmocka_unit_test(test_no_codes),
        cmocka_unit_test(test_inputs_that_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
