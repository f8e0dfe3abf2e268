/*
 * test_shared.c: sequences whose tables begin with the same pages (R8, R14): the bits of each are
 * those of a call of its own, whatever it shares with whom; and all are within the oracle's bound.
 * `test_shared gpu`: the same bits on this machine's GPU; it is skipped where there is none.
 */
#include "device.h"
#include "oracle.h"
#include "outputs.h"
#include "runs.h"
#include "tables.h"
#include "trial.h"

/* Sequence b begins with the pages of keys 0 .. keys-1 of sequence a. */
static void share(op_trial *trial, int64_t a, int64_t b, int64_t keys)
{
    attn_tensor *table = &trial->args->block_table;
    const int64_t size = trial->args->k.shape[1], pages = (keys + size - 1) / size;
    for (int64_t page = 0; page < pages; page++) {
        inputs_store(table, b, page, 0, 0, oracle_element(table, a, page, 0, 0));
    }
}

static attn_tensor one(attn_tensor t, int64_t b)
{
    return t.data ? tensor_slice(t, 0, b, 1) : t;
}

/* The call of sequence b alone. */
static attn_forward_args args_of(const attn_forward_args *all, int64_t b)
{
    attn_forward_args args = *all;
    args.q = one(args.q, b), args.block_table = one(args.block_table, b);
    args.seqused_q = one(args.seqused_q, b), args.seqused_k = one(args.seqused_k, b);
    args.o = one(args.o, b), args.lse = one(args.lse, b), args.row_max = one(args.row_max, b);
    args.sinks = args.sinks.shape[0] > 1 ? one(args.sinks, b) : args.sinks;
    return args;
}

/* A call for each sequence gives the bits of a call for all. */
static void check_alone(op_trial *all, op_trial *alone, const char *table)
{
    char sentence[512];
    assert_true(runs_once(all->args, table, 1, RUNS_NOISE, sentence, sizeof sentence));
    for (int64_t b = 0; b < all->problem.b; b++) {
        attn_forward_args args = args_of(alone->args, b);
        assert_true(runs_once(&args, table, 1 + (int)b % 2, RUNS_NOISE, sentence, sizeof sentence));
    }
    assert_same_outputs(all, alone);
}

/* Sequences 0, 1, 2 and 5 share two segments of 2048 keys, or one of 4096; 3 and 4 share one of
 * 2048; 5 has no key at all in some lines. */
static void check_line(const char *line)
{
    op_trial all = trial_open("b=6 hkv=2 nk=5000 lse=1 %s", line),
             alone = trial_open("b=6 hkv=2 nk=5000 lse=1 %s", line);
    int count, own;
    const char *const *names = tables_that_agree(all.args->q.dtype, all.args->flags, &count);
    op_trial *const both[] = {&all, &alone};
    for (int i = 0; i < 2; i++) {
        share(both[i], 0, 1, 4200);
        share(both[i], 0, 2, 4100);
        share(both[i], 3, 4, 2050);
        share(both[i], 0, 5, 4096);
    }
    trial_check(&all);
    trial_check_own_bits(&all);
    for (int i = 0; i < count; i++) {
        check_alone(&all, &alone, names[i]);
    }
    names = tables_own_bits(&own);
    for (int i = 0; i < own; i++) {
        check_alone(&all, &alone, names[i]);
    }
    trial_close(&all);
    trial_close(&alone);
}

static void test_one_query(void **state)
{
    (void)state;
    check_line("hq=8 nq=1 d=16 dtype=f32 page=16 used_k=4999,4300,4200,5000,4400,0 causal=1 "
               "row_max=1");
    check_line("hq=8 nq=1 d=24 dv=40 dtype=bf16 page=17 used_k=4999,4300,4200,5000,4400,4097 "
               "sinks=h row_max=1");
    check_line("hq=2 nq=1 d=16 dtype=f64 page=256 used_k=4999,4300,4200,5000,2300,4100 softcap=3");
}

/* Rows of a sequence that are not in use, and rows that see as many keys as there are shared. */
static void test_several_queries(void **state)
{
    (void)state;
    check_line("hq=6 nq=3 d=16 dtype=f16 page=3 used_q=3,2,3,0,1,3 causal=1 row_max=1 "
               "used_k=4999,4300,4200,5000,4400,4098");
    check_line("hq=4 nq=5 d=8 dtype=f32 page=16 used_q=5,5,1,5,5,5 layout=bhsd sinks=bh causal=1 "
               "used_k=4100,4100,4200,5000,2052,4096");
    check_line("hq=8 nq=8 d=8 dtype=bf16 page=16 used_q=8,8,7,8,8,8 causal=1 row_max=1 "
               "used_k=4999,4300,4200,5000,4400,4106"); /* strips enough for several tasks */
}

static void test_codes(void **state)
{
    (void)state;
    check_line("hq=8 nq=1 d=32 dtype=bf16 page=16 kv_dtype=i8 used_k=4999,4300,4200,5000,2300,0");
    check_line("hq=4 nq=2 d=32 dtype=f32 page=16 kv_dtype=i4x2 kv_group=16 kv_shift=1 causal=1 "
               "used_k=4999,4300,4200,5000,2300,4200");
}

/* A NaN in Q is its own sequence's, one in K or V all sequences' that see it. */
static void test_nan(void **state)
{
    (void)state;
    check_line("hq=8 nq=1 d=16 dtype=f32 page=16 used_k=4999,4300,4200,5000,2300,4100 sown=200000");
    check_line("hq=2 nq=1 d=16 dtype=bf16 page=16 used_k=4999,4300,4200,5000,2300,4100 sown=90");
}

/* The call for all sequences, or one for each, on the device. */
static void run_device(op_trial *trial, bool alone)
{
    device_call call;
    device_place_all(&call, trial);
    for (int64_t b = 0; b < (alone ? trial->problem.b : 1); b++) {
        device_forward(alone ? args_of(&call.forward, b) : call.forward);
    }
    device_take_back(&call);
}

/* Splits have 256 keys: of seven sequences five have up to five in common, two others two. */
static void check_gpu(const char *line)
{
    op_trial all = trial_open("b=7 nk=1500 lse=1 %s", line),
             alone = trial_open("b=7 nk=1500 lse=1 %s", line);
    op_trial *const both[] = {&all, &alone};
    for (int i = 0; i < 2; i++) {
        share(both[i], 0, 1, 1300);
        share(both[i], 0, 2, 1030);
        share(both[i], 3, 4, 600);
        share(both[i], 0, 5, 1500);
        share(both[i], 0, 6, 300);
        both[i]->args->flags |= ATTN_SHARES_PAGES;
        run_device(both[i], i == 1);
    }
    assert_same_outputs(&all, &alone);
    trial_close(&all);
    trial_close(&alone);
}

static void test_gpu(void **state)
{
    (void)state;
    check_gpu("hq=4 hkv=1 nq=1 d=128 dtype=bf16 page=16 used_k=1499,1300,1200,1500,1400,0,1499");
    check_gpu("hq=2 hkv=1 nq=3 d=64 dtype=f16 page=3 causal=1 sinks=bh index=i64 row_max=1 "
              "used_k=1499,1301,1290,1500,1400,1300,1400");
    check_gpu("hq=1 nq=1 d=72 dv=128 dtype=bf16 page=256 sown=90000 "
              "used_k=1499,1310,1290,1500,1400,1350,1400");
    check_gpu("hq=4 hkv=1 nq=2 d=64 dtype=bf16 page=17 window_left=900 window_right=30 "
              "used_k=1499,1499,1500,1500,1400,1500,1400");
    check_gpu("hq=2 hkv=1 nq=1 d=128 dtype=bf16 kv_dtype=e4m3 page=16 sown=90000 "
              "used_k=1499,1310,1290,1500,1400,1350,1400");
    check_gpu("hq=4 hkv=1 nq=1 d=64 dtype=bf16 kv_dtype=i8 kv_shift=1 page=16 "
              "used_k=1499,1310,1290,1500,1400,1350,1400");
    check_gpu("hq=2 nq=1 d=128 dtype=bf16 kv_dtype=i4x2 page=16 causal=1");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest gpu_tests[] = {cmocka_unit_test(test_gpu)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_query),
        cmocka_unit_test(test_several_queries),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_nan),
    };
    if (argc == 1 || strcmp(argv[1], "gpu") != 0) {
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    const int failed = device_open(true) ? cmocka_run_group_tests(gpu_tests, NULL, NULL) : 77;
    device_close();
    return failed;
}
