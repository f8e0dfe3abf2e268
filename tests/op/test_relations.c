/*
 * test_relations.c: relations between calls, without an oracle: the contract's R1 .. R4, R6 .. R8
 * and R12 .. R14 for the forward pass. (R5: test_splits.c.)
 */
#include "trial.h"

#include <stdio.h>

static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};

/* Problems of every kind for the relations that do not depend on one. */
static const char *const kinds[] = {
    "b=2 nq=30 nk=150 hq=2 d=24",
    "b=1 nq=70 nk=90 hq=4 hkv=2 d=16 causal=1",
    "b=1 n=100 hq=2 d=16 window_left=40 window_right=7",
    "b=2 nq=20 nk=130 hq=2 d=8 mask=bqk alibi=h softcap=20",
    "lens_q=30,0,50 lens_k=80,3,40 hq=2 d=8 causal=1",
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Calls visit for the flat index of each element of o. */
static void each_o(const op_trial *trial,
                   void (*visit)(const op_trial *trial, int64_t b, int64_t i, int64_t h, int64_t c))
{
    const int64_t *n = trial->args->o.shape;
    for (int64_t at = 0; at < n[0] * n[1] * n[2] * n[3]; at++) {
        visit(trial, at / n[3] / n[2] / n[1], at / n[3] / n[2] % n[1], at / n[3] % n[2], at % n[3]);
    }
}

static bool is_empty_row(const op_trial *trial, int64_t b, int64_t i, int64_t h)
{
    return trial_lse(trial, b, i, h) == -(double)INFINITY;
}

/* A few ulp of the sums' type; the 16-bit types absorb them. */
static double slack(const op_trial *trial)
{
    return trial->problem.dtype == ATTN_F64   ? 0x1p-49
           : trial->problem.dtype == ATTN_F32 ? 0x1p-20
                                              : 0;
}

static void is_one(const op_trial *trial, int64_t b, int64_t i, int64_t h, int64_t c)
{
    assert_near(trial_o(trial, b, i, h, c), is_empty_row(trial, b, i, h) ? 0 : 1, 0);
}

static void is_constant(const op_trial *trial, int64_t b, int64_t i, int64_t h, int64_t c)
{
    assert_near(trial_o(trial, b, i, h, c), is_empty_row(trial, b, i, h) ? 0 : -1.75,
                1.75 * slack(trial));
}

/* V = 1 gives 1 exactly, since products and probabilities are then summed alike; any other constant
 * is exact but for the rounding of its products. */
static void r1_constant_values(void **state)
{
    (void)state;
    for (int n = 0; n < 4 * KINDS; n++) {
        op_trial trial = trial_open("%s dtype=%s lse=1", kinds[n / 4], dtypes[n % 4]);
        tensor_fill(&trial.args->v, 1);
        trial_run(&trial);
        each_o(&trial, is_one);
        if (n % 4 < 2) {
            tensor_fill(&trial.args->v, -1.75);
            trial_run(&trial);
            each_o(&trial, is_constant);
        }
        trial_close(&trial);
    }
}

/* V in [2, 3): so are the outputs. */
static void is_between(const op_trial *trial, int64_t b, int64_t i, int64_t h, int64_t c)
{
    double o = trial_o(trial, b, i, h, c);
    assert_true(is_empty_row(trial, b, i, h)
                    ? o == 0
                    : o >= 2 - 3 * slack(trial) && o <= 3 + 3 * slack(trial));
}

static void r2_between_the_least_and_the_largest(void **state)
{
    (void)state;
    for (int n = 0; n < 4 * KINDS; n++) {
        op_trial trial =
            trial_open("%s dtype=%s lse=1 inputs=uniform", kinds[n / 4], dtypes[n % 4]);
        for (int64_t j = 0; j < trial.args->v.shape[1]; j++) {
            attn_tensor row = tensor_slice(trial.args->v, 1, j, 1);
            tensor_fill(&row, 2 + (double)(j * 37 % 64) / 64);
        }
        trial_run(&trial);
        each_o(&trial, is_between);
        trial_close(&trial);
    }
}

/* O and LSE of two trials within the bound of a score's error. */
static void assert_close(const op_trial *a, const op_trial *b, double shift)
{
    for (int64_t i = 0; i < a->problem.nq; i++) {
        for (int64_t h = 0; h < a->problem.hq; h++) {
            assert_near(trial_lse(a, 0, i, h), trial_lse(b, 0, i, h) + shift,
                        2 * lse_bound(fabs(shift) + 10));
            for (int64_t c = 0; c < a->problem.dv; c++) {
                assert_near(trial_o(a, 0, i, h, c), trial_o(b, 0, i, h, c),
                            7 * lse_bound(fabs(shift) + 10));
            }
        }
    }
}

/* Key j becomes key 149 * j mod 300. */
static void r3_permuted_keys(void **state)
{
    op_trial trial = trial_open("nq=30 nk=300 hq=2 d=24 dtype=f32 lse=1"),
             other = trial_open("nq=30 nk=300 hq=2 d=24 dtype=f32 lse=1");
    (void)state;
    for (int64_t j = 0; j < 300; j++) {
        attn_tensor k = tensor_slice(other.args->k, 1, j * 149 % 300, 1),
                    v = tensor_slice(other.args->v, 1, j * 149 % 300, 1);
        attn_tensor from_k = tensor_slice(trial.args->k, 1, j, 1),
                    from_v = tensor_slice(trial.args->v, 1, j, 1);
        tensor_copy(&k, &from_k);
        tensor_copy(&v, &from_v);
    }
    trial_check(&trial);
    trial_check(&other);
    assert_close(&trial, &other, 0);
    trial_close(&trial);
    trial_close(&other);
}

/* A constant bias moves LSE and nothing else. */
static void r4_constant_bias(void **state)
{
    static const double shifts[] = {3.25, -700, 100};
    op_trial trial = trial_open("nq=30 nk=150 hq=2 d=24 dtype=f32 lse=1");
    (void)state;
    trial_check(&trial);
    for (int n = 0; n < 3; n++) {
        op_trial other = trial_open("nq=30 nk=150 hq=2 d=24 dtype=f32 lse=1 bias=1");
        tensor_fill(&other.args->bias, shifts[n]);
        trial_check(&other);
        assert_close(&other, &trial, shifts[n]);
        trial_close(&other);
    }
    trial_close(&trial);
}

/* Heads that share K and V give the bits of heads that have copies. */
static void r6_shared_heads(void **state)
{
    static const int groups[] = {2, 3, 6};
    (void)state;
    for (int n = 0; n < 12; n++) {
        const char *line =
            "b=2 nq=31 nk=100 hq=6 hkv=%d d=16 dtype=%s causal=1 window_left=70 bias=f16:hqk lse=1";
        int group = groups[n / 4];
        op_trial gqa = trial_open(line, 6 / group, dtypes[n % 4]),
                 mha = trial_open(line, 6, dtypes[n % 4]);
        for (int64_t h = 0; h < 6; h++) {
            attn_tensor k = tensor_slice(mha.args->k, 2, h, 1),
                        v = tensor_slice(mha.args->v, 2, h, 1);
            attn_tensor from_k = tensor_slice(gqa.args->k, 2, h / group, 1);
            attn_tensor from_v = tensor_slice(gqa.args->v, 2, h / group, 1);
            tensor_copy(&k, &from_k);
            tensor_copy(&v, &from_v);
        }
        trial_run(&gqa);
        trial_run(&mha);
        assert_same_outputs(&gqa, &mha);
        trial_close(&gqa);
        trial_close(&mha);
    }
}

/* 60 keys in use of 60, of 61, of 100 and of 500, the rest NaN. */
static void r7_padding(void **state)
{
    static const int lengths[] = {61, 100, 500};
    (void)state;
    for (int n = 0; n < 12; n++) {
        op_trial exact =
            trial_open("nq=20 nk=60 hq=2 d=16 dtype=%s causal=1 lse=1 row_max=1", dtypes[n % 4]);
        op_trial padded =
            trial_open("nq=20 nk=%d hq=2 d=16 dtype=%s causal=1 used_k=60 lse=1 row_max=1",
                       lengths[n / 4], dtypes[n % 4]);
        attn_tensor *from[] = {&exact.args->k, &exact.args->v},
                    *to[] = {&padded.args->k, &padded.args->v};
        for (int i = 0; i < 2; i++) {
            attn_tensor used = tensor_slice(*to[i], 1, 0, 60);
            tensor_fill(to[i], (double)NAN);
            tensor_copy(&used, from[i]);
        }
        trial_run(&exact);
        trial_run(&padded);
        assert_same_outputs(&exact, &padded);
        trial_close(&exact);
        trial_close(&padded);
    }
}

/* Sequences alone, in a padded batch, in that batch backwards, and in a varlen call: the same
 * bits. */
static void r8_batches(void **state)
{
    static const int64_t nq[] = {20, 3, 40}, nk[] = {70, 9, 64}, q_at[] = {0, 20, 23},
                         k_at[] = {0, 70, 79};
    (void)state;
    for (int n = 0; n < 4; n++) {
        const char *dtype = dtypes[n];
        op_trial varlen = trial_open(
            "lens_q=20,3,40 lens_k=70,9,64 hq=4 hkv=2 d=16 dtype=%s causal=1 lse=1", dtype);
        op_trial padded = trial_open(
            "b=3 nq=40 nk=70 hq=4 hkv=2 d=16 dtype=%s causal=1 lse=1 used_q=40,3,20 used_k=64,9,70",
            dtype);
        trial_check(&varlen);
        for (int s = 0; s < 3; s++) { /* sequence s of varlen is sequence 2 - s of the batch */
            attn_tensor *from[] = {&varlen.args->q, &varlen.args->k, &varlen.args->v};
            attn_tensor *to[] = {&padded.args->q, &padded.args->k, &padded.args->v};
            for (int i = 0; i < 3; i++) {
                attn_tensor source =
                    tensor_slice(*from[i], 1, i ? k_at[s] : q_at[s], i ? nk[s] : nq[s]);
                attn_tensor row = tensor_slice(*to[i], 0, 2 - s, 1);
                row = tensor_slice(row, 1, 0, i ? nk[s] : nq[s]);
                tensor_copy(&row, &source);
            }
        }
        trial_run(&padded);
        for (int s = 0; s < 3; s++) {
            op_trial alone = trial_open("nq=%d nk=%d hq=4 hkv=2 d=16 dtype=%s causal=1 lse=1",
                                        (int)nq[s], (int)nk[s], dtype);
            alone.args->q = tensor_slice(varlen.args->q, 1, q_at[s], nq[s]);
            alone.args->k = tensor_slice(varlen.args->k, 1, k_at[s], nk[s]);
            alone.args->v = tensor_slice(varlen.args->v, 1, k_at[s], nk[s]);
            trial_run(&alone);
            for (int64_t at = 0; at < nq[s] * 64; at++) {
                int64_t i = at / 64, h = at / 16 % 4, c = at % 16;
                double o = trial_o(&alone, 0, i, h, c);
                assert_true(o == trial_o(&varlen, 0, q_at[s] + i, h, c) &&
                            o == trial_o(&padded, 2 - s, i, h, c));
                assert_true(trial_lse(&alone, 0, i, h) == trial_lse(&padded, 2 - s, i, h));
                assert_true(trial_lse(&alone, 0, i, h) == trial_lse(&varlen, 0, q_at[s] + i, h));
            }
            trial_close(&alone);
        }
        trial_close(&varlen);
        trial_close(&padded);
    }
}

/* q * a and scale / a with a power of two: the same bits. */
static void r12_power_of_two(void **state)
{
    (void)state;
    for (int n = 0; n < 8; n++) {
        const char *line = "nq=30 nk=100 hq=2 d=24 dtype=%s scale=%s lse=1 %s";
        const char *more = n / 4 ? "softcap=4" : "";
        op_trial trial = trial_open(line, dtypes[n % 4], "0.25", more),
                 other = trial_open(line, dtypes[n % 4], "0.03125", more);
        for (int64_t at = 0; at < 30 * 2 * 24; at++) {
            double q = inputs_value(INPUTS_NORMAL, 5, INPUTS_Q, at);
            inputs_store(&trial.args->q, 0, at / 48, at / 24 % 2, at % 24, q);
            inputs_store(&other.args->q, 0, at / 48, at / 24 % 2, at % 24, 8 * q);
        }
        trial_run(&trial);
        trial_run(&other);
        assert_same_outputs(&trial, &other);
        trial_close(&trial);
        trial_close(&other);
    }
}

/* Any layout gives the bits of the plain one. (K and V of layout=strided are broadcast over heads:
 * not the same.) */
static void r13_layouts(void **state)
{
    static const char *const layouts[] = {"bhsd", "gap", "qkv", "bshd offset=3"};
    (void)state;
    for (int n = 0; n < 16; n++) {
        const char *line =
            "b=2 n=50 hq=3 d=24 dtype=%s causal=1 mask=bqk bias=f16:hqk lse=1 layout=%s";
        op_trial plain = trial_open(line, dtypes[n % 4], "bshd"),
                 other = trial_open(line, dtypes[n % 4], layouts[n / 4]);
        trial_run(&plain);
        trial_run(&other);
        assert_same_outputs(&plain, &other);
        trial_close(&plain);
        trial_close(&other);
    }
}

/* Row i of a causal pass is the decoding step over the first i + 1 keys. */
static void r14_decoding(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial full =
            trial_open("n=140 hq=4 hkv=2 d=16 dtype=%s causal=1 lse=1 alibi=h", dtypes[n]);
        trial_check(&full);
        for (int i = 0; i < 140; i += 9) {
            op_trial step = trial_open("nq=1 nk=%d hq=4 hkv=2 d=16 dtype=%s causal=1 lse=1 alibi=h",
                                       i + 1, dtypes[n]);
            step.args->q = tensor_slice(full.args->q, 1, i, 1);
            step.args->k = tensor_slice(full.args->k, 1, 0, i + 1);
            step.args->v = tensor_slice(full.args->v, 1, 0, i + 1);
            trial_run(&step);
            for (int64_t h = 0; h < 4; h++) {
                assert_true(trial_lse(&step, 0, 0, h) == trial_lse(&full, 0, i, h));
                for (int64_t c = 0; c < 16; c++) {
                    assert_true(trial_o(&step, 0, 0, h, c) == trial_o(&full, 0, i, h, c));
                }
            }
            trial_close(&step);
        }
        trial_close(&full);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r1_constant_values),
        cmocka_unit_test(r2_between_the_least_and_the_largest),
        cmocka_unit_test(r3_permuted_keys),
        cmocka_unit_test(r4_constant_bias),
        cmocka_unit_test(r6_shared_heads),
        cmocka_unit_test(r7_padding),
        cmocka_unit_test(r8_batches),
        cmocka_unit_test(r12_power_of_two),
        cmocka_unit_test(r13_layouts),
        cmocka_unit_test(r14_decoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
