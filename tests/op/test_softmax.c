/*
 * test_softmax.c: the online softmax where it went wrong elsewhere: contract, cases A (B04 .. B19).
 * Accuracy on ordinary data is test_accuracy.c.
 */
#include "trial.h"

#include <float.h>

/* q = 1 and d = 1, so that the scores are the keys. */
static void set_scores(op_trial *trial, double (*score)(int64_t j))
{
    tensor_fill(&trial->args->q, 1);
    for (int64_t j = 0; j < trial->args->k.shape[1]; j++) {
        inputs_store(&trial->args->k, 0, j, 0, 0, score(j));
    }
}

/* Keys beyond the 33 in use must not count, though exp(0) is much larger than exp(-1000). */
static void b04_tail_keys(void **state)
{
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial trial =
            trial_open("nq=3 nk=64 hq=1 d=1 used_k=33 scale=1 lse=1 dtype=%s", dtypes[n]);
        tensor_fill(&trial.args->q, 1);
        for (int64_t j = 0; j < 64; j++) {
            inputs_store(&trial.args->k, 0, j, 0, 0, j < 33 ? -1000 : (double)NAN);
            inputs_store(&trial.args->v, 0, j, 0, 0, j < 33 ? 1 : (double)NAN);
        }
        trial_run(&trial);
        assert_near(trial_o(&trial, 0, 2, 0, 0), 1, n < 2 ? 0x1p-22 : 0);
        assert_near(trial_lse(&trial, 0, 2, 0), -996.503492, lse_bound(1000));
        trial_close(&trial);
    }
}

static void b05_large_bf16(void **state)
{
    op_trial trial = trial_open("n=1 hq=1 d=64 dtype=bf16 lse=1");
    (void)state;
    tensor_fill(&trial.args->q, 133120);
    tensor_fill(&trial.args->k, 133120);
    tensor_fill(&trial.args->v, 133120);
    for (int own = 0; own < 2; own++) {
        (own ? trial_check_own_bits : trial_run)(&trial);
        for (int64_t c = 0; c < 64; c++) {
            assert_true(trial_o(&trial, 0, 0, 0, c) == 133120);
        }
        assert_near(trial_lse(&trial, 0, 0, 0), 1.417674752e11, 8192);
    }
    trial_close(&trial);
}

static void b07_long_context_in_16_bits(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        op_trial trial = trial_open("nq=1 nk=200000 hq=1 d=4 dtype=%s inputs=equal scale=0 lse=1",
                                    n ? "bf16" : "f16");
        tensor_fill(&trial.args->v, 1);
        trial_run(&trial);
        assert_true(trial_o(&trial, 0, 0, 0, 3) == 1);
        assert_near(trial_lse(&trial, 0, 0, 0), 12.206073, 1e-6);
        trial_close(&trial);
    }
}

static double rising(int64_t j)
{
    return -1000 + 200 * (double)(j / 64);
}

static void b08_rising_scores(void **state)
{
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial trial = trial_open("nq=2 nk=192 hq=1 d=1 scale=1 lse=1 dtype=%s", dtypes[n]);
        set_scores(&trial, rising);
        for (int64_t j = 0; j < 192; j++) {
            inputs_store(&trial.args->v, 0, j, 0, 0, (double)(j / 64));
        }
        trial_run(&trial);
        assert_near(trial_o(&trial, 0, 1, 0, 0), 2, n < 2 ? 0x1p-21 : 0);
        assert_near(trial_lse(&trial, 0, 1, 0), -595.841117, lse_bound(600));
        trial_close(&trial);
    }
}

static double minus_20000(int64_t j)
{
    (void)j;
    return -20000;
}

/* 90 of 100 keys masked, by a boolean mask and by a bias of -inf. */
static void b09_masked_large_values(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        op_trial trial =
            trial_open("nq=2 nk=100 hq=1 d=1 scale=1 lse=1 dtype=f32 %s=k", n ? "bias" : "mask");
        set_scores(&trial, minus_20000);
        for (int64_t j = 0; j < 100; j++) {
            bool real = j % 10 == 3;
            inputs_store(&trial.args->v, 0, j, 0, 0, real ? 1 : 1e30);
            inputs_store(n ? &trial.args->bias : &trial.args->mask, 0, 0, 0, j,
                         real ? n == 0
                         : n  ? -(double)INFINITY
                              : 0);
        }
        trial_run(&trial);
        assert_near(trial_o(&trial, 0, 1, 0, 0), 1, 0x1p-22);
        assert_near(trial_lse(&trial, 0, 1, 0), -20000 + log(10), lse_bound(20000));
        trial_close(&trial);
    }
}

/* Scores of 2000 to 2100. */
static void b10_large_scores(void **state)
{
    op_trial trial = trial_open("nq=5 nk=300 hq=1 d=128 scale=1 dtype=f32 lse=1 row_max=1");
    (void)state;
    tensor_fill(&trial.args->q, 1);
    for (int64_t j = 0; j < 300; j++) {
        double score = 2000 + 100 * (inputs_value(INPUTS_UNIFORM, 1, INPUTS_K, j) + 1) / 2;
        for (int64_t c = 0; c < 128; c++) {
            inputs_store(&trial.args->k, 0, j, 0, c, score / 128 * (c % 2 ? 1.5 : 0.5));
        }
    }
    trial_check(&trial);
    assert_true(isfinite(trial_o(&trial, 0, 4, 0, 127)));
    trial_close(&trial);
}

/* The maximum grows by 5.5 every 64 keys, over 64 blocks. */
static void b11_growing_maximum(void **state)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    (void)state;
    for (int n = 0; n < 6; n++) {
        op_trial trial =
            trial_open("nq=%d nk=4096 hq=1 d=1 dv=4 scale=5.5 dtype=%s lse=1 row_max=1",
                       n < 3 ? 2 : 20, dtypes[n % 3]);
        tensor_fill(&trial.args->q, 1);
        for (int64_t j = 0; j < 4096; j++) {
            inputs_store(&trial.args->k, 0, j, 0, 0, (double)(j / 64));
        }
        trial_check(&trial);
        tensor_fill(&trial.args->v, 1);
        for (int own = 0; own < 2; own++) {
            (own ? trial_check_own_bits : trial_check)(&trial);
            for (int64_t i = 0; i < trial.problem.nq; i++) {
                assert_near(trial_o(&trial, 0, i, 0, 3), 1, n % 3 == 2 ? 0x1p-7 : 0x1p-10);
            }
        }
        trial_close(&trial);
    }
}

/* The best table: a row's result does not depend on the size of the scores of the rows beside
 * it. */
static void large_rows_change_no_others(void **state)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    (void)state;
    for (int n = 0; n < 3; n++) {
        op_trial trial = trial_open("nq=32 nk=300 hq=1 d=8 dtype=%s lse=1", dtypes[n]);
        double before[32][8], lse[32];
        trial_run_once(&trial, 1);
        for (int64_t i = 0; i < 32 * 8; i++) {
            before[i / 8][i % 8] = trial_o(&trial, 0, i / 8, 0, i % 8);
            lse[i / 8] = trial_lse(&trial, 0, i / 8, 0);
            if (i / 8 % 2) {
                inputs_store(&trial.args->q, 0, i / 8, 0, i % 8, i % 8 ? 1000 : -3000);
            }
        }
        trial_run_once(&trial, 1);
        for (int64_t i = 0; i < 32 * 8; i += i % 8 == 7 ? 9 : 1) {
            assert_true(trial_o(&trial, 0, i / 8, 0, i % 8) == before[i / 8][i % 8]);
            assert_true(trial_lse(&trial, 0, i / 8, 0) == lse[i / 8]);
        }
        trial_check_own_bits(&trial);
        trial_close(&trial);
    }
}

/* One score of 50 among zeros, at each place: O = the number of the place. */
static void b14_each_place_is_seen(void **state)
{
    op_trial trial = trial_open("n=1024 hq=1 d=1 dtype=f32 scale=0 bias=qk");
    (void)state;
    tensor_fill(&trial.args->bias, 0);
    for (int64_t j = 0; j < 1024; j++) {
        inputs_store(&trial.args->bias, 0, 0, j, j, 50);
        inputs_store(&trial.args->v, 0, j, 0, 0, (double)j);
    }
    trial_run(&trial);
    for (int64_t i = 0; i < 1024; i++) {
        assert_near(trial_o(&trial, 0, i, 0, 0), (double)i,
                    (double)i * (double)FLT_EPSILON + 2e-15);
    }
    trial_close(&trial);
}

/* 5000 scores of -inf: by a bias, then by the products. */
static void b15_all_scores_minus_infinity(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        op_trial trial = trial_open("nq=3 nk=5000 hq=1 d=1 dtype=f32 scale=1 lse=1 row_max=1 %s",
                                    n ? "bias=k" : "");
        tensor_fill(&trial.args->q, 1);
        tensor_fill(n ? &trial.args->bias : &trial.args->k, -(double)INFINITY);
        trial_run(&trial);
        assert_true(trial_o(&trial, 0, 2, 0, 0) == 0 && !signbit(trial_o(&trial, 0, 2, 0, 0)));
        assert_true(trial_lse(&trial, 0, 2, 0) == -(double)INFINITY);
        trial_close(&trial);
    }
}

/* Entries of +-5e8. Key j differs from an even row's q in the signs of j * 7 % 50 entries. */
static void b16_huge_entries(void **state)
{
    op_trial trial = trial_open("n=50 hq=1 d=64 dtype=f32 lse=1");
    (void)state;
    for (int64_t j = 0; j < 50; j++) {
        for (int64_t c = 0; c < 64; c++) {
            inputs_store(&trial.args->q, 0, j, 0, c, j % 2 ? -5e8 : 5e8);
            inputs_store(&trial.args->k, 0, j, 0, c, c < j * 7 % 50 ? -5e8 : 5e8);
        }
    }
    trial_check(&trial);
    for (int64_t i = 0; i < 50; i++) {
        int64_t best = i % 2 ? 7 : 0; /* 7 * 7 % 50 = 49 signs differ, 0 differ */
        for (int64_t c = 0; c < 64; c++) {
            double v = inputs_value(INPUTS_NORMAL, trial.problem.seed, INPUTS_V, best * 64 + c);
            assert_true(trial_o(&trial, 0, i, 0, c) == (double)(float)v);
        }
    }
    trial_close(&trial);
}

/* Probabilities and their sum are rounded alike: with V = 1 the output is 1. */
static void b18_values_of_one(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        op_trial trial =
            trial_open("nq=64 nk=1000 hq=1 d=64 dtype=%s scale=0.375", n ? "f16" : "bf16");
        tensor_fill(&trial.args->v, 1);
        trial_run(&trial);
        for (int64_t i = 0; i < 64; i++) {
            assert_true(trial_o(&trial, 0, i, 0, (i * 7) % 64) == 1);
        }
        trial_close(&trial);
    }
}

static double ends_high(int64_t j)
{
    return j == 0 ? 20000 : j == 299 ? 20001 : -20000;
}

static void b19_scores_of_both_signs(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        op_trial trial =
            trial_open("nq=2 nk=300 hq=1 d=1 dtype=%s scale=1 lse=1", n ? "f64" : "f32");
        set_scores(&trial, ends_high);
        for (int64_t j = 0; j < 300; j++) {
            inputs_store(&trial.args->v, 0, j, 0, 0, (double)j);
        }
        trial_run(&trial);
        assert_near(trial_o(&trial, 0, 1, 0, 0), 218.586, 1e-3);
        assert_near(trial_lse(&trial, 0, 1, 0), 20001.3133, 1e-3 + 0x1p-10);
        trial_close(&trial);
    }
}

/* B52: legal scales at the ends of the range. */
static void b52_extreme_scales(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        op_trial trial =
            trial_open("nq=3 nk=20 hq=1 d=1 dv=2 dtype=f32 scale=%s lse=1", n ? "9e15" : "1e-323");
        double mean = 0;
        tensor_fill(&trial.args->q, 1);
        for (int64_t j = 0; j < 20; j++) {
            inputs_store(&trial.args->k, 0, j, 0, 0, (double)(j * 7 % 20));
            inputs_store(&trial.args->v, 0, j, 0, 0, (double)j);
            mean += (double)j / 20;
        }
        trial_run(&trial);
        assert_near(trial_o(&trial, 0, 2, 0, 0), n ? 17 : mean,
                    n ? 0 : 4e-6); /* 17 * 7 % 20 = 19 */
        assert_near(trial_lse(&trial, 0, 2, 0), n ? 9e15 * 19 : log(20),
                    n ? lse_bound(9e15 * 19) : 1e-6);
        trial_close(&trial);
    }
}

/* A scale below the normal numbers, of large products, is no 0 on tables that flush results to 0;
 * a score of -infinity masks its key. */
static void a_scale_below_the_normal_numbers(void **state)
{
    static const char *const lines[] = {"dtype=f32", "dtype=bf16", "dtype=bf16 softcap=5 alibi=h"};
    (void)state;
    for (int n = 0; n < 2 * (int)(sizeof lines / sizeof lines[0]); n++) {
        op_trial trial =
            trial_open("nq=3 nk=20 hq=1 d=1 dv=2 scale=1e-38 lse=1 row_max=1 %s", lines[n / 2]);
        tensor_fill(&trial.args->q, 1);
        for (int64_t j = 0; j < 20; j++) {
            inputs_store(&trial.args->k, 0, j, 0, 0, 1e37 * (double)(j * 7 % 20));
        }
        if (n % 2) {
            inputs_store(&trial.args->k, 0, 3, 0, 0, -(double)INFINITY);
        }
        trial_check(&trial);
        if (n % 2 == 0 || trial.problem.dtype == ATTN_BF16) { /* NaN as a sum of parts */
            trial_check_own_bits(&trial);
        }
        trial_close(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b04_tail_keys),
        cmocka_unit_test(b05_large_bf16),
        cmocka_unit_test(b07_long_context_in_16_bits),
        cmocka_unit_test(b08_rising_scores),
        cmocka_unit_test(b09_masked_large_values),
        cmocka_unit_test(b10_large_scores),
        cmocka_unit_test(b11_growing_maximum),
        cmocka_unit_test(large_rows_change_no_others),
        cmocka_unit_test(b14_each_place_is_seen),
        cmocka_unit_test(b15_all_scores_minus_infinity),
        cmocka_unit_test(b16_huge_entries),
        cmocka_unit_test(b18_values_of_one),
        cmocka_unit_test(b19_scores_of_both_signs),
        cmocka_unit_test(b52_extreme_scales),
        cmocka_unit_test(a_scale_below_the_normal_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
