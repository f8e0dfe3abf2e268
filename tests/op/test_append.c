/*
 * test_append.c: new rows of the cache and rotary embedding within the call (k_new, v_new, rope_*).
 * Cache and results have the bits of both done before the call, and nothing else is written.
 */
#include "grad_trial.h"
#include "outputs.h"
#include "steps.h"

#include <stdio.h>

static steps open_steps(const char *line, const rotation *r)
{
    problem_spec problem;
    char error[512];
    steps s = {0};
    if (!problem_parse(line, &problem, error, sizeof error) || !steps_open(&problem, r, &s)) {
        fail_msg("%s", line);
    }
    return s;
}

static void compare_steps(steps *s)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        char sentence[512];
        if (!steps_agree(s, NULL, threads, sentence, sizeof sentence)) {
            fail_msg("%s", sentence);
        }
    }
}

static const char *const lines[] = {
    "b=2 hq=4 hkv=2 nq=1 nk=100 d=16 causal=1 lse=1 used_k=100,3",
    "b=3 hq=4 hkv=1 nq=3 nk=70 d=24 causal=1 lse=1 used_k=70,3,40 page=16 dtype=bf16",
    "b=2 hq=2 nq=5 nk=60 d=32 causal=1 used_k=60,33 page=3 dtype=f16 alibi=h",
    "hq=8 hkv=2 nq=40 nk=90 d=16 dv=24 causal=1 lse=1 dtype=f64 layout=bhsd",
    "b=2 hq=4 nq=2 nk=90 d=16 causal=1 q_origin=500,90 layout=gap index=i64",
    "hq=2 nq=1 nk=60 d=32 dv=1 causal=1 lse=1 used_k=60 page=16 layout=loose",
    "hq=1 nq=1 nk=60 d=32 dv=1 causal=1 lse=1 layout=loose dtype=bf16",
};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static void test_append(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(lines); i++) {
        steps s = open_steps(lines[i], NULL);
        compare_steps(&s);
        steps_close(&s);
    }
}

static void test_rotation(void **state)
{
    static const rotation rotations[] = {
        {16, false, 10000}, {16, true, 500000}, {8, false, 100}, {2, true, 1}};
    (void)state;
    for (int i = 0; i < COUNT(lines) * COUNT(rotations); i++) {
        steps s = open_steps(lines[i % COUNT(lines)], &rotations[i / COUNT(lines)]);
        compare_steps(&s);
        steps_close(&s);
    }
}

/* More pairs than are at hand at once. */
static void test_rotation_of_many_columns(void **state)
{
    static const rotation rotations[] = {{258, false, 10000}, {260, true, 10000}};
    static const char *const types[] = {"f64", "f32", "f16", "bf16"};
    (void)state;
    for (int i = 0; i < COUNT(rotations) * COUNT(types); i++) {
        char line[128];
        snprintf(line, sizeof line, "hq=2 hkv=1 nq=2 nk=20 d=261 dv=8 causal=1 dtype=%s",
                 types[i % COUNT(types)]);
        steps s = open_steps(line, &rotations[i / COUNT(types)]);
        compare_steps(&s);
        steps_close(&s);
    }
}

/* Tables of the angles of a base give its bits. */
static void test_tables_of_angles(void **state)
{
    enum { PAIRS = 8, POSITIONS = 100 };
    static double cosine[POSITIONS * PAIRS], sine[POSITIONS * PAIRS];
    const rotation r = {2 * PAIRS, true, 10000};
    (void)state;
    for (int at = 0; at < POSITIONS * PAIRS; at++) {
        const double angle = at / PAIRS * pow(r.base, -2 * (double)(at % PAIRS) / (2 * PAIRS));
        cosine[at] = cos(angle), sine[at] = sin(angle);
    }
    steps s = open_steps(lines[0], &r);
    s.step.args.rope_base = 0;
    s.step.args.rope_cos = attn_tensor_bshd(cosine, ATTN_F64, POSITIONS, PAIRS, 1, 1);
    s.step.args.rope_sin = attn_tensor_bshd(sine, ATTN_F64, POSITIONS, PAIRS, 1, 1);
    compare_steps(&s);
    s.step.args.rope_cos.shape[0] = 99;
    assert_int_equal(attn_forward(NULL, &s.step.args), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "rope_cos.shape[0] = 99, but a row is at position 99");
    for (int axis = 1; axis < 4; axis++) {
        s.step.args.rope_cos = attn_tensor_bshd(cosine, ATTN_F64, POSITIONS, PAIRS, 1, 1);
        s.step.args.rope_cos.shape[axis] = 2;
        assert_int_equal(attn_forward(NULL, &s.step.args), ATTN_ERR_INVALID_ARGUMENT);
    }
    steps_close(&s);
}

/* Without a diagonal, q_origin only chooses rows of the tables: drafts of a tree get the angles of
 * their depths. */
static void test_angles_of_each_row(void **state)
{
    enum { PAIRS = 8, ROWS = 3, SEQUENCES = 2 };
    static const int64_t origin[SEQUENCES] = {0, ROWS}, end[SEQUENCES] = {40, 17};
    static double cosine[SEQUENCES * ROWS * PAIRS], sine[SEQUENCES * ROWS * PAIRS];
    const rotation r = {2 * PAIRS, false, 10000};
    (void)state;
    for (int at = 0; at < SEQUENCES * ROWS * PAIRS; at++) {
        const int row = at / PAIRS, position = (int)end[row / ROWS] - ROWS + row % ROWS;
        const double angle = position * pow(r.base, -2 * (double)(at % PAIRS) / (2 * PAIRS));
        cosine[at] = cos(angle), sine[at] = sin(angle);
    }
    steps s = open_steps("b=2 hq=4 hkv=2 nq=3 nk=40 d=16 lse=1 used_k=40,17 mask=b1x8:bqk", &r);
    s.step.args.rope_base = 0;
    s.step.args.rope_cos = attn_tensor_bshd(cosine, ATTN_F64, SEQUENCES * ROWS, PAIRS, 1, 1);
    s.step.args.rope_sin = attn_tensor_bshd(sine, ATTN_F64, SEQUENCES * ROWS, PAIRS, 1, 1);
    s.step.args.q_origin = attn_tensor_bshd(origin, ATTN_I64, SEQUENCES, 1, 1, 1);
    compare_steps(&s);
    steps_close(&s);
}

/* V is a view of K: only K is appended to. */
static void test_view_of_the_keys(void **state)
{
    (void)state;
    steps s = open_steps("hq=8 hkv=1 nq=1 nk=64 d=24 dv=16 causal=1 lse=1", NULL);
    for (int i = 0; i < 2; i++) {
        attn_forward_args *a = i == 0 ? &s.whole.args : &s.step.args;
        a->v = a->k, a->v.shape[3] = 16;
    }
    s.step.args.v_new.data = NULL;
    compare_steps(&s);
    steps_close(&s);
}

/* Asserts a refusal that writes nothing. */
static void assert_refused(steps *s, const char *sentence)
{
    outputs_poison(&s->step.args);
    const attn_tensor k = steps_copy(&s->step.args.k);
    size_t bytes;
    unsigned char *before = outputs_copy(&s->step.args, &bytes);
    assert_int_equal(attn_forward(NULL, &s->step.args), ATTN_ERR_INVALID_ARGUMENT);
    if (strstr(attn_last_error(), sentence) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", attn_last_error(), sentence);
    }
    unsigned char *after = outputs_copy(&s->step.args, &bytes);
    assert_memory_equal(before, after, bytes);
    assert_same_tensor(&k, &s->step.args.k);
    free(before);
    free(after);
    free(k.data);
}

static void test_refused(void **state)
{
    const rotation r = {16, false, 10000};
    (void)state;
    steps s = open_steps("b=2 hq=4 hkv=2 nq=3 nk=20 d=16 causal=1 lse=1 used_k=20,5", &r);
    attn_forward_args *a = &s.step.args;
    const attn_forward_args good = *a;
    int32_t used[] = {21, 2};
    a->seqused_k = attn_tensor_bshd(used, ATTN_I32, 2, 1, 1, 1);
    assert_refused(&s, "seqused_k[0] = 21, must be in [0, 20]");
    used[0] = 20;
    assert_refused(&s, "sequence 1 has 2 keys in use, fewer than its 3 new rows");
    *a = good, a->k_new.shape[1] = 2;
    assert_refused(&s, "k_new.shape[1] = 2, must be 3");
    *a = good, a->v_new.dtype = ATTN_F16;
    assert_refused(&s, "v_new.dtype = 3 (f16), must be f32");
    *a = good, a->k.stride[2] = 0;
    assert_refused(&s, "k.stride[2] = 0 would write 2 elements to one place");
    *a = good, a->rope_dims = 18;
    assert_refused(&s, "rope_dims = 18, must be even and in [0, 16]");
    *a = good, a->rope_base = -1;
    assert_refused(&s, "rope_base = -1 must be positive");
    *a = good, a->rope_base = 0;
    assert_refused(&s, "rope_dims = 16 and ATTN_ROPE_INTERLEAVED need");
    *a = good, a->rope_sin = a->q;
    assert_refused(&s, "rope_cos and rope_sin must be given together");
    *a = good, a->v = a->k, a->v_new = a->k_new;
    assert_refused(&s, "k and v overlap");
    *a = good, a->k_new = a->k, a->k_new.shape[1] = 3;
    assert_refused(&s, "k and k_new overlap");
    *a = good;
    steps_close(&s);
}

/* Tables that put two new rows in one row of a pool are refused, those that share pages are not. */
static void test_one_row_for_two(void **state)
{
    (void)state;
    steps s = open_steps("b=3 hq=2 nq=3 nk=24 d=16 causal=1 page=4 used_k=5,12,24", NULL);
    attn_forward_args *a = &s.step.args;
    int64_t table[3][6] = {{0, 1}, {2, 3, 4}, {5, 6, 7, 8, 9, 10}};
    const int64_t good[3][6] = {{0, 1}, {2, 3, 4}, {5, 6, 7, 8, 9, 10}};
    a->block_table = attn_tensor_bshd(table, ATTN_I64, 3, 6, 1, 1);
    assert_int_equal(attn_forward(NULL, a), ATTN_OK);
    table[2][0] = table[1][0] = 0; /* keys that were there before */
    assert_int_equal(attn_forward(NULL, a), ATTN_OK);
    table[1][2] = 0; /* rows 1, 2, 3 of page 0, whose rows 2 and 3 are sequence 0's */
    assert_refused(&s, "block_table[0][0] and [1][2] are both page 0: new rows would be written");
    memcpy(table, good, sizeof good);
    table[2][5] = 1; /* rows 1, 2, 3 of page 1, whose row 0 is sequence 0's */
    assert_int_equal(attn_forward(NULL, a), ATTN_OK);
    memcpy(table, good, sizeof good);
    table[0][1] = 0; /* row 0 and rows 2, 3 */
    assert_int_equal(attn_forward(NULL, a), ATTN_OK);
    table[1][2] = table[2][5] = 10;
    assert_refused(&s, "block_table[1][2] and [2][5] are both page 10: new rows would be written");
    steps_close(&s);
}

/* Two pages of a large pool, far from each other and from its begin. */
static void test_one_row_for_two_of_many(void **state)
{
    enum { PAGES = 200001 };
    static float pool[PAGES], row[2];
    int32_t table[] = {PAGES - 1, 100000};
    attn_forward_args a = {.struct_size = sizeof a};
    (void)state;
    a.q = a.o = a.k_new = a.v_new = attn_tensor_bshd(row, ATTN_F32, 2, 1, 1, 1);
    float other[2], news[2];
    a.o.data = other, a.k_new.data = a.v_new.data = news;
    a.k = a.v = attn_tensor_bshd(pool, ATTN_F32, PAGES, 1, 1, 1);
    a.v_new.data = NULL;
    memset(news, 0, sizeof news);
    a.block_table = attn_tensor_bshd(table, ATTN_I32, 2, 1, 1, 1);
    assert_int_equal(attn_forward(NULL, &a), ATTN_OK);
    table[1] = PAGES - 1;
    assert_int_equal(attn_forward(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "are both page 200000"));
}

/* Sequences behind each other in one page, by left padding: a comparison of all pairs would take
 * half a minute. */
static void test_many_in_one_page(void **state)
{
    enum { MANY = 50000 };
    static float pool[MANY], q[MANY], o[MANY], news[MANY];
    static int32_t table[MANY], used[MANY], pad[MANY];
    attn_forward_args a = {.struct_size = sizeof a};
    (void)state;
    a.q = a.o = a.k_new = attn_tensor_bshd(q, ATTN_F32, MANY, 1, 1, 1);
    a.o.data = o, a.k_new.data = news;
    a.k = a.v = attn_tensor_bshd(pool, ATTN_F32, 1, MANY, 1, 1);
    a.block_table = attn_tensor_bshd(table, ATTN_I32, MANY, 1, 1, 1);
    a.seqused_k = attn_tensor_bshd(used, ATTN_I32, MANY, 1, 1, 1);
    a.leftpad_k = attn_tensor_bshd(pad, ATTN_I32, MANY, 1, 1, 1);
    for (int i = 0; i < MANY; i++) {
        pad[i] = (int)(INT64_C(7919) * i % MANY), used[i] = pad[i] + 1;
        news[i] = (float)i;
    }
    assert_int_equal(attn_forward(NULL, &a), ATTN_OK);
    for (int i = 0; i < MANY; i++) {
        assert_true(pool[pad[i]] == (float)i && o[i] == pool[pad[i]]);
    }
    pad[40000] = pad[49999], used[40000] = used[49999];
    assert_int_equal(attn_forward(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(
        strstr(attn_last_error(), "block_table[40000][0] and [49999][0] are both page"));
}

/* Q is rotated alone: rows before position 0 are refused, those that q_origin places are not, be
 * they more than the keys. */
static void test_rows_without_keys(void **state)
{
    static const int64_t origin = 0;
    const rotation r = {16, false, 10000};
    (void)state;
    steps s = open_steps("hq=4 hkv=2 nq=5 nk=20 d=16 causal=1 lse=1 used_k=20", &r);
    attn_forward_args *a = &s.step.args;
    const attn_forward_args good = *a;
    int32_t used[] = {3};
    a->k_new.data = a->v_new.data = NULL;
    a->seqused_k = attn_tensor_bshd(used, ATTN_I32, 1, 1, 1, 1);
    assert_refused(&s, "sequence 0 has 3 keys in use, fewer than its 5 new rows");
    a->q_origin = attn_tensor_bshd(&origin, ATTN_I64, 1, 1, 1, 1);
    assert_int_equal(attn_forward(NULL, a), ATTN_OK);
    *a = good;
    steps_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_rotation_of_many_columns),
        cmocka_unit_test(test_tables_of_angles),
        cmocka_unit_test(test_view_of_the_keys),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_rows_without_keys),
        cmocka_unit_test(test_one_row_for_two),
        cmocka_unit_test(test_one_row_for_two_of_many),
        cmocka_unit_test(test_many_in_one_page),
        cmocka_unit_test(test_angles_of_each_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
