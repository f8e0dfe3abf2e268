/*
 * test_grad_cases.c: gradients where they went wrong elsewhere: rows without keys, scores far from
 * 0, strides of 0 and below, gradients asked for one by one, many runs (contract, cases B16, B46,
 * B69, B101 to B104).
 */
#include "grad_trial.h"
#include "oracle.h"

static bool all_finite(const attn_tensor *t)
{
    for (int64_t at = 0; at < t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]; at++) {
        int64_t c = at % t->shape[3], h = at / t->shape[3] % t->shape[2],
                rest = at / t->shape[3] / t->shape[2];
        if (!isfinite(oracle_element(t, rest / t->shape[1], rest % t->shape[1], h, c))) {
            return false;
        }
    }
    return true;
}

static void assert_finite_gradients(const op_trial *trial)
{
    assert_true(all_finite(&trial->tensors.grad.dq));
    assert_true(all_finite(&trial->tensors.grad.dk));
    assert_true(all_finite(&trial->tensors.grad.dv));
}

/* B103: rows without a visible key, by mask or geometry, with LSE = -inf, and with an LSE of
 * -1e30. */
static void b103_rows_without_keys(void **state)
{
    static const char *const lines[] = {"nq=20 nk=5 causal=1",
                                        "nq=20 nk=70 mask=q",
                                        "nq=20 nk=70 bias=q",
                                        "nq=20 nk=0",
                                        "nq=20 nk=70 window_left=3 window_right=-40",
                                        "nq=20 nk=20 scale=-1e29"};
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        op_trial trial = trial_open("%s hq=2 d=8 dtype=%s pass=backward d_lse=%d", lines[n],
                                    n % 2 ? "f32" : "bf16", n % 3 == 0);
        if (n == 5) {
            tensor_fill(&trial.args->q, 1);
            tensor_fill(&trial.args->k, 1);
            grad_trial_forward(&trial);
            grad_trial_backward(&trial);
            assert_true(oracle_element(&trial.args->lse, 0, 0, 0, 0) < -1e29);
        } else {
            grad_trial_check(&trial);
        }
        assert_finite_gradients(&trial);
        for (int64_t at = 0; at < 20 * 2 * 8; at++) {
            bool empty = isinf(oracle_element(&trial.args->lse, 0, at / 16, at / 8 % 2, 0));
            assert_true(!empty || oracle_element(&trial.tensors.grad.dq, 0, at / 16, at / 8 % 2,
                                                 at % 8) == 0);
        }
        trial_close(&trial);
    }
}

/* B16: inputs of 5e8 and scores of 1e18: dV is dO of the rows whose largest score the key has; dQ
 * and dK are finite. */
static void b16_huge_scores(void **state)
{
    op_trial trial = trial_open("hq=1 nq=50 nk=50 d=64 dtype=f32 pass=backward");
    attn_backward_args *backward = &trial.tensors.grad;
    (void)state;
    for (int64_t at = 0; at < 50 * 64; at++) {
        int64_t i = at / 64, c = at % 64;
        inputs_store(&trial.args->q, 0, i, 0, c, (c == i ? 5e8 : 0));
        inputs_store(&trial.args->k, 0, i, 0, c, (c == i ? 5e8 : -5e8));
    }
    grad_trial_forward(&trial);
    grad_trial_backward(&trial);
    assert_finite_gradients(&trial);
    assert_same_tensor(&backward->dv, &backward->d_o);
    trial_close(&trial);
}

/* B101: one row, all scores shifted by -128. B102: q 5, k 3 in f16. B46: saturated softcaps. B69:
 * many more rows than keys. */
static void b_scores_of_all_sizes(void **state)
{
    static const char *const lines[] = {
        "nq=1 nk=128 hq=2 d=16 dtype=bf16 bias=1",
        "nq=128 nk=128 hq=2 d=16 dtype=f16 scale=3.75",
        "nq=17 nk=17 hq=2 d=16 dtype=f16 scale=3.75",
        "nq=40 nk=70 hq=2 d=16 dtype=f32 softcap=15 scale=3000",
        "lens_q=76,34,146 lens_k=1,2,3 hq=2 d=16 dtype=f32 scale=2.25",
        "lens_q=76,34,146 lens_k=1,2,3 hq=2 d=64 dtype=bf16 scale=1 causal=1",
    };
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        op_trial trial = trial_open("%s pass=backward", lines[n]);
        if (n == 0) {
            tensor_fill(&trial.args->bias, -128);
        }
        grad_trial_check(&trial);
        assert_finite_gradients(&trial);
        trial_close(&trial);
    }
}

/* dO, O, LSE and dLSE by broadcast and reversed views: the bits of copies. */
static void test_views(void **state)
{
    const char *line = "hq=2 nq=40 nk=70 d=8 dtype=f32 d_lse=1 pass=backward";
    op_trial view = trial_open("%s", line), copy = trial_open("%s", line);
    attn_backward_args *backward = &view.tensors.grad;
    attn_tensor same = tensor_slice(backward->d_o, 1, 7, 1), reversed = backward->d_lse;
    (void)state;
    same.shape[1] = 40, same.stride[1] = 0;
    tensor_copy(&copy.tensors.grad.d_o, &same);
    reversed.data = (char *)reversed.data + 39 * reversed.stride[1] * 4, reversed.stride[1] *= -1;
    tensor_copy(&copy.tensors.grad.d_lse, &reversed);
    grad_trial_check(&copy);
    grad_trial_forward(&view);
    backward->d_o = same, backward->d_lse = reversed;
    grad_trial_backward(&view);
    assert_same_gradients(&view.tensors.grad, &copy.tensors.grad);
    trial_close(&view);
    trial_close(&copy);
}

/* o_f32 has the values of an o of f32, and is read in place of o. */
static void test_o_f32(void **state)
{
    static const char *const dtypes[] = {"f16", "bf16"};
    (void)state;
    for (int n = 0; n < 2; n++) {
        const char *line = "hq=2 nq=40 nk=70 d=8 grad_dtype=f32 pass=backward dtype=";
        op_trial beside = trial_open("%s%s", line, dtypes[n]);
        op_trial alone = trial_open("%s%s o_dtype=f32", line, dtypes[n]);
        beside.args->o_f32 = alone.tensors.grad.dq; /* memory of the shape */
        grad_trial_forward(&beside);
        grad_trial_forward(&alone);
        assert_same_tensor(&beside.args->o_f32, &alone.args->o);
        tensor_fill(&beside.args->o, (double)NAN);
        grad_trial_backward(&beside);
        grad_trial_backward(&alone);
        assert_same_gradients(&beside.tensors.grad, &alone.tensors.grad);
        trial_close(&beside);
        trial_close(&alone);
    }
}

/* Each gradient alone has the bits that it has among all. */
static void one_by_one(const char *bias)
{
    const char *line =
        "hq=4 hkv=2 nq=120 nk=70 d=8 dtype=f32 causal=1 d_bias=f32 pass=backward bias=";
    op_trial all = trial_open("%s%s", line, bias), some = trial_open("%s%s", line, bias);
    attn_backward_args *args = &all.tensors.grad, *backward = &some.tensors.grad, full = *backward;
    attn_tensor *const mine[] = {&args->dq, &args->dk, &args->dv, &args->d_bias},
                       *const theirs[] = {&backward->dq, &backward->dk, &backward->dv,
                                          &backward->d_bias};
    grad_trial_check(&all);
    grad_trial_forward(&some);
    for (int n = 0; n < 16; n++) {
        *backward = full;
        for (int i = 0; i < 4; i++) {
            if (!(n >> i & 1)) {
                memset(theirs[i], 0, sizeof *theirs[i]);
            }
        }
        grad_trial_backward(&some);
        for (int i = 0; i < 4; i++) {
            if (n >> i & 1) {
                assert_same_tensor(mine[i], theirs[i]);
            }
        }
    }
    *backward = full;
    trial_close(&all);
    trial_close(&some);
}

static void test_one_by_one(void **state)
{
    (void)state;
    one_by_one("hk");
    one_by_one("hqk"); /* the passes of the others write it */
}

/* B104: 200 runs on up to 7 threads of a machine that may have fewer. */
#ifdef SLOW
enum { RUNS = 30 };
#else
enum { RUNS = 200 };
#endif

static void two_hundred_runs(const char *bias)
{
    const char *line =
        "b=2 hq=3 nq=130 nk=200 d=16 dtype=f32 d_bias=f32 dropout=0.1 pass=backward bias=";
    op_trial trial = trial_open("%s%s", line, bias);
    char sentence[256];
    size_t bytes;
    grad_trial_check(&trial);
    unsigned char *first = NULL;
    for (int n = 0; n < RUNS; n++) {
        assert_true(grad_runs_once(&trial.tensors.grad, NULL, 1 + n % 7,
                                   (enum runs_poison)(n % RUNS_POISONS), sentence,
                                   sizeof sentence));
        unsigned char *bits = grad_runs_copy(&trial.tensors.grad, &bytes);
        first = first ? first : bits;
        assert_memory_equal(bits, first, bytes);
        if (bits != first) {
            free(bits);
        }
    }
    free(first);
    trial_close(&trial);
}

/* d_bias summed by a pass, written by it, and from dS a second time. */
static void b104_two_hundred_runs(void **state)
{
    (void)state;
    two_hundred_runs("hk");
    two_hundred_runs("bhqk");
    two_hundred_runs("hqk");
}

/* Masks that show whole tiles, parts of them and nothing: blocks on the diagonal, others for each
 * head; rows upwards, then downwards, where later rows see earlier keys. */
static void test_masks_of_blocks(void **state)
{
    static const char *const lines[] = {
        "nq=300 nk=700 hq=2 d=8 dtype=f32 mask=hqk bias=hqk d_bias=f32",
        ("b=2 nq=130 nk=700 hq=4 hkv=2 d=8 dtype=f32 mask=bqk causal=1 dropout=0.2 alibi=h "
         "d_alibi=1"),
        "nq=130 nk=600 hq=2 d=8 dtype=f64 mask=i32:qk window_left=500 bias=k d_bias=f32 d_lse=1",
    };
    (void)state;
    for (size_t run = 0; run < 2 * sizeof lines / sizeof lines[0]; run++) {
        op_trial trial = trial_open("%s pass=backward", lines[run / 2]);
        const int64_t *n = trial.args->mask.shape;
        for (int64_t at = 0; at < n[0] * n[1] * n[2] * n[3]; at++) {
            const int64_t j = at % n[3], i = at / n[3] % n[2], h = at / n[3] / n[2] % n[1],
                          b = at / n[3] / n[2] / n[1];
            const bool visible = (i * n[3] / n[2] + 70 * h) / 150 == j / 150 && i % 48 < 40;
            inputs_store(&trial.args->mask, b, h, run % 2 ? n[2] - 1 - i : i, j, visible);
        }
        grad_trial_check(&trial);
        trial_close(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_of_blocks), cmocka_unit_test(b103_rows_without_keys),
        cmocka_unit_test(b16_huge_scores),      cmocka_unit_test(b_scores_of_all_sizes),
        cmocka_unit_test(test_views),           cmocka_unit_test(test_o_f32),
        cmocka_unit_test(test_one_by_one),      cmocka_unit_test(b104_two_hundred_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
