/*
 * test_nonfinite.c: NaN and infinities (contract C4). In a place that a row does not see, whatever
 * hides it, they change no bit of that row; in a place that it sees they poison that row. The
 * oracle says which rows are which.
 */
#include "oracle.h"
#include "trial.h"

/* Bits that may be left over in padding. */
static const double leftovers[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};

/* Every way to hide keys, each leaving key 65 to some rows and hiding it from others. */
static const char *const hidden_from_some[] = {
    "causal=1",
    "causal=1 top_left=1 hq=4 hkv=2",
    "window_left=10 window_right=3",
    "causal=1 window_left=20",
    "mask=qk",
    "mask=bhqk hq=6 hkv=2",
    "bias=qk",
    "bias=f16:hqk causal=1",
    "mask=qk bias=qk softcap=5 alibi=h",
};

static void poison_key_65(const attn_tensor *k_or_v, double value)
{
    for (int64_t hk = 0; hk < k_or_v->shape[2]; hk++) {
        inputs_store(k_or_v, 0, 65, hk, 3, value);
    }
}

static int count_nan_rows(const op_trial *trial)
{
    int count = 0;
    for (int64_t i = 0; i < trial->problem.nq; i++) {
        for (int64_t h = 0; h < trial->problem.hq; h++) {
            bool nan = false;
            for (int64_t c = 0; c < trial->problem.dv; c++) {
                nan |= !isfinite(trial_o(trial, 0, i, h, c));
            }
            count += nan;
        }
    }
    return count;
}

static void test_a_key_that_some_rows_see(void **state)
{
    static const char *const dtypes[] = {"f32", "f64", "f16", "bf16"};
    (void)state;
    for (size_t n = 0; n < sizeof hidden_from_some / sizeof hidden_from_some[0]; n++) {
        for (int value = 0; value < 3; value++) {
            op_trial trial = trial_open("n=100 hq=2 d=8 dtype=%s lse=1 %s",
                                        dtypes[(n + (size_t)value) % 4], hidden_from_some[n]);
            poison_key_65(&trial.args->v, leftovers[value]);
            trial_check(&trial);
            int poisoned = count_nan_rows(&trial);
            assert_in_range(poisoned, 1, 100 * trial.problem.hq - 1);
            trial_close(&trial);
        }
    }
}

/* The test above on tables with bits of their own. The group is wide, so all rows of a strip see
 * the same keys, fewer than others of their block. */
static void test_a_key_that_some_rows_see_on_tiles(void **state)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    (void)state;
    for (size_t n = 0; n < 3 * sizeof hidden_from_some / sizeof hidden_from_some[0]; n++) {
        op_trial trial =
            trial_open("n=100 hq=2 d=8 dtype=%s lse=1 %s", dtypes[n % 3], hidden_from_some[n / 3]);
        poison_key_65(&trial.args->v, (double)NAN);
        trial_check_own_bits(&trial);
        trial_close(&trial);
    }
    for (int n = 0; n < 3; n++) {
        op_trial trial = trial_open("n=70 hq=32 hkv=1 d=8 dtype=%s lse=1 causal=1", dtypes[n]);
        poison_key_65(&trial.args->v, (double)NAN);
        trial_check_own_bits(&trial);
        trial_close(&trial);
    }
}

/* NaN in K: a row that sees it is NaN throughout, its LSE too; the others have the bits of clean
 * keys. */
static void test_a_nan_key(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof hidden_from_some / sizeof hidden_from_some[0]; n++) {
        op_trial clean = trial_open("n=100 hq=2 d=8 dtype=f32 lse=1 %s", hidden_from_some[n]);
        op_trial trial = trial_open("n=100 hq=2 d=8 dtype=f32 lse=1 %s", hidden_from_some[n]);
        poison_key_65(&trial.args->k, (double)NAN);
        trial_run(&clean);
        trial_check(&trial);
        int poisoned = 0;
        for (int64_t i = 0; i < 100; i++) {
            for (int64_t h = 0; h < trial.problem.hq; h++) {
                bool nan = isnan(trial_lse(&trial, 0, i, h));
                poisoned += nan;
                for (int64_t c = 0; c < 8; c++) {
                    double x = trial_o(&trial, 0, i, h, c);
                    assert_true(nan ? isnan(x) : x == trial_o(&clean, 0, i, h, c));
                }
            }
        }
        assert_in_range(poisoned, 1, 100 * trial.problem.hq - 1);
        trial_close(&clean);
        trial_close(&trial);
    }
}

/* Every way to hide keys 60 and beyond from all rows. */
static const char *const hidden_from_all[] = {
    "used_k=60",
    "mask=k",
    "mask=bhqk",
    "bias=k",
    "bias=f16:qk",
    "causal=1 used_k=60",
    "window_left=-1 window_right=0 top_left=1",
};

/* The number of rows equals the number of visible keys, so the last case is causal over the first
 * 60 keys. */
static void hide_from_60_on(op_trial *trial)
{
    attn_tensor *tensors[] = {&trial->args->mask, &trial->args->bias};
    for (int n = 0; n < 2; n++) {
        if (tensors[n]->data != NULL) {
            attn_tensor shown = tensor_slice(*tensors[n], 3, 0, 60),
                        hidden = tensor_slice(*tensors[n], 3, 60, 40);
            tensor_fill(&shown, n == 0);
            tensor_fill(&hidden, n == 0 ? 0 : -(double)INFINITY);
        }
    }
}

static void test_keys_that_no_row_sees(void **state)
{
    static const char *const dtypes[] = {"f32", "f64", "f16", "bf16"};
    (void)state;
    for (size_t n = 0; n < sizeof hidden_from_all / sizeof hidden_from_all[0]; n++) {
        for (int value = 0; value < 4; value++) { /* the fourth time finite */
            op_trial clean = trial_open("nq=60 nk=100 hq=2 d=8 dtype=%s lse=1 row_max=1 %s",
                                        dtypes[n % 4], hidden_from_all[n]);
            op_trial trial = trial_open("nq=60 nk=100 hq=2 d=8 dtype=%s lse=1 row_max=1 %s",
                                        dtypes[n % 4], hidden_from_all[n]);
            attn_tensor k = tensor_slice(trial.args->k, 1, 60, 40),
                        v = tensor_slice(trial.args->v, 1, 60, 40);
            tensor_fill(&k, value < 3 ? leftovers[value] : 3e4);
            tensor_fill(&v, value < 3 ? leftovers[2 - value] : 3e4);
            hide_from_60_on(&clean);
            hide_from_60_on(&trial);
            trial_check(&clean);
            trial_run(&trial);
            assert_same_outputs(&trial, &clean);
            trial_close(&clean);
            trial_close(&trial);
        }
    }
}

/* NaN in Q: its own row and head, no other; nothing if the row is not in use. */
static void test_nan_queries(void **state)
{
    op_trial clean =
        trial_open("b=2 nq=40 nk=70 hq=4 hkv=2 d=8 dtype=f32 lse=1 used_q=40,30 used_k=70,50");
    op_trial trial =
        trial_open("b=2 nq=40 nk=70 hq=4 hkv=2 d=8 dtype=f32 lse=1 used_q=40,30 used_k=70,50");
    (void)state;
    inputs_store(&trial.args->q, 0, 7, 2, 5, (double)NAN);
    inputs_store(&trial.args->q, 1, 30, 1, 0, (double)NAN); /* beyond the length */
    trial_run(&clean);
    trial_check(&trial);
    for (int64_t n = 0; n < 2 * 40 * 4 * 8; n++) {
        int64_t b = n / 1280, i = n / 32 % 40, h = n / 8 % 4, c = n % 8;
        double x = trial_o(&trial, b, i, h, c);
        assert_true(b == 0 && i == 7 && h == 2 ? isnan(x) : x == trial_o(&clean, b, i, h, c));
    }
    trial_close(&clean);
    trial_close(&trial);
}

/* Rows of K and V between the sequences of a varlen call belong to nobody. */
static void test_rows_outside_sequences(void **state)
{
    op_trial clean =
        trial_open("lens_q=20,30,10 lens_k=30,20,70 hq=2 d=8 dtype=f32 lse=1 causal=1");
    op_trial trial =
        trial_open("lens_q=20,30,10 lens_k=30,20,70 hq=2 d=8 dtype=f32 lse=1 causal=1");
    /* rows 0-4, 55-59; keys 0-9, 110-119 */
    int32_t cu_q[] = {5, 20, 20, 55}, cu_k[] = {10, 30, 30, 110};
    (void)state;
    trial.args->cu_seqlens_q = clean.args->cu_seqlens_q =
        attn_tensor_bshd(cu_q, ATTN_I32, 4, 1, 1, 1);
    trial.args->cu_seqlens_k = clean.args->cu_seqlens_k =
        attn_tensor_bshd(cu_k, ATTN_I32, 4, 1, 1, 1);
    attn_tensor *tensors[] = {&trial.args->k, &trial.args->v};
    for (int n = 0; n < 2; n++) {
        attn_tensor before = tensor_slice(*tensors[n], 1, 0, 10),
                    after = tensor_slice(*tensors[n], 1, 110, 10);
        tensor_fill(&before, (double)NAN);
        tensor_fill(&after, (double)INFINITY);
    }
    trial_check(&clean);
    trial_run(&trial);
    assert_same_outputs(&trial, &clean);
    assert_true(trial_o(&trial, 0, 0, 0, 0) == 0 &&
                trial_lse(&trial, 0, 59, 1) == -(double)INFINITY);
    trial_close(&clean);
    trial_close(&trial);
}

/* The largest score of a row with a NaN among them is NaN, wherever the NaN is; a bias of +inf is
 * the largest, though LSE is NaN. */
static void test_row_max(void **state)
{
    static const int64_t place[] = {0, 33, 69};
    (void)state;
    for (int n = 0; n < 3; n++) {
        op_trial trial =
            trial_open("nq=3 nk=70 hq=1 d=4 dtype=f32 lse=1 row_max=1 causal=1 bias=qk");
        tensor_fill(&trial.args->bias, 0);
        inputs_store(&trial.args->k, 0, place[n], 0, 2, (double)NAN);
        inputs_store(&trial.args->bias, 0, 0, 1, 5, (double)INFINITY);
        trial_run(&trial);
        for (int64_t i = 0; i < 3; i++) {
            const double lse = trial_lse(&trial, 0, i, 0),
                         row_max = oracle_element(&trial.args->row_max, 0, i, 0, 0);
            const bool sees = place[n] <= 67 + i;
            assert_true(isnan(lse) == (sees || i == 1));
            assert_true(i == 1 ? row_max == (double)INFINITY : isnan(row_max) == sees);
        }
        trial_close(&trial);
    }
}

/* A lone NaN in each column of V, half of them in even keys and half in odd ones: so each place of
 * a panel's run of 32 numbers has one. */
static void test_a_nan_in_each_place(void **state)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    (void)state;
    for (int n = 0; n < 3; n++) {
        op_trial trial = trial_open("n=100 hq=2 d=64 dtype=%s lse=1 causal=1", dtypes[n]);
        for (int64_t c = 0; c < 64; c++) {
            inputs_store(&trial.args->v, 0, 20 + c / 16, c % 2, c, (double)NAN);
        }
        trial_check(&trial);
        trial_check_own_bits(&trial);
        trial_close(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_key_that_some_rows_see),
        cmocka_unit_test(test_a_nan_key),
        cmocka_unit_test(test_keys_that_no_row_sees),
        cmocka_unit_test(test_nan_queries),
        cmocka_unit_test(test_row_max),
        cmocka_unit_test(test_rows_outside_sequences),
        cmocka_unit_test(test_a_key_that_some_rows_see_on_tiles),
        cmocka_unit_test(test_a_nan_in_each_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
