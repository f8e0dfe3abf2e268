/*
 * test_merge.c: attn_merge on numbers that can be worked out by hand, its rules for empty and NaN
 * parts, types, strides and aliasing, and wrong arguments. (Splits of real problems:
 * tests/op/test_splits.c.)
 */
#include "call.h"

#include <math.h>

enum { ROWS = 3, DV = 2, PARTS = 3 };

/* Three parts of three rows in two columns. */
typedef struct merge_case {
    float o[PARTS][ROWS * DV], lse[PARTS][ROWS], to[ROWS * DV], to_lse[ROWS];
    attn_tensor part_o[PARTS], part_lse[PARTS];
    attn_merge_args args;
} merge_case;

static void setup(merge_case *test)
{
    *test = (merge_case){.args = {.struct_size = sizeof test->args, .parts = PARTS}};
    for (int p = 0; p < PARTS; p++) {
        for (int i = 0; i < ROWS * DV; i++) {
            test->o[p][i] = (float)(1 + p);
        }
        test->part_o[p] = attn_tensor_bshd(test->o[p], ATTN_F32, 1, ROWS, 1, DV);
        test->part_lse[p] = attn_tensor_bshd(test->lse[p], ATTN_F32, 1, ROWS, 1, 1);
    }
    memset(test->to, 0xFF, sizeof test->to);
    memset(test->to_lse, 0xFF, sizeof test->to_lse);
    test->args.part_o = test->part_o;
    test->args.part_lse = test->part_lse;
    test->args.o = attn_tensor_bshd(test->to, ATTN_F32, 1, ROWS, 1, DV);
    test->args.lse = attn_tensor_bshd(test->to_lse, ATTN_F32, 1, ROWS, 1, 1);
}

static void assert_near(double got, double want, double error)
{
    if (!(fabs(got - want) <= error)) {
        fail_msg("%.9g is not %.9g +- %.3g", got, want, error);
    }
}

/* Equal weights; weights 1 : 2 : 4; one part far above the others. */
static void test_weights(void **state)
{
    merge_case test;
    (void)state;
    setup(&test);
    for (int p = 0; p < PARTS; p++) {
        test.lse[p][1] = (float)(p * log(2));
        test.lse[p][2] = p == 1 ? 1000 : -1000;
    }
    assert_int_equal(attn_merge(NULL, &test.args), ATTN_OK);
    assert_near(test.to[0], 2, 2e-7);
    assert_near(test.to[DV], (1 + 2 * 2 + 4 * 3) / 7.0, 3e-7);
    assert_near(test.to[2 * DV], 2, 0);
    assert_near(test.to_lse[0], log(3), 1e-7);
    assert_near(test.to_lse[1], log(7), 2e-7);
    assert_near(test.to_lse[2], 1000, 0);
}

/* A part with lse = -inf has no influence whatever its o; if all have, O = 0 and LSE = -inf. */
static void test_empty_parts(void **state)
{
    merge_case test;
    (void)state;
    setup(&test);
    test.lse[1][0] = -INFINITY, test.o[1][0] = NAN, test.o[1][1] = INFINITY;
    for (int p = 0; p < PARTS; p++) {
        test.lse[p][2] = -INFINITY, test.o[p][2 * DV] = NAN;
    }
    assert_int_equal(attn_merge(NULL, &test.args), ATTN_OK);
    assert_near(test.to[0], 2, 2e-7);
    assert_near(test.to[1], 2, 2e-7);
    assert_near(test.to_lse[0], log(2), 1e-7);
    assert_true(test.to[2 * DV] == 0 && !signbit(test.to[2 * DV]) && test.to[2 * DV + 1] == 0);
    assert_true(test.to_lse[2] == -INFINITY);
}

/* NaN poisons its row and no other. */
static void test_nan(void **state)
{
    merge_case test;
    (void)state;
    setup(&test);
    test.lse[2][0] = NAN;
    for (int p = 0; p < PARTS; p++) {
        test.lse[p][2] = p == 1 ? NAN : -INFINITY; /* a NaN among empty parts */
    }
    test.o[0][DV] = NAN;
    assert_int_equal(attn_merge(NULL, &test.args), ATTN_OK);
    assert_true(isnan(test.to[0]) && isnan(test.to[1]) && isnan(test.to_lse[0]));
    assert_true(isnan(test.to[DV]) && !isnan(test.to[DV + 1]) && !isnan(test.to_lse[1]));
    assert_true(isnan(test.to[2 * DV]) && isnan(test.to_lse[2]));
}

/* o and lse may be the same views as a part's; without lse it is not wanted. */
static void test_in_place(void **state)
{
    for (int p = 0; p < PARTS; p++) {
        merge_case test;
        (void)state;
        setup(&test);
        test.args.o = test.part_o[p];
        test.args.lse = test.part_lse[p];
        test.args.o.stride[0] = 1, test.args.lse.stride[2] = 0; /* of axes of one element */
        assert_int_equal(attn_merge(NULL, &test.args), ATTN_OK);
        assert_near(test.o[p][0], 2, 2e-7);
        assert_near(test.lse[p][0], log(3), 1e-7);
        setup(&test);
        memset(&test.args.lse, 0, sizeof test.args.lse);
        assert_int_equal(attn_merge(NULL, &test.args), ATTN_OK);
        assert_near(test.to[0], 2, 2e-7);
        assert_true(isnan(test.to_lse[0]));
    }
}

/* f64, f16 and bf16 parts into f16, with gaps in the output. */
static void test_types_and_strides(void **state)
{
    merge_case test;
    double o[ROWS * DV] = {1, 1, 1, 1, 1, 1}, lse[ROWS] = {0};
    uint16_t half[ROWS * DV], brain[ROWS * DV], to[ROWS * DV * 3];
    (void)state;
    setup(&test);
    for (int i = 0; i < ROWS * DV; i++) {
        half[i] = 0x4000, brain[i] = 0x4040; /* 2 and 3 */
    }
    memset(to, 0xFF, sizeof to);
    test.part_o[0] = attn_tensor_bshd(o, ATTN_F64, 1, ROWS, 1, DV);
    test.part_lse[0] = attn_tensor_bshd(lse, ATTN_F64, 1, ROWS, 1, 1);
    test.part_o[1] = attn_tensor_bshd(half, ATTN_F16, 1, ROWS, 1, DV);
    test.part_o[2] = attn_tensor_bshd(brain, ATTN_BF16, 1, ROWS, 1, DV);
    test.args.o = attn_tensor_bshd(to, ATTN_F16, 1, ROWS, 1, DV);
    test.args.o.stride[1] = 3 * DV, test.args.o.stride[3] = 2;
    assert_int_equal(attn_merge(NULL, &test.args), ATTN_OK);
    for (int i = 0; i < ROWS * DV * 3; i++) {
        assert_int_equal(to[i], i % 6 == 0 || i % 6 == 2 ? 0x4000 : 0xFFFF);
    }
}

static void assert_refused(const merge_case *test, attn_status status, const char *says)
{
    attn_status got = attn_merge(NULL, &test->args);
    if (got != status || strstr(attn_last_error(), says) == NULL) {
        fail_msg("wanted %d, \"%s\"; got %d, \"%s\"", status, says, got, attn_last_error());
    }
    for (int i = 0; i < ROWS * DV; i++) {
        assert_true(isnan(test->to[i]) && isnan(test->to_lse[i / DV]));
    }
}

/* One field spoilt at a time. */
#define REFUSED(spoil, status, says)                    \
    do {                                                \
        setup(&test);                                   \
        spoil;                                          \
        assert_refused(&test, ATTN_ERR_##status, says); \
    } while (0)

static void test_misuse(void **state)
{
    merge_case test;
    (void)state;
    assert_int_equal(attn_merge(NULL, NULL), ATTN_ERR_INVALID_ARGUMENT);
    REFUSED(test.args.parts = 0, INVALID_ARGUMENT, "parts = 0");
    REFUSED(test.args.parts = INT64_MIN, INVALID_ARGUMENT, "parts = -9223372036854775808");
    REFUSED(test.args.part_o = NULL, INVALID_ARGUMENT, "part_o");
    REFUSED(test.args.part_lse = NULL, INVALID_ARGUMENT, "part_lse");
    REFUSED(test.args.o.dtype = ATTN_I32, INVALID_ARGUMENT, "o.dtype = 6");
    REFUSED(test.args.o.data = NULL, INVALID_ARGUMENT, "o.data is NULL");
    REFUSED(test.args.o.shape[1] = -1, INVALID_ARGUMENT, "o.shape[1] = -1");
    REFUSED(test.args.o.stride[1] = 0, INVALID_ARGUMENT, "o.stride[1] = 0");
    REFUSED(test.args.o.stride[1] = INT64_MAX, OVERFLOW, "o.shape[1] = 3");
    REFUSED(test.args.lse.shape[1] = 2, INVALID_ARGUMENT, "lse.shape[1] = 2 but o.shape[1] = 3");
    REFUSED(test.args.lse.shape[3] = 0, INVALID_ARGUMENT, "lse.shape[3] = 0, must be 1");
    REFUSED(test.args.lse.dtype = ATTN_F16, INVALID_ARGUMENT, "lse.dtype = 3");
    REFUSED(test.args.struct_size = 0, INVALID_ARGUMENT, "attn_merge_args.struct_size = 0");
    REFUSED(test.part_o[2].shape[3] = 1, INVALID_ARGUMENT, "part_o[2].shape[3] = 1 but o.shape");
    REFUSED(test.part_o[1].shape[1] = 4, INVALID_ARGUMENT, "part_o[1].shape[1] = 4 but o.shape");
    REFUSED(test.part_o[1].data = NULL, INVALID_ARGUMENT, "part_o");
    REFUSED(test.part_o[0].dtype = 99, INVALID_ARGUMENT, "part_o");
    REFUSED(test.part_lse[2].shape[0] = 2, INVALID_ARGUMENT, "part_lse[2].shape[0] = 2 but o");
    REFUSED(test.part_lse[2].dtype = ATTN_BF16, INVALID_ARGUMENT, "part_lse");
    REFUSED(test.part_lse[1].reserved = 1, UNKNOWN_FIELD, "part_lse");
}

/* Outputs may be a part's view itself, and nothing else of what is read or written. */
static void test_overlaps(void **state)
{
    merge_case test;
    (void)state;
    REFUSED(test.part_o[1] = test.args.o; test.part_o[1].stride[1] = -2;
            test.part_o[1].data = test.to + (ROWS - 1) * DV, INVALID_ARGUMENT,
            "o and part_o[1] overlap");
    REFUSED(test.part_lse[2].data = test.to, INVALID_ARGUMENT, "o and part_lse[2] overlap");
    REFUSED(test.part_o[0].data = test.to_lse + 1, INVALID_ARGUMENT, "lse and part_o[0] overlap");
    REFUSED(test.args.lse.data = test.to, INVALID_ARGUMENT, "o and lse overlap");
}

/* With nothing to write, the number of rows does not matter: o.shape[2] = 0, then d_v = 0 without
 * lse. */
static void test_nothing_to_write(void **state)
{
    const int64_t many = INT64_C(1) << 62;
    merge_case test;
    (void)state;
    for (int axis = 2; axis < 4; axis++) {
        setup(&test);
        memset(&test.args.lse, 0, sizeof test.args.lse);
        test.args.o.shape[0] = test.args.o.shape[1] = many;
        test.args.o.shape[axis] = 0;
        for (int p = 0; p < PARTS; p++) {
            test.part_o[p] = test.args.o;
            test.part_lse[p].shape[0] = test.part_lse[p].shape[1] = many;
            test.part_lse[p].shape[2] = test.args.o.shape[2];
            test.part_lse[p].stride[0] = test.part_lse[p].stride[1] = 0;
        }
        assert_int_equal(attn_merge(NULL, &test.args), ATTN_OK);
        assert_true(isnan(test.to[0]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_empty_parts),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_types_and_strides),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_nothing_to_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
