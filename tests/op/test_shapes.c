/*
 * test_shapes.c: counts and sizes at their ends: contract, cases C (B51 .. B73) that are not mere
 * problem lines (those are in regress.txt). Large ones: test_large.c.
 */
#include "trial.h"

#include <unistd.h>

/* Success, and not a byte written: not even the guard of an empty tensor is touched. */
static void b51_nothing_to_do(void **state)
{
    static const char *const lines[] = {
        "b=0 nq=4 nk=4 hq=2 d=8 lse=1", "b=2 nq=0 nk=4 hq=2 d=8 lse=1",
        "b=2 nq=4 nk=4 hq=0 hkv=0 d=8 lse=1", "lens_q=0,0 lens_k=3,0 hq=2 d=8 lse=1"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial trial = trial_open("%s dtype=f32", lines[n]);
        size_t bytes;
        uint64_t workspace = 5;
        trial_run(&trial);
        free(trial_bits(&trial, &bytes));
        assert_int_equal(bytes, 0);
        assert_int_equal(attn_forward_workspace(NULL, trial.args, &workspace), ATTN_OK);
        assert_int_equal(workspace, 0);
        trial_close(&trial);
    }
}

/* Outputs without elements take no time and no memory, whatever their other extents and those of
 * the inputs. The alarm's signal would end the process. */
static void nothing_to_do_at_huge_extents(void **state)
{
    static const struct {
        int64_t b, nq, nk, hq, hkv, d, dv;
    } cases[] = {
        {1, 1000000000000, 7, 0, 1, 64, 64},     {1, 1000000000000, 7, 0, 0, 64, 64},
        {1, 1000000000000, 7, 2, 1, 0, 0},       {1, 1000000000000, 7, 2, 1, 8, 0},
        {1000000000000, 5, 7, 2, 1, 0, 0},       {1000000000000, 0, 7, 2, 1, 8, 8},
        {0, 1000000000000, 7, 2, 1, 8, 8},       {1, 0, 1000000000000, 2, 1, 64, 64},
        {1000000000000, 0, 0, 2, 1, 8, 8},       {1, 5, 1000000000000, 2, 1, 0, 0},
        {1, 1000000000000, 1 << 20, 1, 1, 8, 0},
    };
    static float zeros[64]; /* strides of 0: elements that are never read, or all the same */
    (void)state;
    alarm(60);
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        attn_forward_args args = {.struct_size = sizeof args, .flags = ATTN_CAUSAL};
        attn_plan plan = {.struct_size = sizeof plan};
        uint64_t workspace = 1;
        args.q = (attn_tensor){
            zeros, {cases[n].b, cases[n].nq, cases[n].hq, cases[n].d}, {0, 0, 0, 1}, ATTN_F32, 0};
        args.k = (attn_tensor){
            zeros, {cases[n].b, cases[n].nk, cases[n].hkv, cases[n].d}, {0, 0, 0, 1}, ATTN_F32, 0};
        args.v = (attn_tensor){
            zeros, {cases[n].b, cases[n].nk, cases[n].hkv, cases[n].dv}, {0, 0, 0, 1}, ATTN_F32, 0};
        args.o = args.q, args.o.shape[3] = cases[n].dv, args.o.data = NULL;
        assert_int_equal(attn_forward(NULL, &args), ATTN_OK);
        assert_int_equal(attn_forward_plan(NULL, &args, &plan), ATTN_OK);
        assert_int_equal(plan.items, 0);
        assert_int_equal(attn_forward_workspace(NULL, &args, &workspace), ATTN_OK);
        assert_int_equal(workspace, 0);
    }
    alarm(0);
}

/* An O without elements beside an LSE with some, which is written all the same. */
static void only_sums_of_rows(void **state)
{
    op_trial trial = trial_open("nq=70 nk=100 hq=2 d=8 dv=0 dtype=f32 causal=1 lse=1");
    (void)state;
    trial_check(&trial);
    trial_close(&trial);
}

/* d = 0: all scores are 0, so O is the mean of V and LSE = ln Nk. */
static void b53_no_head_dimension(void **state)
{
    op_trial trial = trial_open("nq=3 nk=100 hq=1 d=0 dv=4 dtype=f32 lse=1");
    double mean = 0;
    (void)state;
    for (int64_t j = 0; j < 100; j++) {
        mean += inputs_value(INPUTS_NORMAL, trial.problem.seed, INPUTS_V, j * 4 + 1) / 100;
    }
    trial_check(&trial);
    assert_near(trial_o(&trial, 0, 2, 0, 1), mean, 2e-7);
    assert_near(trial_lse(&trial, 0, 2, 0), log(100), 1e-6);
    trial_close(&trial);
}

/* 40000 sequences in one varlen call. */
static void b60_many_sequences(void **state)
{
    enum { COUNT = 40000 };
    op_trial trial = trial_open("nq=80000 nk=120000 hq=1 d=4 dtype=f32 lse=1");
    int32_t *cu_q = calloc(COUNT + 1, sizeof *cu_q), *cu_k = calloc(COUNT + 1, sizeof *cu_k);
    (void)state;
    for (int32_t n = 0; n < COUNT; n++) {
        cu_q[n + 1] = cu_q[n] + 1 + n % 3;
        cu_k[n + 1] = cu_k[n] + n % 7;
    }
    assert_in_range(cu_q[COUNT], 1, 80000);
    assert_in_range(cu_k[COUNT], 1, 120000);
    trial.args->cu_seqlens_q = attn_tensor_bshd(cu_q, ATTN_I32, COUNT + 1, 1, 1, 1);
    trial.args->cu_seqlens_k = attn_tensor_bshd(cu_k, ATTN_I32, COUNT + 1, 1, 1, 1);
    trial_check_once(&trial, 3, 80000);
    free(cu_q);
    free(cu_k);
    trial_close(&trial);
}

/* The workspace grows with the logarithm of the length, by one node of each strip (a sum over keys,
 * at most 32 x (128 + 4) floats here) a doubling; sizes that leave 64 bits are an error. Nothing is
 * read: K and V lie at an address that traps. */
static void b65_workspace_of_long_sequences(void **state)
{
    op_trial trial = trial_open("nq=1000 nk=1 hq=1 d=128 dtype=f16");
    const void *nowhere = (const void *)(uintptr_t)64;
    attn_plan plan = {.struct_size = sizeof plan};
    uint64_t last = 0, bytes;
    (void)state;
    for (int bits = 22; bits <= 40; bits++) {
        trial.args->k = trial.args->v =
            attn_tensor_bshd(nowhere, ATTN_F16, 1, INT64_C(1) << bits, 1, 128);
        assert_int_equal(attn_forward_workspace(NULL, trial.args, &bytes), ATTN_OK);
        assert_true(last == 0 || (bytes > last && bytes - last < 1 << 22));
        last = bytes;
        assert_int_equal(attn_forward_plan(NULL, trial.args, &plan),
                         ATTN_OK); /* at once: tiles are not counted one by one */
        assert_true(plan.flops == 2.0 * 256 * 1000 * ldexp(1, bits));
    }
    /* times the stride of 128 elements */
    trial.args->k.shape[1] = trial.args->v.shape[1] = INT64_C(1) << 56;
    assert_int_equal(attn_forward_workspace(NULL, trial.args, &bytes), ATTN_ERR_OVERFLOW);
    assert_int_equal(bytes, 0);
    trial_close(&trial);
}

/* 64 sequences, two without keys: -inf in their slots only. */
static void b70_empty_sequences_in_a_batch(void **state)
{
    op_trial trial = trial_open("b=64 nq=3 nk=5 hq=8 hkv=2 d=8 dtype=f32 lse=1");
    int32_t used[64];
    (void)state;
    for (int b = 0; b < 64; b++) {
        used[b] = b == 1 || b == 10 ? 0 : 5;
    }
    trial.args->seqused_k = attn_tensor_bshd(used, ATTN_I32, 64, 1, 1, 1);
    trial_check(&trial);
    for (int64_t n = 0; n < 64 * 3 * 8; n++) {
        bool empty = n / 24 == 1 || n / 24 == 10;
        assert_true((trial_lse(&trial, n / 24, n / 8 % 3, n % 8) == -(double)INFINITY) == empty);
    }
    trial_close(&trial);
}

/* A hundred sequences of length 3 want the workspace of length 3, not of length 300. */
static void b73_workspace_of_short_sequences(void **state)
{
    attn_context_config config = {.struct_size = sizeof config, .threads = 1};
    attn_context *context;
    int32_t cu[101];
    uint64_t varlen, dense, whole;
    (void)state;
    for (int n = 0; n <= 100; n++) {
        cu[n] = 3 * n;
    }
    assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
    op_trial trial = trial_open("n=300 hq=1 d=64 dtype=f32"),
             other = trial_open("b=100 n=3 hq=1 d=64 dtype=f32");
    assert_int_equal(attn_forward_workspace(context, trial.args, &whole), ATTN_OK);
    trial.args->cu_seqlens_q = trial.args->cu_seqlens_k =
        attn_tensor_bshd(cu, ATTN_I32, 101, 1, 1, 1);
    assert_int_equal(attn_forward_workspace(context, trial.args, &varlen), ATTN_OK);
    assert_int_equal(attn_forward_workspace(context, other.args, &dense), ATTN_OK);
    assert_true(varlen <= dense + 103 * sizeof(int64_t) + 64);
    assert_true(varlen <= whole + 103 * sizeof(int64_t) + 64);
    trial_run(&trial);
    trial_run(&other);
    size_t bytes;
    /* equal inputs: the counter of inputs.h runs over both alike */
    unsigned char *a = trial_bits(&trial, &bytes), *b = trial_bits(&other, &bytes);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
    trial_close(&trial);
    trial_close(&other);
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b51_nothing_to_do),
        cmocka_unit_test(nothing_to_do_at_huge_extents),
        cmocka_unit_test(only_sums_of_rows),
        cmocka_unit_test(b53_no_head_dimension),
        cmocka_unit_test(b60_many_sequences),
        cmocka_unit_test(b65_workspace_of_long_sequences),
        cmocka_unit_test(b70_empty_sequences_in_a_batch),
        cmocka_unit_test(b73_workspace_of_short_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
