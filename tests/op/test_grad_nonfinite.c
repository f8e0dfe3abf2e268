/*
 * test_grad_nonfinite.c: NaN and infinities in the inputs of the backward pass (contract C4): they
 * poison the results that see them, and nothing else.
 */
#include "grad_trial.h"
#include "oracle.h"
#include "tables.h"

/* Rows of `got` that are to be NaN throughout are, the others have the bits of `clean`. */
static void assert_poisoned(const attn_tensor *got, const attn_tensor *clean,
                            bool (*poisoned)(int64_t i, int64_t c))
{
    for (int64_t at = 0; at < got->shape[1] * got->shape[2] * got->shape[3]; at++) {
        int64_t c = at % got->shape[3], h = at / got->shape[3] % got->shape[2],
                i = at / got->shape[3] / got->shape[2];
        double x = oracle_element(got, 0, i, h, c), y = oracle_element(clean, 0, i, h, c);
        if (poisoned(i, c) ? !isnan(x) : x != y) {
            fail_msg("row %lld column %lld: %g, without the NaN %g", (long long)i, (long long)c, x,
                     y);
        }
    }
}

static bool none(int64_t i, int64_t c)
{
    return (void)i, (void)c, false;
}

static bool all(int64_t i, int64_t c)
{
    return (void)i, (void)c, true;
}

static bool row_30(int64_t i, int64_t c)
{
    return (void)c, i == 30;
}

static bool up_to_30(int64_t i, int64_t c)
{
    return (void)c, i <= 30;
}

static bool up_to_30_in_column_2(int64_t i, int64_t c)
{
    return i <= 30 && c == 2;
}

static bool from_30(int64_t i, int64_t c)
{
    return (void)c, i >= 30;
}

/* A NaN, or the one of all bits set, which rounding to fewer bits by adding makes a zero. */
static void poison(attn_tensor t, bool ones)
{
    const size_t size = attn_dtype_size(t.dtype);
    for (int64_t h = 0; h < t.shape[2]; h++) {
        attn_tensor one = tensor_slice(tensor_slice(tensor_slice(t, 1, 30, 1), 3, 2, 1), 2, h, 1);
        tensor_fill(&one, (double)NAN);
        if (ones) {
            memset(one.data, 0xFF, size);
        }
    }
}

/* On tables with the usual bits, or on the one named. */
static void forward_on(op_trial *trial, const char *table)
{
    char sentence[512];
    if (table == NULL) {
        grad_trial_forward(trial);
    } else {
        assert_true(runs_once(trial->args, table, 2, RUNS_NOISE, sentence, sizeof sentence));
    }
}

static void backward_on(op_trial *trial, const char *table)
{
    char sentence[512];
    if (table == NULL) {
        grad_trial_backward(trial);
    } else {
        assert_true(
            grad_runs_once(&trial->tensors.grad, table, 2, RUNS_NOISE, sentence, sizeof sentence));
    }
}

/* A NaN in row 30 of dO, under a causal mask: dQ of that row, dK of the keys it sees, and that
 * column of their dV. A NaN in row 30 of V: dQ of the rows from 30 on, which see it, and dK of that
 * key. */
static void poisons_what_sees_it(const char *dtype, const char *table, bool ones)
{
    const char *line = "hq=2 nq=100 nk=100 d=8 dtype=%s causal=1 pass=backward";
    op_trial clean = trial_open(line, dtype), d_o = trial_open(line, dtype),
             v = trial_open(line, dtype);
    const attn_backward_args *args = &clean.tensors.grad, *backward = &d_o.tensors.grad,
                             *c = &v.tensors.grad;
    forward_on(&clean, table);
    backward_on(&clean, table);
    poison(backward->d_o, ones);
    forward_on(&d_o, table);
    backward_on(&d_o, table);
    assert_poisoned(&backward->dq, &args->dq, row_30);
    assert_poisoned(&backward->dk, &args->dk, up_to_30);
    assert_poisoned(&backward->dv, &args->dv, up_to_30_in_column_2);
    forward_on(&v, table); /* V is spoilt after the forward pass: o and lse are clean */
    poison(v.args->v, ones);
    backward_on(&v, table);
    assert_poisoned(&c->dq, &args->dq, from_30);
    assert_poisoned(&c->dk, &args->dk, row_30);
    assert_poisoned(&c->dv, &args->dv, none);
    trial_close(&clean);
    trial_close(&d_o);
    trial_close(&v);
}

static void c4_a_nan_poisons_what_sees_it(void **state)
{
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    int own;
    const char *const *tables = tables_own_bits(&own);
    (void)state;
    for (int n = 0; n < 8 * (own + 1); n++) {
        poisons_what_sees_it(dtypes[n / 2 % 4], n < 8 ? NULL : tables[n / 8 - 1], n % 2);
    }
}

static bool up_to_its_row(int64_t i, int64_t c)
{
    return i <= 20 + c / 16;
}

/* A lone NaN in each column of dO, half of them in even rows and half in odd ones, so in each place
 * of a panel's run of 32 numbers: each spoils its column of dV up to its row, and no other. */
static void c4_a_nan_in_each_place(void **state)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    const char *line = "hq=1 nq=50 nk=50 d=64 dtype=%s causal=1 pass=backward";
    int own;
    const char *const *tables = tables_own_bits(&own);
    (void)state;
    for (int n = 0; n < 3 * (own + 1); n++) {
        const char *table = n < 3 ? NULL : tables[n / 3 - 1];
        op_trial clean = trial_open(line, dtypes[n % 3]), spoilt = trial_open(line, dtypes[n % 3]);
        for (int64_t c = 0; c < 64; c++) {
            inputs_store(&spoilt.tensors.grad.d_o, 0, 20 + c / 16, 0, c, (double)NAN);
        }
        forward_on(&clean, table), backward_on(&clean, table);
        forward_on(&spoilt, table), backward_on(&spoilt, table);
        assert_poisoned(&spoilt.tensors.grad.dv, &clean.tensors.grad.dv, up_to_its_row);
        trial_close(&clean);
        trial_close(&spoilt);
    }
}

/* Row 30 of Q is NaN, or key 30, and so is the LSE of row 30, or of all rows from it on: a NaN in
 * their dQ, in dK and dV of the keys they see and in the gradients of bias there; whatever they do
 * not see is as it was. The group is as wide as a strip, so that on some tables all rows of a strip
 * see the same keys. */
static void nan_rows(const char *dtype, const char *bias, const char *table, bool key)
{
    const char *line =
        "hq=32 hkv=1 nq=40 nk=40 d=8 dtype=%s causal=1 bias=%s d_bias=f32 pass=backward";
    op_trial clean = trial_open(line, dtype, bias), trial = trial_open(line, dtype, bias);
    const attn_backward_args *args = &clean.tensors.grad, *backward = &trial.tensors.grad;
    tensor_fill(&clean.args->bias, 0.5);
    tensor_fill(&trial.args->bias, 0.5);
    forward_on(&clean, table);
    backward_on(&clean, table);
    poison(key ? trial.args->k : trial.args->q, false);
    forward_on(&trial, table);
    backward_on(&trial, table);
    assert_poisoned(&backward->dq, &args->dq, key ? from_30 : row_30);
    assert_poisoned(&backward->dk, &args->dk, key ? all : up_to_30);
    assert_poisoned(&backward->dv, &args->dv, key ? all : up_to_30);
    for (int64_t i = 0; i < backward->d_bias.shape[2]; i++) {
        for (int64_t j = 0; j < 40; j++) {
            const bool nan = backward->d_bias.shape[2] == 1 ? key || j <= 30
                                                            : (key ? i >= 30 : i == 30) && j <= i;
            const double x = oracle_element(&backward->d_bias, 0, 0, i, j),
                         y = oracle_element(&args->d_bias, 0, 0, i, j);
            if (nan ? !isnan(x) : x != y) {
                fail_msg("%s %s: d_bias of query %lld, key %lld: %g, without the NaN %g",
                         table ? table : "usual bits", bias, (long long)i, (long long)j, x, y);
            }
        }
    }
    trial_close(&clean);
    trial_close(&trial);
}

static void c4_nan_rows_poison_what_they_see(void **state)
{
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"}, *const biases[] = {"k", "qk",
                                                                                          "hqk"};
    int own;
    const char *const *tables = tables_own_bits(&own);
    (void)state;
    for (int n = 0; n < 24 * (own + 1); n++) {
        nan_rows(dtypes[n % 4], biases[n / 4 % 3], n < 24 ? NULL : tables[n / 24 - 1], n / 12 % 2);
    }
}

/* A NaN makes some of a call's items go the careful way, and the items depend on the threads. */
static void c7_a_nan_and_threads(void **state)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    int own;
    const char *const *tables = tables_own_bits(&own);
    (void)state;
    for (int n = 0; n < 3 * own; n++) {
        op_trial trial =
            trial_open("hq=1 n=300 d=16 dtype=%s causal=1 pass=backward", dtypes[n % 3]);
        char sentence[512];
        size_t bytes;
        inputs_store(&trial.args->v, 0, 290, 0, 2, (double)NAN);
        forward_on(&trial, tables[n / 3]);
        assert_true(grad_runs_once(&trial.tensors.grad, tables[n / 3], 1, RUNS_NOISE, sentence,
                                   sizeof sentence));
        unsigned char *one = grad_runs_copy(&trial.tensors.grad, &bytes);
        assert_true(grad_runs_once(&trial.tensors.grad, tables[n / 3], 3, RUNS_ONES, sentence,
                                   sizeof sentence));
        unsigned char *three = grad_runs_copy(&trial.tensors.grad, &bytes);
        assert_memory_equal(one, three, bytes);
        free(one);
        free(three);
        trial_close(&trial);
    }
}

/* A key of -inf whose scores are all -inf: P is 0, so its dK and dV are 0 too, however many lanes
 * of a strip are rows; with a softcap they are finite. (Where numbers are sums of parts, an
 * infinity is NaN.) */
static void an_infinite_key(void **state)
{
    (void)state;
    for (int64_t nq = 1; nq <= 33; nq += nq < 6 ? 1 : 9) {
        for (int n = 0; n < 4; n++) {
            const bool capped = n / 2;
            op_trial trial = trial_open("nq=%d nk=70 hq=1 d=8 dtype=%s softcap=%d pass=backward",
                                        (int)nq, n % 2 ? "f64" : "f32", 5 * capped);
            const attn_backward_args *backward = &trial.tensors.grad;
            tensor_fill(&trial.args->q, 0.5);
            inputs_store(&trial.args->k, 0, 7, 0, 2, -(double)INFINITY);
            grad_trial_forward(&trial);
            grad_trial_backward(&trial);
            for (int64_t c = 0; c < 8; c++) {
                const double dk = oracle_element(&backward->dk, 0, 7, 0, c),
                             dv = oracle_element(&backward->dv, 0, 7, 0, c);
                assert_true(dk == 0 && (capped ? isfinite(dv) : dv == 0));
            }
            trial_close(&trial);
        }
    }
}

/* An infinite dO makes dV of the keys that its row sees infinite in its column, with its sign; two
 * of either sign make NaN. The numbers lie in several words of 64 columns and in several strips. */
static void infinities_of_d_o_keep_their_signs(void **state)
{
    static const struct sown {
        int64_t row, column;
        double value;
    } sown[] = {{1, 2, (double)INFINITY},
                {3, 5, -(double)INFINITY},
                {1, 66, -(double)INFINITY},
                {90, 66, (double)INFINITY},
                {90, 69, (double)INFINITY}};
    (void)state;
    for (int n = 0; n < 2; n++) {
        op_trial trial = trial_open("hq=1 nq=100 d=8 dv=70 dtype=%s causal=1 precise=1 lse=1 "
                                    "pass=backward",
                                    n ? "f64" : "f32");
        const attn_backward_args *backward = &trial.tensors.grad;
        grad_trial_forward(&trial);
        for (int i = 0; i < 5; i++) {
            inputs_store(&backward->d_o, 0, sown[i].row, 0, sown[i].column, sown[i].value);
        }
        grad_trial_backward(&trial);
        for (int64_t j = 0; j < 100; j++) {
            for (int64_t c = 0; c < 70; c++) {
                double special = 0;
                for (int i = 0; i < 5; i++) {
                    special += j <= sown[i].row && c == sown[i].column ? sown[i].value : 0;
                }
                const double dv = oracle_element(&backward->dv, 0, j, 0, c);
                assert_true(special == 0 ? isfinite(dv)
                                         : dv == special || (isnan(special) && isnan(dv)));
            }
        }
        trial_close(&trial);
    }
}

/* Unseen places may hold anything: keys behind a boolean mask, rows and keys beyond the lengths. */
static void c4_what_is_masked_has_no_influence(void **state)
{
    const char *line =
        "hq=2 nq=40 nk=90 d=8 dtype=f32 mask=k pass=backward used_q=33 used_k=80 sinks=h d_sinks=1";
    op_trial clean = trial_open("%s", line), spoilt = trial_open("%s", line);
    const attn_forward_args *forward = spoilt.args;
    (void)state;
    for (int64_t j = 0; j < 90; j++) {
        bool hidden = j >= 80 || oracle_element(&forward->mask, 0, 0, 0, j) == 0;
        attn_tensor k = tensor_slice(forward->k, 1, j, hidden),
                    v = tensor_slice(forward->v, 1, j, hidden);
        tensor_fill(&k, j % 2 ? (double)NAN : (double)INFINITY);
        tensor_fill(&v, j % 3 ? (double)NAN : 1e38);
    }
    attn_tensor q = tensor_slice(forward->q, 1, 33, 7),
                d_o = tensor_slice(spoilt.tensors.grad.d_o, 1, 33, 7);
    tensor_fill(&q, (double)NAN);
    tensor_fill(&d_o, (double)INFINITY);
    grad_trial_check(&clean);
    grad_trial_forward(&spoilt);
    grad_trial_backward(&spoilt);
    assert_same_gradients(&clean.tensors.grad, &spoilt.tensors.grad);
    trial_close(&clean);
    trial_close(&spoilt);
}

/* One query under a causal mask sees key 0 of nine. An infinite dO, or Q, is that key's alone. */
static void c4_keys_that_no_row_sees_get_0(void **state)
{
    (void)state;
    for (int of_q = 0; of_q < 2; of_q++) {
        op_trial trial = trial_open("hq=1 nq=1 nk=9 d=1 dtype=f32 causal=1 top_left=1 lse=1 "
                                    "pass=backward");
        const attn_backward_args *backward = &trial.tensors.grad;
        tensor_fill(&trial.args->q, 1);
        grad_trial_forward(&trial);
        tensor_fill(of_q ? &trial.args->q : &backward->d_o, (double)INFINITY);
        grad_trial_backward(&trial);
        assert_true(!isfinite(oracle_element(&backward->dv, 0, 0, 0, 0)) == !of_q);
        for (int64_t j = 1; j < 9; j++) {
            assert_true(oracle_element(&backward->dv, 0, j, 0, 0) == 0);
            assert_true(oracle_element(&backward->dk, 0, j, 0, 0) == 0);
        }
        trial_close(&trial);
    }
}

/* Keys behind those in use, whose end lies within a tile of every table, get 0 from an infinite
 * dO. */
static void c4_keys_behind_seqused_get_0(void **state)
{
    (void)state;
    op_trial trial = trial_open("hq=1 nq=5 nk=130 d=8 dtype=f64 used_k=54 lse=1 pass=backward");
    const attn_backward_args *backward = &trial.tensors.grad;
    attn_tensor row = tensor_slice(backward->d_o, 1, 2, 1);
    grad_trial_forward(&trial);
    tensor_fill(&row, (double)INFINITY);
    grad_trial_backward(&trial);
    for (int64_t j = 54; j < 130; j++) {
        assert_true(oracle_element(&backward->dv, 0, j, 0, 3) == 0);
        assert_true(oracle_element(&backward->dk, 0, j, 0, 3) == 0);
    }
    trial_close(&trial);
}

/* dS = -p1 for the first key, -6.8e-46: less than the smallest float, and rounded to 16 bits. */
static void tiny_negative_gradients_are_numbers(void **state)
{
    (void)state;
    static const char *const types[] = {"f16", "bf16"};
    for (int i = 0; i < 2; i++) {
        op_trial trial = trial_open("hq=1 nq=1 nk=2 d=1 dtype=f64 bias=f64:k d_bias=%s lse=1 "
                                    "pass=backward",
                                    types[i]);
        tensor_fill(&trial.args->q, 0);
        tensor_fill(&trial.tensors.grad.d_o, 1);
        for (int64_t j = 0; j < 2; j++) {
            inputs_store(&trial.args->v, 0, j, 0, 0, (double)j);
            inputs_store(&trial.args->bias, 0, 0, 0, j, -104.0 * (double)j);
        }
        grad_trial_forward(&trial);
        grad_trial_backward(&trial);
        assert_true(oracle_element(&trial.tensors.grad.d_bias, 0, 0, 0, 0) == 0);
        assert_true(oracle_element(&trial.tensors.grad.d_bias, 0, 0, 0, 1) == 0);
        trial_close(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c4_a_nan_poisons_what_sees_it),
        cmocka_unit_test(c4_nan_rows_poison_what_they_see),
        cmocka_unit_test(c4_a_nan_in_each_place),
        cmocka_unit_test(c7_a_nan_and_threads),
        cmocka_unit_test(an_infinite_key),
        cmocka_unit_test(infinities_of_d_o_keep_their_signs),
        cmocka_unit_test(c4_what_is_masked_has_no_influence),
        cmocka_unit_test(c4_keys_that_no_row_sees_get_0),
        cmocka_unit_test(c4_keys_behind_seqused_get_0),
        cmocka_unit_test(tiny_negative_gradients_are_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
