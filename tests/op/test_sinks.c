/*
 * test_sinks.c: attention sinks at the ends of the range of numbers. Ordinary ones are in
 * test_geometry.c (B48), split ones in test_splits.c, many others in the files of problem lines.
 */
#include "oracle.h"
#include "trial.h"

static const double gaps[] = {-1e4, -100, 0,   63,  65,  88,   89,   100,
                              150,  170,  300, 700, 720, 1000, 1395, 1e4};
enum { GAPS = sizeof gaps / sizeof gaps[0] };

/* A sink may be so far above the scores that exp(sink - max) overflows, and O be a normal number
 * all the same: with v = 1e30 and a distance of 100 it is about 4e-14. One distance per head. */
static void sinks_far_above(void **state)
{
    static const struct {
        const char *dtype;
        double v;
    } types[] = {{"f64", 1e300}, {"f32", 1e30}, {"bf16", 1e30}, {"f16", 6e4}};
    (void)state;
    for (int n = 0; n < 4; n++) {
        for (int score_step = 0; score_step < 2; score_step++) {
            op_trial trial = trial_open(
                "nq=3 nk=70 hq=%d hkv=1 d=5 dv=9 dtype=%s sinks=h lse=1 row_max=1 softcap=%d", GAPS,
                types[n].dtype, score_step * 50);
            tensor_fill(&trial.args->v, types[n].v);
            for (int64_t h = 0; h < GAPS; h++) {
                inputs_store(&trial.args->sinks, 0, h, 0, 0, gaps[h]);
            }
            trial_check(&trial);
            trial_close(&trial);
        }
    }
}

/* The case of the report, with its numbers. */
static void normal_output_of_an_overflowing_divisor(void **state)
{
    (void)state;
    op_trial trial = trial_open("nq=1 nk=1 hq=1 d=1 scale=0 dtype=f32 sinks=1 lse=1 row_max=1");
    tensor_fill(&trial.args->v, 1e30);
    tensor_fill(&trial.args->sinks, 100);
    trial_check(&trial);
    assert_near(trial_o(&trial, 0, 0, 0, 0), 1e30 * exp(-100), 1e-7 * 1e30 * exp(-100));
    assert_near(trial_lse(&trial, 0, 0, 0), 100, 0);
    trial_close(&trial);
}

/* A sink of NaN or +inf is a visible score like any other: its row is NaN (C4), the others are
 * not. */
static void sinks_that_are_no_numbers(void **state)
{
    static const double values[] = {(double)NAN, (double)INFINITY};
    (void)state;
    for (int n = 0; n < 2; n++) {
        op_trial trial = trial_open("nq=2 nk=70 hq=2 d=4 dtype=f32 sinks=h lse=1");
        inputs_store(&trial.args->sinks, 0, 1, 0, 0, values[n]);
        trial_check(&trial);
        assert_true(isnan(trial_o(&trial, 0, 1, 1, 3)) && isnan(trial_lse(&trial, 0, 1, 1)));
        assert_true(isfinite(trial_o(&trial, 0, 1, 0, 3)));
        trial_close(&trial);
    }
}

/* A row whose scores are all NaN stays so beside a sink that is a number. */
static void scores_that_are_no_numbers(void **state)
{
    (void)state;
    op_trial trial = trial_open("nq=2 nk=70 hq=2 d=4 dtype=f32 sinks=h lse=1");
    inputs_store(&trial.args->q, 0, 1, 1, 2, (double)NAN);
    trial_check(&trial);
    assert_true(isnan(trial_o(&trial, 0, 1, 1, 3)) && isnan(trial_lse(&trial, 0, 1, 1)));
    assert_true(isfinite(trial_o(&trial, 0, 0, 1, 3)));
    trial_close(&trial);
}

/* Rows of a varlen tensor that belong to no sequence see a sink that is the same for all. */
static void rows_outside_every_sequence(void **state)
{
    static int32_t cu_q[] = {2, 5, 8}, cu_k[] = {0, 6, 6};
    (void)state;
    op_trial trial = trial_open("nq=10 nk=12 hq=2 d=4 dtype=f32 sinks=h lse=1");
    trial.args->cu_seqlens_q = attn_tensor_bshd(cu_q, ATTN_I32, 3, 1, 1, 1);
    trial.args->cu_seqlens_k = attn_tensor_bshd(cu_k, ATTN_I32, 3, 1, 1, 1);
    trial_check(&trial);
    assert_true(trial_lse(&trial, 0, 1, 0) == oracle_element(&trial.args->sinks, 0, 0, 0, 0));
    assert_true(trial_lse(&trial, 0, 9, 1) == oracle_element(&trial.args->sinks, 0, 1, 0, 0));
    assert_true(trial_o(&trial, 0, 1, 0, 0) == 0 && trial_o(&trial, 0, 9, 1, 3) == 0);
    /* no key, but a sink */
    assert_true(trial_lse(&trial, 0, 7, 1) == oracle_element(&trial.args->sinks, 0, 1, 0, 0));
    trial_close(&trial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sinks_far_above),
        cmocka_unit_test(normal_output_of_an_overflowing_divisor),
        cmocka_unit_test(sinks_that_are_no_numbers),
        cmocka_unit_test(scores_that_are_no_numbers),
        cmocka_unit_test(rows_outside_every_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
