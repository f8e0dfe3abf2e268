/*
 * test_accuracy.c: the numbers of the contract (A2, B13, B19a) on long random inputs: RMSE of
 * 16-bit types at most 1.02 times that of rounding the exact result once; f32 |O - O64| at most
 * 2e-7 sum p|v| on N(0, 1), and a bounded RMSE on inputs with outliers. Each number is printed. One
 * run on the best table: tests of bits tie the others to it.
 */
#include "errors.h"
#include "trial.h"

#include <stdio.h>
#include <string.h>

static error_stats measure(const char *line, int64_t rows)
{
    op_trial trial = trial_open("%s", line);
    error_stats errors;
    trial_run_once(&trial, 2);
    errors_measure(trial.args, rows, &errors);
    print_message("%s: max |err| / sum p|v| %.3g, c %.3g, rmse %.4g (rounding once: %.4g)\n", line,
                  errors.relative, errors.c, errors.rmse, errors.rmse_once);
    trial_close(&trial);
    return errors;
}

static void assert_f32(const char *line, int64_t rows)
{
    error_stats errors = measure(line, rows);
    assert_true(errors.relative <= 2e-7);
    assert_true(errors.c <= 4);
}

static void assert_16_bits(const char *line, int64_t rows)
{
    error_stats errors = measure(line, rows);
    assert_true(errors.rmse <= 1.02 * errors.rmse_once);
    assert_true(strstr(line, "precise=1") == NULL || errors.c <= 4);
}

/* True where probabilities are rounded to the type of V as well: tiles of bf16. */
static void assert_rounded_p(const char *line, int64_t rows)
{
    error_stats errors = measure(line, rows);
    assert_true(errors.rmse <= 1.45 * errors.rmse_once);
}

/* With a thousand keys the worst element is that of the row with the largest score, which the seed
 * decides: of 24 seeds one or two exceed 2e-7 on every table (docs/numerics.md). The mean of the
 * worst tells a table that sums badly. */
static void assert_f32_over_seeds(const char *words)
{
    double sum = 0;
    for (int seed = 0; seed < 8; seed++) {
        char line[128];
        snprintf(line, sizeof line, "%s seed=%d", words, seed);
        error_stats errors = measure(line, 1024);
        sum += errors.relative;
        assert_true(errors.relative <= 4e-7);
        assert_true(errors.c <= 4);
    }
    assert_true(sum / 8 <= 2e-7);
}

static void test_f32_1024(void **state)
{
    (void)state;
    assert_f32_over_seeds("n=1024 hq=1 d=64 dtype=f32");
    assert_f32_over_seeds("n=1024 hq=1 d=128 dtype=f32");
}

static void test_f32_4096(void **state)
{
    (void)state;
    assert_f32("nq=1024 nk=4096 hq=1 d=64 dtype=f32", 1024);
    assert_f32("nq=1024 nk=4096 hq=1 d=128 dtype=f32", 1024);
}

static void test_f32_16384(void **state)
{
    (void)state;
    assert_f32("nq=512 nk=16384 hq=1 d=64 dtype=f32", 256);
    assert_f32("nq=512 nk=16384 hq=1 d=128 dtype=f32", 256);
}

static void test_f16(void **state)
{
    (void)state;
    assert_16_bits("n=1024 hq=1 d=64 dtype=f16 precise=1", 1024);
    assert_16_bits("nq=512 nk=4096 hq=1 d=128 dtype=f16 precise=1", 512);
    assert_16_bits("nq=512 nk=4096 hq=1 d=128 dtype=f16 precise=1 inputs=outlier", 512);
    assert_16_bits("n=1024 hq=1 d=64 dtype=f16", 1024);
    assert_16_bits("nq=512 nk=4096 hq=1 d=128 dtype=f16", 512);
    assert_16_bits("nq=512 nk=4096 hq=1 d=128 dtype=f16 inputs=outlier", 512);
}

/* With B13: the scale must not be multiplied into Q in 16 bits. */
static void test_bf16(void **state)
{
    (void)state;
    assert_16_bits("n=1024 hq=1 d=64 dtype=bf16 precise=1", 1024);
    assert_16_bits("nq=512 nk=4096 hq=1 d=128 dtype=bf16 precise=1", 512);
    assert_16_bits("nq=512 nk=4096 hq=1 d=128 dtype=bf16 precise=1 inputs=outlier", 512);
    assert_rounded_p("n=1024 hq=1 d=64 dtype=bf16", 1024);
    assert_rounded_p("nq=512 nk=4096 hq=1 d=128 dtype=bf16", 512);
    assert_rounded_p("nq=512 nk=4096 hq=1 d=128 dtype=bf16 inputs=outlier", 512);
}

/* Two parts where the best table has them: sizes that nobody promised, but that users want to
 * know. */
static void test_bf16x3(void **state)
{
    const char *const lines[] = {"n=1024 hq=1 d=64 dtype=f32 bf16x3=1",
                                 "nq=512 nk=4096 hq=1 d=128 dtype=f32 bf16x3=1"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        error_stats errors = measure(lines[i], 512);
        assert_true(errors.relative <= 1e-5);
        assert_true(errors.rmse <= 1e-6);
    }
}

/* Outliers: the RMSE is that of the few rows whose largest score is a product of two outliers,
 * hence it depends on the sample: 1e-7 to 3.3e-7 over seeds, whatever the order of summation. One
 * f32 accumulator over all keys gives 5e-6. */
static void b19a_outliers(void **state)
{
    (void)state;
    for (int seed = 0; seed < 4; seed++) {
        char line[128];
        snprintf(line, sizeof line, "nq=256 nk=16384 hq=1 d=128 dtype=f32 inputs=outlier seed=%d",
                 seed);
        error_stats errors = measure(line, 256);
        assert_true(errors.rmse <= 4e-7);
        assert_true(errors.c <= 4);
    }
}

/* No systematic error, by the mean of thousands of rows. A table that truncated O, or summed with
 * rounding other than to nearest, would be beyond the limit. */
static void test_bias(void **state)
{
    static const char *const kinds[] = {"normal", "positive", "offset"};
    static const struct {
        const char *words;
        double loss; /* of probabilities on tiles, in u */
    } types[] = {{"f32", 0}, {"f16", 0x1p8}, {"bf16", 0x1p16}, {"bf16 precise=1", 0}};
    (void)state;
    for (int n = 0; n < 12; n++) {
        char line[128];
        snprintf(line, sizeof line, "nq=4096 nk=256 hq=1 d=32 dtype=%s inputs=%s",
                 types[n / 3].words, kinds[n % 3]);
        op_trial trial = trial_open("%s", line);
        error_stats errors;
        trial_run_once(&trial, 2);
        errors_measure(trial.args, INT64_MAX, &errors);
        const double limit = errors_bias_limit(trial.args, &errors, 4 + types[n / 3].loss);
        print_message("%s: bias %.3g (at most %.3g), L2 %.3g\n", line, errors_bias(&errors), limit,
                      errors.l2);
        assert_true(errors_bias(&errors) <= limit);
        trial_close(&trial);
    }
}

/* f64 is f64 throughout. */
static void test_f64(void **state)
{
    (void)state;
    error_stats errors = measure("nq=64 nk=1024 hq=1 d=64 dtype=f64 lse=1", 64);
    assert_true(errors.c <= 4 && errors.lse <= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_1024),  cmocka_unit_test(test_f32_4096),
        cmocka_unit_test(test_f32_16384), cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bias),      cmocka_unit_test(test_bf16),
        cmocka_unit_test(b19a_outliers),  cmocka_unit_test(test_bf16x3),
        cmocka_unit_test(test_f64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
