/*
 * test_brief.c: calls of few rows and keys, which are one pass over the rows of all heads, give the
 * bits of the heads one by one (as those with LSE are done), on every table; and are within the
 * oracle's bound.
 */
#include "outputs.h"
#include "runs.h"
#include "tables.h"
#include "trial.h"

static const char *const lines[] = {
    "nq=1 nk=1 hq=8 d=64",
    "nq=1 nk=1 hq=3 d=64",
    "nq=1 nk=1 hq=8 d=64 inputs=large",
    "nq=1 nk=4 hq=8 d=64 causal=1",
    "nq=4 nk=4 hq=8 d=64 layout=bhsd",
    "nq=4 nk=4 hq=7 d=90 dv=80",
    "nq=4 nk=4 hq=16 d=64 inputs=large",
    "nq=2 nk=2 hq=5 d=33 dv=64 layout=gap",
    "b=2 nq=1 nk=4 hq=24 hkv=6 d=130 dv=32",
    "b=4 nq=1 nk=1 hq=16 d=16",
    "b=2 nq=4 nk=4 hq=8 d=64 sown=7",
    "b=2 nq=2 nk=3 hq=8 hkv=2 d=33 dv=32",
    "b=3 nq=1 nk=2 hq=2 d=130 dv=96 layout=gap offset=1",
    "nq=1 nk=3 hq=32 hkv=8 d=128 inputs=large",
    "nq=5 nk=2 hq=4 d=1 dv=16 scale=0.3",
    "nq=1 nk=3 hq=8 hkv=1 d=40 dv=5 inputs=outlier",
    "nq=2 nk=4 hq=8 hkv=1 d=64 sown=10",
    "nq=1 nk=1 hq=8 d=64 sown=3",
};

/* A call without LSE gives the O of one with it. */
static void check_bits(op_trial *brief, op_trial *whole, const char *table)
{
    char sentence[512];
    attn_forward_args args = *brief->args;
    args.lse.data = NULL;
    assert_true(runs_once(&args, table, 2, RUNS_NOISE, sentence, sizeof sentence));
    assert_true(runs_once(whole->args, table, 2, RUNS_NOISE, sentence, sizeof sentence));
    tensor_copy(&brief->args->lse, &whole->args->lse);
    assert_same_outputs(brief, whole);
}

static void check_line(const char *line, const char *dtype)
{
    op_trial brief = trial_open("%s dtype=%s lse=1", line, dtype),
             whole = trial_open("%s dtype=%s lse=1", line, dtype),
             alone = trial_open("%s dtype=%s", line, dtype);
    int count;
    const char *const *names = tables_names(&count);
    for (int i = 0; i < count; i++) {
        check_bits(&brief, &whole, names[i]);
    }
    names = tables_own_bits(&count);
    for (int i = 0; i < count; i++) {
        check_bits(&brief, &whole, names[i]);
    }
    trial_check(&alone);
    if (!strstr(line, "sown")) {
        trial_check_own_bits(&alone);
    }
    trial_close(&brief);
    trial_close(&whole);
    trial_close(&alone);
}

static void test_bits_of_heads_one_by_one(void **state)
{
    static const char *const types[] = {"f64", "f32", "f16", "bf16"};
    (void)state;
    for (size_t i = 0; i < 4 * sizeof lines / sizeof lines[0]; i++) {
        check_line(lines[i / 4], types[i % 4]);
    }
}

/* Sets all of Q and K of a head. */
static void fill_head(const attn_forward_args *args, int64_t head, double q, double k)
{
    const attn_tensor of_q = tensor_slice(args->q, 2, head, 1),
                      of_k = tensor_slice(args->k, 2, head, 1);
    tensor_fill(&of_q, q);
    tensor_fill(&of_k, k);
}

/* A single key's probability is not 1 where its score is not finite. */
static void test_single_keys_with_special_scores(void **state)
{
    static const double values[][2] = {{NAN, 1},     {1, NAN},      {INFINITY, 0},
                                       {3e38, 3e38}, {-3e38, 3e38}, {-INFINITY, 1}};
    (void)state;
    for (int i = 0; i < 6; i++) {
        op_trial brief = trial_open("nq=1 nk=1 hq=8 d=64 lse=1"),
                 whole = trial_open("nq=1 nk=1 hq=8 d=64 lse=1");
        int count;
        const char *const *names = tables_names(&count);
        fill_head(brief.args, i, values[i][0], values[i][1]);
        fill_head(whole.args, i, values[i][0], values[i][1]);
        for (int table = 0; table < count; table++) {
            check_bits(&brief, &whole, names[table]);
        }
        trial_close(&brief);
        trial_close(&whole);
    }
}

/* Sets a column of a head of a tensor. */
static void fill_column(const attn_tensor *tensor, int64_t head, int64_t column, double value)
{
    const attn_tensor of_head = tensor_slice(*tensor, 2, head, 1),
                      of_column = tensor_slice(of_head, 3, column, 1);
    tensor_fill(&of_column, value);
}

/* Checks a line on all tables with a column of one head's Q, or V, set to a value. */
static void check_column(const char *line, bool in_v, int64_t column, double value)
{
    op_trial brief = trial_open("%s lse=1", line), whole = trial_open("%s lse=1", line);
    int count;
    const char *const *names = tables_names(&count);
    fill_column(in_v ? &brief.args->v : &brief.args->q, 1, column, value);
    fill_column(in_v ? &whole.args->v : &whole.args->q, 1, column, value);
    for (int table = 0; table < count; table++) {
        check_bits(&brief, &whole, names[table]);
    }
    trial_close(&brief);
    trial_close(&whole);
}

/* A number anywhere in a row counts, in each vector of columns and behind whole ones. */
static void test_columns_with_special_numbers(void **state)
{
    static const double values[] = {NAN, INFINITY, 3e38, 1e-40};
    (void)state;
    for (int64_t column = 0; column < 40; column += 4) {
        for (int i = 0; i < 4; i++) {
            check_column("nq=1 nk=1 hq=8 d=40", false, column, values[i]);
            check_column("nq=4 nk=4 hq=8 d=40 dv=104", true, column * 5 / 2, values[i]);
            check_column("nq=1 nk=3 hq=32 hkv=8 d=64", true, column, values[i]);
        }
    }
}

/* Subnormal numbers are 0 in products of some tables, in calls of few rows too. A large scale makes
 * scores of them. */
static void test_subnormal_numbers(void **state)
{
    static const char *const calls[] = {"nq=4 nk=4 hq=8 d=40", "nq=1 nk=3 hq=8 d=64",
                                        "nq=1 nk=1 hq=8 d=64", "nq=2 nk=2 hq=8 hkv=4 d=33 dv=280"};
    static const char *const types[] = {"f32", "f16", "bf16"};
    (void)state;
    for (size_t i = 0; i < 3 * sizeof calls / sizeof calls[0]; i++) {
        const bool f16 = strcmp(types[i % 3], "f16") == 0;
        const char *line = calls[i / 3], *type = types[i % 3];
        op_trial brief = trial_open("%s dtype=%s scale=%s lse=1", line, type, f16 ? "1e7" : "1e38"),
                 whole = trial_open("%s dtype=%s scale=%s lse=1", line, type, f16 ? "1e7" : "1e38");
        const op_trial *const both[] = {&brief, &whole};
        for (int n = 0; n < 2; n++) {
            tensor_fill(&both[n]->args->q, f16 ? 1e-7 : 1e-39);
            fill_column(&both[n]->args->v, 1, 5, f16 ? 1e-7 : 1e-39);
        }
        for (int own = 0; own < 2; own++) {
            int count;
            const char *const *names = own ? tables_own_bits(&count) : tables_names(&count);
            for (int table = 0; table < count; table++) {
                check_bits(&brief, &whole, names[table]);
            }
        }
        trial_close(&brief);
        trial_close(&whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_heads_one_by_one),
        cmocka_unit_test(test_single_keys_with_special_scores),
        cmocka_unit_test(test_columns_with_special_numbers),
        cmocka_unit_test(test_subnormal_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
