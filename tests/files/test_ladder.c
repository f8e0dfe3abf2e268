/*
 * test_ladder.c: the steps of `attn ladder` agree with float64 on shapes that do not divide
 * anything, the flawed forms fail as they are said to, and other problems are refused.
 */
#include "ladder_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static problem_spec problem_of(const char *line)
{
    problem_spec problem;
    char error[256];
    if (!problem_parse(line, &problem, error, sizeof error)) {
        fail_msg("%s: %s", line, error);
    }
    return problem;
}

/* Bound of a step: sums run from the first term to the last, d terms of a score and nk of O and of
 * l, with one rounding more for each time that O follows the maximum. Scores of normal inputs are
 * below 8. */
static double bound(const problem_spec *problem)
{
    return ldexp(1, -24) * (8.0 * (double)(problem->d + 4) + 2.0 * (double)problem->nk + 8);
}

static void test_steps(void **state)
{
    static const char *const lines[] = {
        "nq=100 hq=2 d=33 dv=17",
        "nq=65 nk=129 hq=1 d=64 causal=1",
        "nq=70 nk=30 hq=1 d=16 causal=1", /* rows without a key */
        "nq=1 nk=1 hq=1 d=1",
        "nq=3 nk=200 hq=3 d=8 scale=0.5",
    };
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        const problem_spec problem = problem_of(lines[n]);
        ladder_result results[LADDER_STEPS];
        attn_status status = ATTN_ERR_INVALID_ARGUMENT;
        assert_null(ladder_refuses(&problem));
        assert_true(ladder_run(&problem, results, &status));
        assert_int_equal(status, ATTN_OK);
        for (int i = 0; i < LADDER_STEPS; i++) {
            assert_true(results[i].done && results[i].errors.rows == problem.nq * problem.hq);
            if (!(results[i].errors.relative <= bound(&problem))) {
                fail_msg("%s, %s: error %g, allowed %g", lines[n], ladder_step[i],
                         results[i].errors.relative, bound(&problem));
            }
        }
    }
}

/* One head of 64 rows and 128 keys, d = 8: the traffic can be counted by hand. */
static void test_traffic(void **state)
{
    const problem_spec problem = problem_of("nq=64 nk=128 hq=1 d=8");
    const double rows = 64, keys = 128, d = 8, all = rows * keys;
    ladder_result results[LADDER_STEPS];
    attn_status status;
    (void)state;
    assert_true(ladder_run(&problem, results, &status));
    /* S, P: Q once, K and V for each row; S read three times and P once, each written once */
    assert_true(results[1].moved.read == 4 * (rows * d + 2 * all * d + 4 * all));
    assert_true(results[1].moved.written == 4 * (2 * all + rows * d));
    assert_true(results[3].moved.read == 4 * (rows * d + 2 * all * d));
    assert_true(results[3].moved.written == 4 * rows * d);
    /* two blocks of 32 rows */
    assert_true(results[4].moved.read == 4 * (rows * d + 2 * 2 * keys * d));
    assert_true(results[0].extra == 4 * all && results[3].extra == 0);
}

/* exp overflows without the maximum, and only without it. */
static void test_large_scores(void **state)
{
    const problem_spec problem = problem_of("n=64 hq=1 d=64 inputs=large");
    ladder_result results[LADDER_STEPS];
    attn_status status;
    (void)state;
    assert_true(ladder_run(&problem, results, &status));
    assert_true(isinf(results[0].errors.relative));
    for (int i = 1; i < LADDER_STEPS; i++) {
        assert_true(results[i].errors.relative < 1e-2);
    }
}

static void test_flaws(void **state)
{
    ladder_flaw flaws[LADDER_FLAWS];
    (void)state;
    assert_true(ladder_run_flaws(flaws));
    assert_int_equal(flaws[0].wrong_rows, flaws[0].rows);
    assert_int_equal(flaws[1].wrong_rows, 0);
    assert_true(flaws[1].error > 1e-4); /* 255 blocks of 1e-6 beside a sum of 1 */
    assert_int_equal(flaws[2].wrong_rows, 32);
    for (int i = 0; i < LADDER_FLAWS; i++) {
        assert_true(flaws[i].right < 2e-6);
    }
}

static void test_refusals(void **state)
{
    static const char *const lines[] = {
        "dtype=bf16", "b=2",           "hq=4 hkv=2",    "window_left=3", "softcap=30",
        "mask=qk",    "pass=backward", "bias=hqk",      "alibi=h",       "layout=bhsd",
        "sinks=h",    "dropout=0.5",   "used_k=5 nk=8", "q_origin=3"};
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        const problem_spec problem = problem_of(lines[n]);
        if (ladder_refuses(&problem) == NULL) {
            fail_msg("%s is not refused", lines[n]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_large_scores), cmocka_unit_test(test_flaws),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("ladder", tests, NULL, NULL);
}
