/*
 * test_grad_relations.c: relations of gradients that need no oracle: central differences of the
 * library's own forward pass in f64 (R15), relations R8 to R11 of the contract, and gradients of
 * parts of the keys.
 */
#include "grad_trial.h"
#include "oracle.h"
#include "tables.h"

/* ---- R15: central differences ---------------------------------------------------------------- */

/* L = sum dO O + sum dLSE LSE */
static double loss(op_trial *trial)
{
    const attn_backward_args *backward = &trial->tensors.grad;
    const int64_t *n = backward->d_o.shape;
    double sum = 0;
    assert_int_equal(attn_forward(tables_context(NULL, 2), trial->args), ATTN_OK);
    for (int64_t at = 0; at < n[0] * n[1] * n[2]; at++) {
        int64_t h = at % n[2], i = at / n[2] % n[1], b = at / n[2] / n[1];
        double lse = oracle_element(&trial->args->lse, b, i, h, 0);
        sum += backward->d_lse.data && isfinite(lse)
                   ? oracle_element(&backward->d_lse, b, i, h, 0) * lse
                   : 0;
        for (int64_t c = 0; c < n[3]; c++) {
            sum += oracle_element(&backward->d_o, b, i, h, c) *
                   oracle_element(&trial->args->o, b, i, h, c);
        }
    }
    return sum;
}

/* dL/dx of one element by differences of fourth order. */
static double difference(op_trial *trial, const attn_tensor *x, const int64_t at[4])
{
    static const double steps[] = {-2, -1, 1, 2}, weights[] = {1, -8, 8, -1};
    const double h = 1e-3, before = oracle_element(x, at[0], at[1], at[2], at[3]);
    double sum = 0;
    for (int n = 0; n < 4; n++) {
        inputs_store(x, at[0], at[1], at[2], at[3], before + steps[n] * h);
        sum += weights[n] * loss(trial);
    }
    inputs_store(x, at[0], at[1], at[2], at[3], before);
    return sum / (12 * h);
}

/* Some elements of x. Masked biases stay as they are. */
static void compare_with_differences(op_trial *trial, const attn_tensor *x,
                                     const attn_tensor *gradient)
{
    for (int n = 0; n < 6 && x->data != NULL; n++) {
        int64_t at[4];
        for (int a = 0; a < 4; a++) {
            at[a] = (int64_t)(inputs_bits(9, a, n) >> 8) % x->shape[a];
        }
        double got = oracle_element(gradient, at[0], at[1], at[2], at[3]);
        if (isfinite(oracle_element(x, at[0], at[1], at[2], at[3]))) {
            double want = difference(trial, x, at);
            assert_near(got, want, 1e-7 * (1 + fabs(want)));
        }
    }
}

static void r15_central_differences(void **state)
{
    static const char *const lines[] = {
        "b=2 hq=4 hkv=2 nq=9 nk=20 d=5 dv=7",
        "hq=2 nq=30 nk=70 d=8 causal=1 scale=-0.4 d_lse=1",
        "hq=2 nq=20 nk=40 d=8 softcap=0.8 window_left=9 window_right=3 d_lse=1",
        "b=2 hq=4 hkv=2 nq=9 nk=20 d=5 bias=f64:hq alibi=h sinks=h d_bias=f64 d_alibi=1 d_sinks=1 "
        "d_lse=1",
        "hq=2 nq=9 nk=20 d=5 bias=f64:qk alibi=1 sinks=bh d_bias=f64 d_alibi=1 d_sinks=1 mask=qk "
        "softcap=2 dropout=.3",
        "lens_q=5,0,9 lens_k=20,3,7 hq=2 d=5 bias=f64:k sinks=h d_bias=f64 d_sinks=1 d_lse=1 "
        "causal=1 dropout=0.1",
    };
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        op_trial trial = trial_open("%s dtype=f64 pass=backward", lines[n]);
        const attn_forward_args *forward = trial.args;
        const attn_backward_args *backward = &trial.tensors.grad;
        grad_trial_check(&trial);
        compare_with_differences(&trial, &forward->q, &backward->dq);
        compare_with_differences(&trial, &forward->k, &backward->dk);
        compare_with_differences(&trial, &forward->v, &backward->dv);
        compare_with_differences(&trial, &forward->bias, &backward->d_bias);
        compare_with_differences(&trial, &forward->alibi_slopes, &backward->d_alibi_slopes);
        compare_with_differences(&trial, &forward->sinks, &backward->d_sinks);
        trial_close(&trial);
    }
}

/* ---- R8: a sequence alone, in a padded batch, in a varlen call ------------------------------- */

static void copy_sequence(const op_trial *to, int64_t b, const op_trial *from, int64_t q_at,
                          int64_t k_at, int64_t nq, int64_t nk)
{
    const attn_backward_args *from_grad = &from->tensors.grad, *to_grad = &to->tensors.grad;
    const attn_forward_args *forward = from->args, *g = to->args;
    const attn_tensor *pairs[4][2] = {{&forward->q, &g->q},
                                      {&from_grad->d_o, &to_grad->d_o},
                                      {&forward->k, &g->k},
                                      {&forward->v, &g->v}};
    for (int n = 0; n < 4; n++) {
        attn_tensor source = tensor_slice(*pairs[n][0], 1, n < 2 ? q_at : k_at, n < 2 ? nq : nk);
        attn_tensor target =
            tensor_slice(tensor_slice(*pairs[n][1], 0, b, 1), 1, 0, n < 2 ? nq : nk);
        tensor_copy(&target, &source);
    }
}

static void r8_batches(void **state)
{
    static const int64_t nq[] = {20, 3, 40}, nk[] = {70, 9, 130}, q_at[] = {0, 20, 23},
                         k_at[] = {0, 70, 79};
    static const char *const dtypes[] = {"f64", "f32", "bf16"};
    (void)state;
    for (int n = 0; n < 3; n++) {
        const char *line = "hq=4 hkv=2 d=16 causal=1 pass=backward dtype=";
        op_trial varlen = trial_open("lens_q=20,3,40 lens_k=70,9,130 %s%s", line, dtypes[n]);
        op_trial padded =
            trial_open("b=3 nq=45 nk=140 used_q=20,3,40 used_k=70,9,130 %s%s", line, dtypes[n]);
        tensor_fill(&padded.args->k, (double)NAN); /* padding may hold anything */
        tensor_fill(&padded.args->v, (double)NAN);
        tensor_fill(&padded.tensors.grad.d_o, (double)NAN);
        for (int s = 0; s < 3; s++) {
            copy_sequence(&padded, s, &varlen, q_at[s], k_at[s], nq[s], nk[s]);
        }
        grad_trial_check(&varlen);
        grad_trial_forward(&padded);
        grad_trial_backward(&padded);
        for (int s = 0; s < 3; s++) {
            op_trial alone =
                trial_open("nq=%d nk=%d %s%s", (int)nq[s], (int)nk[s], line, dtypes[n]);
            copy_sequence(&alone, 0, &varlen, q_at[s], k_at[s], nq[s], nk[s]);
            grad_trial_forward(&alone);
            grad_trial_backward(&alone);
            const attn_backward_args *args = &alone.tensors.grad, *v = &varlen.tensors.grad,
                                     *p = &padded.tensors.grad;
            const attn_tensor *rows[3][3] = {{&args->dq, &v->dq, &p->dq},
                                             {&args->dk, &v->dk, &p->dk},
                                             {&args->dv, &v->dv, &p->dv}};
            for (int i = 0; i < 3; i++) {
                attn_tensor in_varlen =
                    tensor_slice(*rows[i][1], 1, i ? k_at[s] : q_at[s], i ? nk[s] : nq[s]);
                attn_tensor in_batch =
                    tensor_slice(tensor_slice(*rows[i][2], 0, s, 1), 1, 0, i ? nk[s] : nq[s]);
                attn_tensor rest =
                    tensor_slice(tensor_slice(*rows[i][2], 0, s, 1), 1, i ? nk[s] : nq[s], 5);
                attn_tensor zero = tensor_slice(*rows[i][0], 1, 0, 1);
                assert_same_tensor(rows[i][0], &in_varlen);
                assert_same_tensor(rows[i][0], &in_batch);
                tensor_fill(&zero, 0);
                for (int j = 0; j < 5; j++) {
                    attn_tensor line_of_rest = tensor_slice(rest, 1, j, 1);
                    assert_same_tensor(&zero, &line_of_rest);
                }
            }
            trial_close(&alone);
        }
        trial_close(&varlen);
        trial_close(&padded);
    }
}

/* ---- R9, R10, R11 ---------------------------------------------------------------------------- */

/* dV does not depend on V. */
static void r9_dv_without_v(void **state)
{
    op_trial trial = trial_open("hq=2 nq=70 nk=130 d=16 dtype=f32 causal=1 pass=backward");
    op_trial other = trial_open("hq=2 nq=70 nk=130 d=16 dtype=f32 causal=1 pass=backward");
    (void)state;
    tensor_fill(&other.args->v, -3);
    grad_trial_check(&trial);
    grad_trial_check(&other);
    assert_same_tensor(&trial.tensors.grad.dv, &other.tensors.grad.dv);
    trial_close(&trial);
    trial_close(&other);
}

static double column_sum(const attn_tensor *t, int64_t h, int64_t c)
{
    double sum = 0;
    for (int64_t i = 0; i < t->shape[1]; i++) {
        sum += oracle_element(t, 0, i, h, c);
    }
    return sum;
}

/* Rows of dS sum to 0: so do the keys' gradients if all queries are equal; and if all keys are, dQ
 * is 0. Rows of P sum to 1: dV sums to the dO of rows that see a key. */
static void r10_r11_sums(void **state)
{
    op_trial trial = trial_open("hq=2 nq=70 nk=130 d=16 dtype=f32 causal=1 pass=backward");
    (void)state;
    tensor_fill(&trial.args->q, 0.7);
    grad_trial_check(&trial);
    for (int64_t h = 0; h < 2; h++) {
        for (int64_t c = 0; c < 16; c++) {
            assert_near(column_sum(&trial.tensors.grad.dk, h, c), 0, 70 * 0x1p-20);
            assert_near(column_sum(&trial.tensors.grad.dv, h, c),
                        column_sum(&trial.tensors.grad.d_o, h, c), 70 * 0x1p-20);
        }
    }
    trial_close(&trial);
    op_trial other = trial_open("hq=2 nq=70 nk=130 d=16 dtype=f32 inputs=equal pass=backward");
    grad_trial_check(&other);
    for (int64_t at = 0; at < 70 * 2 * 16; at++) {
        assert_near(oracle_element(&other.tensors.grad.dq, 0, at / 32, at / 16 % 2, at % 16), 0,
                    0x1p-20);
    }
    trial_close(&other);
}

/* ---- d_bias in the shape of the scores ------------------------------------------------------- */

/* In a varlen call it is summed over sequences, otherwise it is written as it comes up: of one
 * sequence the same. */
static void test_bias_summed_or_written(void **state)
{
    static const char *const lines[] = {
        "hq=4 hkv=2 d=16 dtype=f32 causal=1 bias=hqk d_bias=f32 pass=backward scale=-0.3",
        ("hq=2 d=8 dtype=f64 window_left=70 window_right=3 bias=f64:hqk d_bias=f32 dropout=0.2 "
         "pass=backward"),
        "hq=2 d=8 dtype=bf16 softcap=3 bias=f16:hqk d_bias=f16 pass=backward",
    };
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        op_trial written = trial_open("nq=230 nk=150 %s", lines[n]);
        op_trial summed = trial_open("lens_q=230 lens_k=150 %s", lines[n]);
        copy_sequence(&summed, 0, &written, 0, 0, 230, 150);
        tensor_copy(&summed.args->bias, &written.args->bias);
        grad_trial_forward(&written);
        grad_trial_forward(&summed);
        grad_trial_backward(&written);
        grad_trial_backward(&summed);
        assert_same_tensor(&written.tensors.grad.d_bias, &summed.tensors.grad.d_bias);
        trial_close(&written);
        trial_close(&summed);
    }
}

/* ---- parts of the keys, as in a ring --------------------------------------------------------- */

/* Keys 0 .. 127 and 128 .. 199 apart, with o and lse of all: dK and dV are the same bits, dQ is the
 * sum. */
static void test_parts_of_the_keys(void **state)
{
    op_trial all = trial_open("hq=4 hkv=2 nq=50 nk=200 d=16 dtype=f32 pass=backward");
    attn_backward_args *backward = &all.tensors.grad;
    (void)state;
    grad_trial_check(&all);
    op_trial sum = trial_open("hq=4 hkv=2 nq=50 nk=200 d=16 dtype=f32 pass=backward");
    for (int part = 0; part < 2; part++) {
        int64_t first = part ? 128 : 0, n = part ? 72 : 128;
        attn_forward_args forward = *backward->forward;
        attn_backward_args args = *backward;
        args.forward = &forward;
        forward.k = tensor_slice(all.args->k, 1, first, n);
        forward.v = tensor_slice(all.args->v, 1, first, n);
        args.dq = sum.tensors.grad.dq;
        args.dk = tensor_slice(sum.tensors.grad.dk, 1, first, n),
        args.dv = tensor_slice(sum.tensors.grad.dv, 1, first, n);
        assert_int_equal(attn_backward(tables_context(tables_usual(), 2), &args), ATTN_OK);
        for (int64_t at = 0; at < 50 * 4 * 16; at++) { /* the rest of dQ */
            int64_t i = at / 64, h = at / 16 % 4, c = at % 16;
            double left =
                oracle_element(&backward->dq, 0, i, h, c) - oracle_element(&args.dq, 0, i, h, c);
            inputs_store(&backward->dq, 0, i, h, c, left);
            assert_true(part == 0 || fabs(left) <= 0x1p-20);
        }
    }
    assert_same_tensor(&backward->dk, &sum.tensors.grad.dk);
    assert_same_tensor(&backward->dv, &sum.tensors.grad.dv);
    trial_close(&all);
    trial_close(&sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r15_central_differences), cmocka_unit_test(r8_batches),
        cmocka_unit_test(r9_dv_without_v),         cmocka_unit_test(r10_r11_sums),
        cmocka_unit_test(test_parts_of_the_keys),  cmocka_unit_test(test_bias_summed_or_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
