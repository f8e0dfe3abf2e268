/*
 * test_geometry.c: the keys that a row sees by causality, windows, ALiBi positions and lengths, and
 * all other changes of a score: contract, cases B32 .. B39, B44 .. B48.
 */
#include "trial.h"

/* The number of keys that row i sees: all scores are equal, so LSE = score + ln(count). 0 for an
 * empty row. */
static double seen(const op_trial *trial, int64_t i)
{
    double score = 0.25 * (double)trial->problem.d / sqrt((double)trial->problem.d),
           lse = trial_lse(trial, 0, i, 0);
    return lse == -(double)INFINITY ? 0 : exp(lse - score);
}

static void assert_seen(const char *line, int64_t rows, double (*want)(int64_t i))
{
    op_trial trial = trial_open("%s", line);
    trial_check(&trial);
    for (int64_t i = 0; i < rows; i++) {
        assert_near(seen(&trial, i), want(i), 1e-4);
    }
    trial_close(&trial);
}

#define EQUAL "hq=1 d=16 dtype=f32 lse=1 inputs=equal "

static double all_of_16(int64_t i)
{
    (void)i;
    return 16;
}

static double one(int64_t i)
{
    (void)i;
    return 1;
}

static double last_of_16_one(int64_t i)
{
    return i == 15;
}

/* Causal is aligned bottom-right, and top-left on request. */
static void b32_alignment(void **state)
{
    (void)state;
    assert_seen(EQUAL "nq=1 nk=16 causal=1", 1, all_of_16);
    assert_seen(EQUAL "nq=16 nk=1 causal=1", 16, last_of_16_one);
    assert_seen(EQUAL "nq=1 nk=16 causal=1 top_left=1", 1, one);
    assert_seen(EQUAL "nq=16 nk=1 causal=1 top_left=1", 16, one);
}

static double eight(int64_t i)
{
    (void)i;
    return 8;
}

static double up_to_diagonal(int64_t i)
{
    return (double)i + 1;
}

/* No mask is no mask. */
static void b33_no_mask_is_not_causal(void **state)
{
    (void)state;
    assert_seen(EQUAL "n=8", 8, eight);
    assert_seen(EQUAL "n=8 causal=1", 8, up_to_diagonal);
}

/* One key per row: O = V, bit for bit. */
static void b35_window_of_one(void **state)
{
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial trial =
            trial_open("n=130 hq=2 d=24 dtype=%s window_left=0 window_right=0 lse=1", dtypes[n]);
        trial_check(&trial);
        size_t size = attn_dtype_size(trial.problem.dtype);
        assert_memory_equal(trial.args->o.data, trial.args->v.data, 130 * 2 * 24 * size);
        trial_close(&trial);
    }
}

static double within_32_64(int64_t i)
{
    return i >= 64;
}

/* 129 rows and one key, off = -128: row i sees it iff i - 160 <= 0 <= i - 64. */
static void b36_rows_outside_the_window(void **state)
{
    op_trial trial = trial_open("nq=129 nk=1 hq=1 d=8 dtype=f32 window_left=32 window_right=64");
    (void)state;
    assert_seen(EQUAL "nq=129 nk=1 window_left=32 window_right=64", 129, within_32_64);
    trial_run(&trial);
    for (int64_t i = 0; i < 129; i++) {
        double v = (double)(float)inputs_value(INPUTS_NORMAL, trial.problem.seed, INPUTS_V, 3);
        assert_true(trial_o(&trial, 0, i, 0, 3) == (i >= 64 ? v : 0));
    }
    trial_close(&trial);
}

static double five_to_the_right(int64_t i)
{
    return (double)(i + 6 < 40 ? i + 6 : 40);
}

static double thirty_to_the_left(int64_t i)
{
    return i <= 30 ? 40 : (double)(40 - (i - 30));
}

/* A negative bound is no bound on that side; so is one beyond any length. */
static void b37_negative_bounds(void **state)
{
    (void)state;
    assert_seen(EQUAL "n=40 window_left=-3 window_right=5", 40, five_to_the_right);
    assert_seen(EQUAL "n=40 window_left=9223372036854775807 window_right=5", 40, five_to_the_right);
    assert_seen(EQUAL "n=40 window_left=30 window_right=-1", 40, thirty_to_the_left);
    assert_seen(EQUAL "n=40 window_left=30 window_right=9223372036854775806", 40,
                thirty_to_the_left);
}

/* 16 keys in use of 256: the others have no weight. */
static void b38_short_sequence_in_a_long_tensor(void **state)
{
    op_trial trial = trial_open("nq=1 nk=256 hq=1 d=8 dtype=f16 used_k=16 lse=1");
    (void)state;
    tensor_fill(&trial.args->q, 0);
    tensor_fill(&trial.args->v, 1);
    trial_run(&trial);
    assert_true(trial_o(&trial, 0, 0, 0, 7) == 1);
    assert_near(trial_lse(&trial, 0, 0, 0), log(16), 1e-6);
    trial_close(&trial);
}

/* Positions beyond 32767. */
static void b39_many_keys(void **state)
{
    op_trial trial = trial_open("nq=2 nk=36864 hq=1 d=4 dtype=f32 bias=k lse=1");
    (void)state;
    for (int64_t j = 0; j < 36864; j++) {
        inputs_store(&trial.args->bias, 0, 0, 0, j, j < 36864 - 1024 ? -1e4 : 0);
    }
    trial_run(&trial);
    op_trial other = trial_open("nq=2 nk=1024 hq=1 d=4 dtype=f32 lse=1");
    tensor_copy(&other.args->q, &trial.args->q);
    attn_tensor k = tensor_slice(trial.args->k, 1, 35840, 1024),
                v = tensor_slice(trial.args->v, 1, 35840, 1024);
    tensor_copy(&other.args->k, &k);
    tensor_copy(&other.args->v, &v);
    trial_check(&other);
    assert_same_outputs(&trial, &other); /* 35840 is the start of a key block */
    trial_close(&trial);
    trial_close(&other);
}

/* ALiBi counts from the row's own position, in decoding as in the full pass. */
static void b44_alibi_in_decoding(void **state)
{
    op_trial step = trial_open("nq=1 nk=5 hq=1 d=8 dtype=f32 alibi=1 lse=1"),
             full = trial_open("n=5 hq=1 d=8 dtype=f32 alibi=1 lse=1");
    (void)state;
    tensor_fill(&step.args->q, 0);
    tensor_fill(&full.args->q, 0);
    tensor_fill(&step.args->alibi_slopes, 0.5);
    tensor_fill(&full.args->alibi_slopes, 0.5);
    trial_check(&step);
    trial_check(&full);
    assert_near(trial_lse(&step, 0, 0, 0), log(1 + exp(-0.5) + exp(-1) + exp(-1.5) + exp(-2)),
                1e-6);
    /* to both sides */
    assert_near(trial_lse(&full, 0, 2, 0), log(1 + 2 * exp(-0.5) + 2 * exp(-1)), 1e-6);
    assert_true(trial_lse(&step, 0, 0, 0) == trial_lse(&full, 0, 4, 0));
    for (int64_t c = 0; c < 8; c++) {
        assert_true(trial_o(&step, 0, 0, 0, c) == trial_o(&full, 0, 4, 0, c));
    }
    trial_close(&step);
    trial_close(&full);
}

/* 48 heads, each with its own slope; 3 per KV head. */
static void b45_slopes_of_48_heads(void **state)
{
    op_trial trial =
        trial_open("b=2 hq=48 hkv=16 nq=9 nk=70 d=8 dtype=f16 alibi=bh causal=1 lse=1");
    (void)state;
    trial_check(&trial);
    trial_close(&trial);
}

/* Scores of +-1e4 capped to +-15: the second value has the weight e^-30. */
static void b46_saturated_softcap(void **state)
{
    op_trial trial = trial_open("nq=1 nk=2 hq=1 d=1 dtype=f32 scale=1 softcap=15 lse=1 row_max=1");
    (void)state;
    tensor_fill(&trial.args->q, 1);
    inputs_store(&trial.args->k, 0, 0, 0, 0, 1e4);
    inputs_store(&trial.args->k, 0, 1, 0, 0, -1e4);
    inputs_store(&trial.args->v, 0, 0, 0, 0, 0);
    inputs_store(&trial.args->v, 0, 1, 0, 0, 1);
    trial_check(&trial);
    assert_near(trial_o(&trial, 0, 0, 0, 0), exp(-30), 1e-5 * exp(-30));
    assert_near(trial_lse(&trial, 0, 0, 0), 15, 2e-6);
    trial_close(&trial);
}

/* The cap comes before the bias. */
static void b47_softcap_before_bias(void **state)
{
    op_trial trial =
        trial_open("nq=1 nk=5 hq=1 d=1 dtype=f32 scale=1 softcap=10 bias=k lse=1 row_max=1");
    double sum = 0;
    (void)state;
    tensor_fill(&trial.args->q, 1);
    for (int64_t j = 0; j < 5; j++) {
        inputs_store(&trial.args->k, 0, j, 0, 0, 4.0 * (double)j);
        inputs_store(&trial.args->bias, 0, 0, 0, j, j == 3 ? 20 : 0);
        sum += exp(10 * tanh(0.4 * (double)j) + (j == 3 ? 20 : 0));
    }
    trial_check(&trial);
    assert_near(trial_lse(&trial, 0, 0, 0), log(sum), lse_bound(30));
    assert_near(((const float *)trial.args->row_max.data)[0], 10 * tanh(1.2) + 20, lse_bound(30));
    trial_close(&trial);
}

/* A sink is one more key whose value is 0 (its splits: test_splits.c). */
static void b48_sink(void **state)
{
    static const int keys[] = {8, 0};
    (void)state;
    for (int n = 0; n < 2; n++) {
        op_trial trial =
            trial_open("nq=3 nk=%d hq=2 d=4 dtype=f32 sinks=h lse=1 row_max=1", keys[n]);
        tensor_fill(&trial.args->q, 0);
        tensor_fill(&trial.args->v, 1);
        tensor_fill(&trial.args->sinks, 2);
        trial_check(&trial);
        assert_near(trial_o(&trial, 0, 2, 1, 3), keys[n] / (keys[n] + exp(2)), n ? 0 : 1e-7);
        assert_near(trial_lse(&trial, 0, 2, 1), log(keys[n] + exp(2)), 3e-7);
        trial_close(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b32_alignment),
        cmocka_unit_test(b33_no_mask_is_not_causal),
        cmocka_unit_test(b35_window_of_one),
        cmocka_unit_test(b36_rows_outside_the_window),
        cmocka_unit_test(b37_negative_bounds),
        cmocka_unit_test(b38_short_sequence_in_a_long_tensor),
        cmocka_unit_test(b39_many_keys),
        cmocka_unit_test(b44_alibi_in_decoding),
        cmocka_unit_test(b45_slopes_of_48_heads),
        cmocka_unit_test(b46_saturated_softcap),
        cmocka_unit_test(b47_softcap_before_bias),
        cmocka_unit_test(b48_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
