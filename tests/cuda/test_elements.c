/*
 * test_elements.c: launches of attn_quantize, attn_dequantize and attn_dropout_mask on a pretended
 * GPU (fake_driver.c): kernels, grids, streams, and calls that are refused. Results are
 * tests/cuda/test_gpu_elements.c.
 */
#include "fake_driver.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

/* A tensor of 2 x rows x 4 x 128 and its codes, of a token and head each. */
static attn_quantize_args codes_args(int64_t rows)
{
    return (attn_quantize_args){.struct_size = sizeof(attn_quantize_args),
                                .x = attn_tensor_bshd(fake_memory(0), ATTN_BF16, 2, rows, 4, 128),
                                .codes =
                                    attn_tensor_bshd(fake_memory(1), ATTN_I4X2, 2, rows, 4, 64),
                                .scale = attn_tensor_bshd(fake_memory(2), ATTN_F16, 2, rows, 4, 4),
                                .shift = attn_tensor_bshd(fake_memory(3), ATTN_F16, 2, rows, 4, 4),
                                .stream = fake_memory(4)};
}

static attn_dropout_mask_args mask_args(int64_t rows, int64_t keys)
{
    return (attn_dropout_mask_args){
        .struct_size = sizeof(attn_dropout_mask_args),
        .keep = attn_tensor_bshd(fake_memory(0), ATTN_BOOL, 2, 4, rows, keys),
        .q_origin = attn_tensor_bshd(fake_memory(1), ATTN_I64, 2, 1, 1, 1),
        .dropout_p = 0.25,
        .stream = fake_memory(4)};
}

static attn_context *open_gpu(void)
{
    attn_context *context;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    return context;
}

static void assert_launched(int index, const char *kernel, unsigned grid, int64_t count)
{
    assert_int_equal(fake.launches, index + 1);
    assert_string_equal(fake.kernels[index], kernel);
    assert_int_equal(fake.last.grid, grid);
    assert_int_equal(fake.last.threads, 256);
    assert_ptr_equal(fake.last.stream, fake_memory(4));
    assert_int_equal(fake.elements.count, count);
    assert_int_equal(fake.depth, 0);
}

/* Scales are found by a launch of their own, unless they are given. */
static void test_codes(void **state)
{
    attn_context *context = open_gpu();
    attn_quantize_args a = codes_args(10);
    (void)state;
    assert_int_equal(attn_quantize(context, &a), ATTN_OK);
    assert_string_equal(fake.kernels[0], "attn_elements_scales");
    assert_launched(1, "attn_elements_codes", 20, 2 * 10 * 4 * 64);
    fake.launches = 0, a.scale_given = 1;
    assert_int_equal(attn_quantize(context, &a), ATTN_OK);
    assert_launched(0, "attn_elements_codes", 20, 2 * 10 * 4 * 64);
    fake.launches = 0;
    a = (attn_quantize_args){.struct_size = sizeof a,
                             .x = attn_tensor_bshd(fake_memory(0), ATTN_F64, 2, 10, 4, 127),
                             .codes = attn_tensor_bshd(fake_memory(1), ATTN_E4M3, 2, 10, 4, 127),
                             .stream = fake_memory(4)};
    assert_int_equal(attn_quantize(context, &a), ATTN_OK);
    assert_launched(0, "attn_elements_codes", 40, 2 * 10 * 4 * 127);
    fake.launches = 0;
    assert_int_equal(attn_dequantize(context, &a), ATTN_OK);
    assert_launched(0, "attn_elements_values", 40, 2 * 10 * 4 * 127);
    fake.launches = 0, a = codes_args(100000);
    assert_int_equal(attn_dequantize(context, &a), ATTN_OK);
    assert_launched(0, "attn_elements_values", 16 * 132, 2 * 100000 * 4 * 128);
    attn_context_destroy(context);
    assert_true(fake_keeps_nothing());
}

/* A group has a warp, or a CTA where it is large. The launch for codes fails: the last one is that
 * for scales. */
static void test_groups(void **state)
{
    (void)state;
    for (int64_t rows = 32; rows <= 33; rows++) { /* 32 columns of each row are a group */
        attn_context *context = open_gpu();
        attn_quantize_args a = codes_args(rows);
        a.scale.shape[1] = a.shift.shape[1] = 1;
        fake.calls = 0;
        assert_int_equal(attn_quantize(context, &a), ATTN_OK);
        fake.fail_at = fake.calls, fake.calls = fake.launches = 0;
        assert_int_equal(attn_quantize(context, &a), ATTN_ERR_DEVICE);
        assert_launched(0, "attn_elements_scales", rows == 33 ? 32 : 4, 2 * 4 * 4);
        assert_int_equal(fake.elements.wide, rows == 33);
        attn_context_destroy(context);
    }
}

static void test_mask(void **state)
{
    attn_context *context = open_gpu();
    attn_dropout_mask_args a = mask_args(30, 70);
    (void)state;
    assert_int_equal(attn_dropout_mask(context, &a), ATTN_OK); /* the origin is not read */
    assert_launched(0, "attn_elements_keep", 66, 2 * 4 * 30 * 70);
    assert_int_equal(fake.elements.drop.dropout.limit, 1 << 14);
    assert_ptr_equal(fake.elements.drop.q_origin.data, a.q_origin.data);
    assert_null(fake.elements.drop.k_origin.data);
    attn_context_destroy(context);
}

/* Nothing is launched for no elements, more than can be counted, and wrong arguments. */
static void test_refusals(void **state)
{
    attn_context *context = open_gpu();
    attn_quantize_args a = codes_args(0);
    attn_dropout_mask_args m = mask_args(30, 0);
    (void)state;
    assert_int_equal(attn_quantize(context, &a), ATTN_OK);
    assert_int_equal(attn_dequantize(context, &a), ATTN_OK);
    assert_int_equal(attn_dropout_mask(context, &m), ATTN_OK);
    a = codes_args(1), a.x.data = fake_memory(8191);
    a.codes = attn_tensor_bshd(fake_memory(1), ATTN_I4X2, 2, INT64_C(1) << 52, 4, 64);
    a.x.shape[1] = a.codes.shape[1], a.x.stride[0] = a.x.stride[1] = 0;
    a.scale.data = fake_memory(8190), a.shift.data = fake_memory(8189);
    assert_int_equal(attn_quantize(context, &a), ATTN_ERR_OVERFLOW);
    assert_string_equal(attn_last_error(), "the elements of x do not fit in 64 bits");
    m = mask_args(30, INT64_C(1) << 35);
    assert_int_equal(attn_dropout_mask(context, &m), ATTN_ERR_OVERFLOW);
    a = codes_args(3), a.codes.data = a.x.data;
    assert_int_equal(attn_quantize(context, &a), ATTN_ERR_INVALID_ARGUMENT);
    a = codes_args(3), a.reserved = 1;
    assert_int_equal(attn_quantize(context, &a), ATTN_ERR_INVALID_ARGUMENT);
    m = mask_args(30, 30), m.q_origin.shape[0] = 3;
    assert_int_equal(attn_dropout_mask(context, &m), ATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(fake.launches, 0);
    attn_context_destroy(context);
}

/* Older callers name no stream; contexts of a CPU have none. */
static void test_streams(void **state)
{
    attn_context *context = open_gpu();
    attn_quantize_args a = codes_args(3);
    attn_dropout_mask_args m = mask_args(3, 5);
    (void)state;
    assert_int_equal(attn_quantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(attn_dequantize(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(attn_dropout_mask(NULL, &m), ATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), ", but the context is for "));
    a.struct_size = offsetof(attn_quantize_args, stream);
    m.struct_size = offsetof(attn_dropout_mask_args, stream);
    assert_int_equal(attn_quantize(context, &a), ATTN_OK);
    assert_null(fake.last.stream);
    assert_int_equal(attn_dropout_mask(context, &m), ATTN_OK);
    assert_null(fake.last.stream);
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),   cmocka_unit_test(test_groups),
        cmocka_unit_test(test_mask),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
