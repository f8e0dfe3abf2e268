/*
 * test_merge_backward.c: gradients through attn_merge: central differences of the library's own
 * merge in f64; empty parts; types; a split training step against one over all keys; wrong
 * arguments, and overlaps among many parts.
 */
#include "core/overlap.h"
#include "grad_trial.h"
#include "oracle.h"
#include "tables.h"

#include <stdlib.h>

enum { B = 2, NQ = 3, HEADS = 2, DV = 5, PARTS = 3, ROWS = B * NQ * HEADS, SIZE = ROWS * DV };

/* Parts, a merged result with its gradients, and the gradients of the parts, all of one type. */
typedef struct merge_case {
    double o[PARTS][SIZE], lse[PARTS][ROWS], merged_o[SIZE], merged_lse[ROWS];
    double d_o[SIZE], d_lse[ROWS], part_d_o[PARTS][SIZE], part_d_lse[PARTS][ROWS];
    attn_tensor t_o[PARTS], t_lse[PARTS], t_d_o[PARTS], t_d_lse[PARTS];
    attn_merge_args merge;
    attn_merge_backward_args args;
} merge_case;

static attn_tensor tensor_of(const void *data, int64_t last)
{
    return attn_tensor_bshd(data, ATTN_F64, B, NQ, HEADS, last);
}

static void fill(double *values, int64_t count, int tensor)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = inputs_normal(inputs_bits(5, tensor, i));
    }
}

static void setup(merge_case *test)
{
    memset(test, 0xFF, sizeof *test);
    for (int p = 0; p < PARTS; p++) {
        fill(test->o[p], SIZE, p);
        fill(test->lse[p], ROWS, 10 + p);
        test->t_o[p] = tensor_of(test->o[p], DV), test->t_lse[p] = tensor_of(test->lse[p], 1);
        test->t_d_o[p] = tensor_of(test->part_d_o[p], DV);
        test->t_d_lse[p] = tensor_of(test->part_d_lse[p], 1);
    }
    fill(test->d_o, SIZE, 20);
    fill(test->d_lse, ROWS, 21);
    test->merge = (attn_merge_args){.struct_size = sizeof test->merge,
                                    .parts = PARTS,
                                    .part_o = test->t_o,
                                    .part_lse = test->t_lse,
                                    .o = tensor_of(test->merged_o, DV),
                                    .lse = tensor_of(test->merged_lse, 1)};
    test->args = (attn_merge_backward_args){.struct_size = sizeof test->args,
                                            .forward = &test->merge,
                                            .d_o = tensor_of(test->d_o, DV),
                                            .d_lse = tensor_of(test->d_lse, 1),
                                            .part_d_o = test->t_d_o,
                                            .part_d_lse = test->t_d_lse};
}

/* ---- differences ----------------------------------------------------------------------------- */

/* sum dO O + sum dLSE LSE */
static double loss(merge_case *test)
{
    double sum = 0;
    assert_int_equal(attn_merge(NULL, &test->merge), ATTN_OK);
    for (int i = 0; i < SIZE; i++) {
        sum += test->d_o[i] * test->merged_o[i];
    }
    for (int i = 0; i < ROWS && test->args.d_lse.data; i++) {
        sum += test->d_lse[i] * test->merged_lse[i];
    }
    return sum;
}

static void compare(merge_case *test, double *x, double got)
{
    static const double steps[] = {-2, -1, 1, 2}, weights[] = {1, -8, 8, -1};
    const double h = 1e-3, before = *x;
    double sum = 0;
    for (int n = 0; n < 4; n++) {
        *x = before + steps[n] * h;
        sum += weights[n] * loss(test);
    }
    *x = before;
    assert_near(got, sum / (12 * h), 1e-9);
}

static void test_differences(void **state)
{
    (void)state;
    for (int with_lse = 0; with_lse < 2; with_lse++) {
        merge_case test;
        setup(&test);
        test.args.d_lse.data = with_lse ? test.d_lse : NULL;
        assert_int_equal(attn_merge_backward(NULL, &test.args), ATTN_OK);
        for (int p = 0; p < PARTS; p++) {
            for (int i = 0; i < SIZE; i++) {
                compare(&test, &test.o[p][i], test.part_d_o[p][i]);
            }
            for (int i = 0; i < ROWS; i++) {
                compare(&test, &test.lse[p][i], test.part_d_lse[p][i]);
            }
        }
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* A part without a key gets 0 and changes nothing, whatever its o; so do all where all are. A NaN
 * stays in its row. */
static void test_empty_parts(void **state)
{
    merge_case test, two;
    (void)state;
    setup(&test);
    setup(&two);
    for (int i = 0; i < ROWS; i++) {
        test.lse[1][i] = two.lse[1][i] = -(double)INFINITY;
    }
    test.lse[0][4] = test.lse[2][4] = -(double)INFINITY; /* row 4 has no part */
    fill(test.o[1], SIZE, 33);
    test.o[1][2] = (double)NAN, test.o[0][4 * DV] = (double)INFINITY;
    test.d_o[7 * DV] = (double)NAN;
    assert_int_equal(attn_merge_backward(NULL, &test.args), ATTN_OK);
    assert_int_equal(attn_merge_backward(NULL, &two.args), ATTN_OK);
    for (int i = 0; i < SIZE; i++) {
        const int row = i / DV;
        assert_true(test.part_d_o[1][i] == 0 && test.part_d_lse[1][row] == 0);
        if (row == 4) {
            assert_true(test.part_d_o[0][i] == 0 && test.part_d_lse[2][row] == 0);
        } else if (row != 7) {
            assert_true(test.part_d_o[0][i] == two.part_d_o[0][i]);
            assert_true(test.part_d_lse[2][row] == two.part_d_lse[2][row]);
        } else {
            assert_true(isnan(test.part_d_lse[0][row]) &&
                        isnan(test.part_d_o[0][i]) == (i % DV == 0));
        }
    }
}

/* f16 and strided outputs; single outputs only. */
static void test_types_and_absence(void **state)
{
    merge_case test, all;
    uint16_t half[SIZE * 2];
    (void)state;
    setup(&test);
    setup(&all);
    memset(half, 0xFF, sizeof half);
    test.t_d_o[1] = attn_tensor_bshd(half, ATTN_F16, B, NQ, HEADS, DV);
    for (int a = 0; a < 4; a++) {
        test.t_d_o[1].stride[a] *= 2;
    }
    test.t_d_o[0].data = test.t_d_o[2].data = test.t_d_lse[0].data = NULL;
    assert_int_equal(attn_merge_backward(NULL, &all.args), ATTN_OK);
    assert_int_equal(attn_merge_backward(NULL, &test.args), ATTN_OK);
    for (int i = 0; i < SIZE; i++) {
        const double want = all.part_d_o[1][i];
        assert_near(oracle_element(&test.t_d_o[1], i / DV / HEADS / NQ, i / DV / HEADS % NQ,
                                   i / DV % HEADS, i % DV),
                    want, fabs(want) * 0x1p-11 + 0x1p-24);
        assert_int_equal(half[2 * i + 1], 0xFFFF);
        assert_true(isnan(test.part_d_o[0][i]) && isnan(test.part_d_lse[0][i / DV]));
        assert_true(test.part_d_lse[2][i / DV] == all.part_d_lse[2][i / DV]);
    }
    test.args.part_d_lse = NULL;
    assert_int_equal(attn_merge_backward(NULL, &test.args), ATTN_OK);
}

/* ---- a training step over parts of the keys -------------------------------------------------- */

/* The line's keys in two parts, each with forward and backward passes of its own; against one call
 * over all keys. */
static void split_step(const char *line, double error)
{
    op_trial whole = trial_open("hq=4 hkv=2 nq=40 nk=150 d=16 d_lse=1 pass=backward %s", line);
    op_trial half[2] = {
        trial_open("hq=4 hkv=2 nq=40 nk=64 d=16 d_lse=1 pass=backward %s", line),
        trial_open("hq=4 hkv=2 nq=40 nk=86 d=16 d_lse=1 pass=backward %s", line),
    };
    attn_tensor o[2], lse[2], d_o[2], d_lse[2];
    attn_context *context = tables_context(tables_usual(), 2);
    grad_trial_check(&whole);
    for (int n = 0; n < 2; n++) {
        const attn_tensor k = tensor_slice(whole.args->k, 1, n ? 64 : 0, n ? 86 : 64),
                          v = tensor_slice(whole.args->v, 1, n ? 64 : 0, n ? 86 : 64);
        tensor_copy(&half[n].args->q, &whole.args->q);
        tensor_copy(&half[n].args->k, &k);
        tensor_copy(&half[n].args->v, &v);
        assert_int_equal(attn_forward(context, half[n].args), ATTN_OK);
        o[n] = half[n].args->o, lse[n] = half[n].args->lse;
        d_o[n] = half[n].tensors.grad.d_o, d_lse[n] = half[n].tensors.grad.d_lse;
    }
    const attn_merge_args merge = {
        .struct_size = sizeof merge, .parts = 2, .part_o = o, .part_lse = lse};
    const attn_merge_backward_args args = {.struct_size = sizeof args,
                                           .forward = &merge,
                                           .d_o = whole.tensors.grad.d_o,
                                           .d_lse = whole.tensors.grad.d_lse,
                                           .part_d_o = d_o,
                                           .part_d_lse = d_lse};
    assert_int_equal(attn_merge_backward(context, &args), ATTN_OK);
    for (int n = 0; n < 2; n++) {
        assert_int_equal(attn_backward(context, &half[n].tensors.grad), ATTN_OK);
    }
    const attn_backward_args *all = &whole.tensors.grad, *first = &half[0].tensors.grad,
                             *second = &half[1].tensors.grad;
    for (int64_t at = 0; at < 40 * 4 * 16; at++) {
        const int64_t i = at / 64, h = at / 16 % 4, c = at % 16;
        assert_near(oracle_element(&first->dq, 0, i, h, c) +
                        oracle_element(&second->dq, 0, i, h, c),
                    oracle_element(&all->dq, 0, i, h, c), error);
    }
    for (int64_t at = 0; at < 150 * 2 * 16; at++) {
        const int64_t j = at / 32, h = at / 16 % 2, c = at % 16;
        const attn_backward_args *part = j < 64 ? first : second;
        const int64_t within = j < 64 ? j : j - 64;
        assert_near(oracle_element(&part->dk, 0, within, h, c),
                    oracle_element(&all->dk, 0, j, h, c), error);
        assert_near(oracle_element(&part->dv, 0, within, h, c),
                    oracle_element(&all->dv, 0, j, h, c), error);
    }
    trial_close(&whole);
    trial_close(&half[0]);
    trial_close(&half[1]);
}

static void test_split_step(void **state)
{
    (void)state;
    split_step("dtype=f64", 1e-13);
    split_step("dtype=f64 softcap=3 scale=0.4", 1e-13);
    split_step("dtype=f32", 1e-5);
    split_step("dtype=bf16 o_dtype=f32 grad_dtype=f32", 0.1);
}

/* ---- wrong arguments ------------------------------------------------------------------------- */

#define REFUSED(spoil, says)                                                             \
    do {                                                                                 \
        setup(&test);                                                                    \
        spoil;                                                                           \
        if (attn_merge_backward(NULL, &test.args) != ATTN_ERR_INVALID_ARGUMENT ||        \
            strstr(attn_last_error(), says) == NULL) {                                   \
            fail_msg("wanted \"%s\", got \"%s\"", says, attn_last_error());              \
        }                                                                                \
        assert_true(isnan(test.part_d_o[0][0]) && isnan(test.part_d_lse[PARTS - 1][0])); \
    } while (0)

static void test_misuse(void **state)
{
    merge_case test;
    (void)state;
    assert_int_equal(attn_merge_backward(NULL, NULL), ATTN_ERR_INVALID_ARGUMENT);
    REFUSED(test.args.struct_size = 0, "attn_merge_backward_args.struct_size = 0");
    REFUSED(test.args.forward = NULL, "attn_merge_backward_args.forward is NULL");
    REFUSED(test.merge.struct_size = 1, "attn_merge_args.struct_size = 1");
    REFUSED(test.merge.parts = 0, "parts = 0");
    REFUSED(test.args.d_o.data = NULL, "d_o.data is NULL");
    REFUSED(test.args.d_o.shape[3] = 4, "part_o[0].shape[3] = 5 but d_o.shape[3] = 4");
    REFUSED(test.args.d_lse.shape[1] = 2, "d_lse.shape[1] = 2 but d_o.shape[1] = 3");
    REFUSED(test.t_d_o[1].shape[1] = 2, "part_d_o[1].shape[1] = 2 but part_o[1].shape[1] = 3");
    REFUSED(test.t_d_o[2].dtype = ATTN_I32,
            "part_d_o[2].dtype = 6 (i32), must be f64, f32, f16 or bf16");
    REFUSED(test.t_d_lse[2].dtype = ATTN_F16, "part_d_lse[2].dtype = 3 (f16), must be f64 or f32");
    REFUSED(test.t_d_o[1].data = test.o[1],
            "part_d_o[1] and part_o[1] overlap: outputs must not share memory");
    REFUSED(test.t_d_lse[1].data = test.d_lse, "part_d_lse[1] and d_lse overlap");
    REFUSED(test.t_d_o[0].data = test.o[2], "part_d_o[0] and part_o[2] overlap");
    REFUSED(test.t_d_lse[0].data = test.lse[1], "part_d_lse[0] and part_lse[1] overlap");
    REFUSED(test.t_d_o[2].data = test.part_d_o[1], "part_d_o[1] and part_d_o[2] overlap");
    REFUSED(test.t_d_o[2].data = test.part_d_o[0], "part_d_o[0] and part_d_o[2] overlap");
    REFUSED(test.t_d_lse[2].data = test.part_d_lse[0], "part_d_lse[0] and part_d_lse[2] overlap");
    REFUSED(test.t_d_lse[1].data = test.part_d_o[0], "part_d_o[0] and part_d_lse[1] overlap");
    REFUSED(test.t_d_o[2].data = test.part_d_lse[1], "part_d_lse[1] and part_d_o[2] overlap");
}

/* ---- many parts ------------------------------------------------------------------------------ */

static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)*state * below >> 32);
}

/* A view of few elements, with gaps or without, some of its strides negative. */
static attn_tensor draw_view(uint32_t *state, float *memory, uint32_t size)
{
    attn_tensor t = attn_tensor_bshd(memory + 64 + draw(state, size), ATTN_F32, 1, 1,
                                     1 + draw(state, 3), 1 + draw(state, 4));
    t.stride[2] = t.shape[3] * (1 + draw(state, 2));
    t.stride[3] = 1 + draw(state, 2);
    t.stride[2 + draw(state, 2)] *= draw(state, 4) == 0 ? -1 : 1;
    return t;
}

enum { MOST_VIEWS = 1500 };

typedef struct views {
    attn_tensor view[MOST_VIEWS];
    bool output[MOST_VIEWS];
} views;

static int64_t asked; /* how often the list was asked for a view in a turn */

static const attn_tensor *list_views(const void *user, int64_t number, bool *output)
{
    const views *v = user;
    asked++;
    *output = v->output[number];
    return number % 7 == 3 ? NULL : &v->view[number];
}

static bool find_by_pairs(const views *v, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t n = 0; v->output[i] && n < count; n++) {
            if (n != i && i % 7 != 3 && n % 7 != 3 &&
                attn_tensors_overlap(&v->view[i], &v->view[n])) {
                return true;
            }
        }
    }
    return false;
}

/* The search in order finds an overlap where pairs have one: crowds of few and of many views, in
 * little memory and in much. It walks over the list once for 1024 stretches, of which a view has
 * three at most, and asks for the view of each. */
static void test_search(void **state)
{
    enum { ELEMENTS = 1 << 22, TURNS = 400 };
    float *memory = malloc((ELEMENTS + 128) * sizeof *memory);
    views *v = malloc(sizeof *v);
    uint32_t seed = 1;
    int found = 0;
    (void)state;
    for (int turn = 0; turn < TURNS; turn++, asked = 0) {
        const uint32_t count = turn % 50 == 0 ? MOST_VIEWS : 2 + draw(&seed, 12);
        const uint32_t size = turn % 50 == 0 ? ELEMENTS : 8 * count;
        for (uint32_t i = 0; i < count; i++) {
            v->view[i] = draw_view(&seed, memory, size);
            v->output[i] = draw(&seed, 4) == 0;
        }
        int64_t output, other;
        const bool want = find_by_pairs(v, count);
        assert_int_equal(attn_overlap_find(list_views, v, count, &output, &other), want);
        assert_true(!want || (v->output[output] && output != other &&
                              attn_tensors_overlap(&v->view[output], &v->view[other])));
        assert_in_range(asked, count, count * (3 * count / 1024 + 1) + 3 * count + 1);
        found += want;
    }
    assert_in_range(found, TURNS / 5, TURNS * 4 / 5);
    free(memory), free(v);
}

/* Comparing all pairs would take minutes. */
static void test_many_parts(void **state)
{
    enum { MANY = 20000 };
    float *x = calloc(4 * MANY + 2, sizeof *x);
    attn_tensor *t = malloc(4 * MANY * sizeof *t);
    attn_merge_args merge = {
        .struct_size = sizeof merge, .parts = MANY, .part_o = t, .part_lse = t + MANY};
    attn_merge_backward_args args = {
        .struct_size = sizeof args,
        .forward = &merge,
        .d_o = attn_tensor_bshd(x + 4 * MANY, ATTN_F32, 1, 1, 1, 1),
        .d_lse = attn_tensor_bshd(x + 4 * MANY + 1, ATTN_F32, 1, 1, 1, 1),
        .part_d_o = t + 2 * MANY,
        .part_d_lse = t + 3 * MANY,
    };
    (void)state;
    for (int i = 0; i < 4 * MANY; i++) {
        t[i] = attn_tensor_bshd(x + i / MANY * MANY + i % MANY * 7919 % MANY, ATTN_F32, 1, 1, 1, 1);
    }
    assert_int_equal(attn_merge_backward(NULL, &args), ATTN_OK);
    t[3 * MANY - 5].data = t[4 * MANY - 9].data;
    assert_int_equal(attn_merge_backward(NULL, &args), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "part_d_lse[19991] and part_d_o[19995] overlap: outputs "
                                           "must not share memory with other tensors");
    free(x), free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_empty_parts),
        cmocka_unit_test(test_types_and_absence),
        cmocka_unit_test(test_split_step),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_search),
        cmocka_unit_test(test_many_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
