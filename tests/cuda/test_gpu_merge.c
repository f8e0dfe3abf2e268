/*
 * test_gpu_merge.c: attn_merge and its gradients on this machine's GPU, beside the CPU's. Skipped
 * where there is no GPU. Halves of keys, merged: tests/op/test_halves.c.
 *
 * The GPU has the CPU's tree and arithmetic. Functions of f64 may differ in their last bits: each
 * join multiplies by weights that are off by at most 2 roundings, and rounds once.
 */
#include "gpu.h"
#include "gpu_copy.h"
#include "inputs.h"
#include "oracle.h"
#include "problem.h"
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, BATCH = 2, ROWS = 37, HEADS = 3 };

static attn_context *gpu;

static attn_tensor make(attn_dtype dtype, int64_t rows, int64_t heads, int64_t columns)
{
    const size_t bytes = (size_t)(BATCH * rows * heads * columns) * attn_dtype_size((int32_t)dtype);
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    memset(memory, 0xFF, bytes);
    /* heads before rows: no axis but the last is where a plain loop would have it */
    attn_tensor made = attn_tensor_bshd(memory, dtype, BATCH, rows, heads, columns);
    made.stride[1] = columns, made.stride[2] = rows * columns;
    return made;
}

static double at(const attn_tensor *t, int64_t b, int64_t i, int64_t h, int64_t c)
{
    return oracle_element(t, b, i, h, c);
}

static double unit(attn_dtype dtype)
{
    return dtype == ATTN_F64   ? 0x1p-53
           : dtype == ATTN_F32 ? 0x1p-24
           : dtype == ATTN_F16 ? 0x1p-11
                               : 0x1p-8;
}

/* The least positive number of a type. */
static double least(attn_dtype dtype)
{
    return dtype == ATTN_F64   ? 0x1p-1074
           : dtype == ATTN_F32 ? 0x1p-149
           : dtype == ATTN_F16 ? 0x1p-24
                               : 0x1p-133;
}

/* got is want +- roundings of `size` in the arithmetic, and one step of the type in which both are
 * stored; NaN and infinities are the same. */
static void expect_near(double got, double want, double size, double arithmetic, attn_dtype stored)
{
    const double error = arithmetic * size + 2 * unit(stored) * fabs(want) + least(stored);
    if (got != want && !(isnan(got) && isnan(want)) && !(fabs(got - want) <= error)) {
        fail_msg("%.17g is not %.17g +- %.3g", got, want, error);
    }
}

typedef struct merge_case {
    int64_t parts, dv;
    attn_dtype dtype, lse_dtype;
} merge_case;

typedef struct merge_data {
    attn_tensor part_o[MOST], part_lse[MOST], part_d_o[MOST], part_d_lse[MOST], o, lse, d_o, d_lse;
} merge_data;

/* Parts of rows; every fifth is empty and has NaN in O, a row in 50 has NaN as its LSE. */
static void fill(merge_data *data, const merge_case *test)
{
    for (int64_t p = 0; p < test->parts; p++) {
        attn_tensor *o = &data->part_o[p], *lse = &data->part_lse[p];
        *o = make(test->dtype, ROWS, HEADS, test->dv);
        *lse = make(test->lse_dtype, ROWS, HEADS, 1);
        data->part_d_o[p] = make(test->dtype, ROWS, HEADS, test->dv);
        data->part_d_lse[p] = make(test->lse_dtype, ROWS, HEADS, 1);
        inputs_fill(o, INPUTS_NORMAL, (uint64_t)p + 1, INPUTS_V);
        for (int64_t row = 0; row < BATCH * ROWS * HEADS; row++) {
            const int64_t b = row / ROWS / HEADS, i = row / HEADS % ROWS, h = row % HEADS;
            const uint64_t bits = inputs_bits(7, (int)p, row);
            const double x = 3 * inputs_normal(bits);
            inputs_store(lse, b, i, h, 0,
                         bits % 5 == 0    ? -(double)INFINITY
                         : bits % 50 == 1 ? (double)NAN
                                          : x);
            if (bits % 5 == 0 && test->dv > 0) {
                inputs_store(o, b, i, h, test->dv - 1, (double)NAN);
            }
        }
    }
    data->o = make(test->dtype, ROWS, HEADS, test->dv);
    data->lse = make(test->lse_dtype, ROWS, HEADS, 1);
    data->d_o = make(test->dtype, ROWS, HEADS, test->dv);
    data->d_lse = make(test->lse_dtype, ROWS, HEADS, 1);
    inputs_fill(&data->d_o, INPUTS_NORMAL, 91, INPUTS_V);
    inputs_fill(&data->d_lse, INPUTS_NORMAL, 92, INPUTS_GRAD_LSE);
}

static void release(merge_data *data, int64_t parts)
{
    for (int64_t p = 0; p < parts; p++) {
        free(data->part_o[p].data), free(data->part_lse[p].data);
        free(data->part_d_o[p].data), free(data->part_d_lse[p].data);
    }
    free(data->o.data), free(data->lse.data), free(data->d_o.data), free(data->d_lse.data);
}

static void run(attn_context *context, merge_data *data, int64_t parts)
{
    const attn_merge_args args = {.struct_size = sizeof args,
                                  .parts = parts,
                                  .part_o = data->part_o,
                                  .part_lse = data->part_lse,
                                  .o = data->o,
                                  .lse = data->lse};
    const attn_merge_backward_args back = {.struct_size = sizeof back,
                                           .forward = &args,
                                           .d_o = data->d_o,
                                           .d_lse = data->d_lse,
                                           .part_d_o = data->part_d_o,
                                           .part_d_lse = data->part_d_lse};
    assert_int_equal(attn_merge(context, &args), ATTN_OK);
    assert_int_equal(attn_merge_backward(context, &back), ATTN_OK);
}

/* The results of the CPU, then those of the GPU in `got`. */
static void run_both(merge_data *want, merge_data *got, const merge_case *test)
{
    enum { TENSORS = 4 * MOST + 4 };
    gpu_copy copies[TENSORS];
    int64_t count = 0;
    merge_data there;
    attn_tensor *host = (attn_tensor *)got, *device = (attn_tensor *)&there;
    fill(want, test);
    fill(got, test);
    memset(&there, 0, sizeof there);
    run(NULL, want, test->parts);
    for (int64_t i = 0; i < TENSORS; i++) {
        if (i >= 4 * MOST || i % MOST < test->parts) {
            copies[count] = gpu_copy_tensor(&host[i]);
            device[i] = copies[count++].there;
        }
    }
    run(gpu, &there, test->parts);
    gpu_wait();
    for (int64_t i = 0; i < count; i++) {
        gpu_copy_back(&copies[i]);
        assert_true(gpu_margins_intact(&copies[i]));
        gpu_copy_free(&copies[i]);
    }
}

static double largest(const merge_data *data, const merge_case *test, int64_t b, int64_t i,
                      int64_t h)
{
    double most = 0;
    for (int64_t p = 0; p < test->parts; p++) {
        for (int64_t c = 0; c < test->dv; c++) {
            const double x = fabs(at(&data->part_o[p], b, i, h, c));
            most = x > most ? x : most; /* not NaN */
        }
    }
    return most;
}

static void compare_row(const merge_data *got, const merge_data *want, const merge_case *test,
                        int64_t b, int64_t i, int64_t h)
{
    const double size = largest(want, test, b, i, h), joins = (double)test->parts,
                 sums = test->dtype == ATTN_F64 ? 0x1p-53 : 0x1p-24;
    const double product = 16 * (1 + size * (double)test->dv); /* of dO and dLSE up to 8, twice */
    for (int64_t c = 0; c < test->dv; c++) {
        expect_near(at(&got->o, b, i, h, c), at(&want->o, b, i, h, c), size, 5 * sums * joins,
                    test->dtype);
    }
    expect_near(at(&got->lse, b, i, h, 0), at(&want->lse, b, i, h, 0), 16, 4 * 0x1p-53 * joins,
                test->lse_dtype);
    for (int64_t p = 0; p < test->parts; p++) {
        for (int64_t c = 0; c < test->dv; c++) {
            expect_near(at(&got->part_d_o[p], b, i, h, c), at(&want->part_d_o[p], b, i, h, c), 8,
                        0x1p-45 * joins, test->dtype);
        }
        expect_near(at(&got->part_d_lse[p], b, i, h, 0), at(&want->part_d_lse[p], b, i, h, 0),
                    product, 0x1p-45 * joins, test->lse_dtype);
    }
}

static void test_beside_cpu(void **state)
{
    static const int64_t parts[] = {1, 2, 3, 4, 5, 7, 33, 64}, dims[] = {0, 1, 33, 64, 130};
    static const attn_dtype types[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    (void)state;
    for (int n = 0; n < 8 * 5 * 4; n++) {
        static merge_data want, got;
        const merge_case test = {parts[n % 8], dims[n / 8 % 5], types[n / 40],
                                 n % 2 ? ATTN_F64 : ATTN_F32};
        run_both(&want, &got, &test);
        for (int64_t row = 0; row < BATCH * ROWS * HEADS; row++) {
            compare_row(&got, &want, &test, row / ROWS / HEADS, row / HEADS % ROWS, row % HEADS);
        }
        release(&want, test.parts);
        release(&got, test.parts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_cpu),
    };
    gpu = trial_gpu();
    const int failed = gpu ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
    attn_context_destroy(gpu);
    return failed;
}
