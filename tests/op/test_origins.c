/*
 * test_origins.c: parts of a sequence as calls of their own (C3, C11): keys in several calls whose
 * results attn_merge adds up and whose gradients add up, blocks of queries that get the bits of the
 * whole, and parts of a dropout mask.
 */
#include "grad_trial.h"
#include "oracle.h"
#include "outputs.h"
#include "tables.h"

enum { PARTS = 3, SEQUENCES = 8 };

/* Lines with at least as many keys as queries in every sequence. */
static const char *const lines[] = {
    "hq=2 nq=50 nk=200 d=16 dtype=f32 causal=1",
    "b=2 hq=4 hkv=2 nq=50 nk=200 d=16 dtype=f32 causal=1 alibi=h d_alibi=1 dropout=0.2 d_lse=1",
    "hq=4 hkv=2 nq=90 nk=200 d=16 dtype=f64 window_left=70 window_right=20 alibi=bh d_alibi=1 "
    "dropout=0.3 softcap=5",
    "b=2 hq=4 nq=60 nk=150 d=24 dtype=f32 causal=1 window_left=33 mask=bqk bias=hqk d_bias=f32 "
    "dropout=0.1",
    "b=2 hq=6 hkv=2 nq=40 nk=160 d=8 dtype=f32 causal=1 alibi=bh used_q=40,7 used_k=101,160 "
    "dropout=0.4",
    "b=2 hq=2 nq=70 nk=150 d=16 dtype=f32 causal=1 window_left=90 q_origin=300,40 k_origin=200,3 "
    "dropout=0.2 alibi=h",
    "hq=2 nq=70 nk=150 d=16 dtype=f64 q_origin=5 k_origin=7 window_right=9 dropout=0.2",
};
enum { LINES = sizeof lines / sizeof *lines };

/* Origins and lengths of a part, of each sequence. */
struct place {
    int64_t q[SEQUENCES], k[SEQUENCES], used_q[SEQUENCES], used_k[SEQUENCES];
};

static int64_t item(const int64_t *list, int32_t count, int64_t b)
{
    return count == 0 ? 0 : list[count == 1 ? 0 : b];
}

static int64_t cut(int64_t used, int64_t first, int64_t n)
{
    return used < first ? 0 : used - first < n ? used - first : n;
}

/* Origins and lengths of the part from first_row and first_key on; its extents are a's. */
static void set_place(const problem_spec *problem, struct place *to, attn_forward_args *args,
                      int64_t first_row, int64_t first_key)
{
    const bool placed = problem->q_origins > 0 || problem->k_origins > 0;
    for (int64_t b = 0; b < problem->b; b++) {
        int64_t used_q = problem->has_used_q ? problem->used_q[b] : problem->nq;
        int64_t used_k = problem->has_used_k ? problem->used_k[b] : problem->nk;
        int64_t q = placed ? item(problem->q_origin, problem->q_origins, b) : used_k - used_q;
        to->q[b] = q + first_row,
        to->k[b] = item(problem->k_origin, problem->k_origins, b) + first_key;
        to->used_q[b] = cut(used_q, first_row, args->q.shape[1]);
        to->used_k[b] = cut(used_k, first_key, args->k.shape[1]);
    }
    args->q_origin = attn_tensor_bshd(to->q, ATTN_I64, problem->b, 1, 1, 1);
    args->k_origin = attn_tensor_bshd(to->k, ATTN_I64, problem->b, 1, 1, 1);
    args->seqused_q = attn_tensor_bshd(to->used_q, ATTN_I64, problem->b, 1, 1, 1);
    args->seqused_k = attn_tensor_bshd(to->used_k, ATTN_I64, problem->b, 1, 1, 1);
}

static attn_tensor slice_of(attn_tensor t, int axis, int64_t first, int64_t n)
{
    return t.data != NULL && t.shape[axis] > 1 ? tensor_slice(t, axis, first, n) : t;
}

/* Without origins dropout counts rows from 0: a whole to be compared with parts gets the origins
 * that its diagonal stands for. */
static op_trial open_whole(int line, struct place *whole)
{
    op_trial trial = trial_open("%s lse=1 pass=backward", lines[line]);
    const attn_forward_args before = *trial.args;
    set_place(&trial.problem, whole, trial.args, 0, 0);
    trial.args->seqused_q = before.seqused_q, trial.args->seqused_k = before.seqused_k;
    return trial;
}

/* ---- keys in parts --------------------------------------------------------------------------- */

/* Parts end inside quads of dropout's words and inside blocks of keys. */
static void part_of(int64_t nk, int part, int64_t *first, int64_t *n)
{
    const int64_t ends[PARTS + 1] = {0, 77, 130, nk};
    *first = ends[part], *n = ends[part + 1] - ends[part];
}

static attn_forward_args forward_part(const op_trial *trial, int part, struct place *place)
{
    int64_t first, n;
    attn_forward_args args = *trial->args;
    part_of(trial->problem.nk, part, &first, &n);
    args.k = tensor_slice(args.k, 1, first, n), args.v = tensor_slice(args.v, 1, first, n);
    args.mask = slice_of(args.mask, 3, first, n), args.bias = slice_of(args.bias, 3, first, n);
    set_place(&trial->problem, place, &args, 0, first);
    return args;
}

/* A tensor of t's shape and type with memory of its own. */
static attn_tensor fresh(const attn_tensor *t)
{
    const size_t count = (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]);
    return attn_tensor_bshd(calloc(count, sizeof(double)), (attn_dtype)t->dtype, t->shape[0],
                            t->shape[1], t->shape[2], t->shape[3]);
}

/* Into the outputs of t. */
static void run_forward_parts(const op_trial *trial, const char *table)
{
    attn_tensor o[PARTS], lse[PARTS];
    for (int part = 0; part < PARTS; part++) {
        struct place place;
        attn_forward_args args = forward_part(trial, part, &place);
        o[part] = args.o = fresh(&trial->args->o), lse[part] = args.lse = fresh(&trial->args->lse);
        assert_int_equal(attn_forward(tables_context(table, 2), &args), ATTN_OK);
    }
    attn_merge_args merge = {
        .struct_size = sizeof merge, .parts = PARTS, .part_o = o, .part_lse = lse};
    merge.o = trial->args->o, merge.lse = trial->args->lse;
    outputs_poison(trial->args);
    assert_int_equal(attn_merge(NULL, &merge), ATTN_OK);
    for (int part = 0; part < PARTS; part++) {
        free(o[part].data);
        free(lse[part].data);
    }
}

static void assert_within_bounds(double share, const op_trial *trial, const char *sentence)
{
    char line[1024];
    if (!(share <= 1)) {
        problem_print(&trial->problem, line, sizeof line);
        fail_msg("%s: %s", line, sentence);
    }
}

static void test_keys_in_parts(void **state)
{
    char sentence[512];
    (void)state;
    for (int line = 0; line < LINES; line++) {
        struct place place;
        op_trial trial = open_whole(line, &place);
        run_forward_parts(&trial, tables_usual());
        assert_within_bounds(outputs_judge(trial.args, NULL, sentence, sizeof sentence), &trial,
                             sentence);
        trial_close(&trial);
    }
}

/* sum += x, element by element. */
static void add(const attn_tensor *sum, const attn_tensor *x)
{
    for (int64_t i0 = 0; i0 < x->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < x->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < x->shape[2]; i2++) {
                for (int64_t i3 = 0; i3 < x->shape[3]; i3++) {
                    inputs_store(sum, i0, i1, i2, i3,
                                 oracle_element(sum, i0, i1, i2, i3) +
                                     oracle_element(x, i0, i1, i2, i3));
                }
            }
        }
    }
}

/* Gradients of the parts with O and LSE of the whole: those of keys are final, others add up. */
static void run_backward_parts(const op_trial *trial, const char *table)
{
    const attn_backward_args *backward = &trial->tensors.grad;
    tensor_fill(&backward->dq, 0);
    if (backward->d_alibi_slopes.data != NULL) {
        tensor_fill(&backward->d_alibi_slopes, 0);
    }
    for (int part = 0; part < PARTS; part++) {
        struct place place;
        int64_t first, n;
        attn_forward_args forward = forward_part(trial, part, &place);
        attn_backward_args args = *backward;
        part_of(trial->problem.nk, part, &first, &n);
        args.forward = &forward;
        args.dk = tensor_slice(backward->dk, 1, first, n),
        args.dv = tensor_slice(backward->dv, 1, first, n);
        args.d_bias = slice_of(backward->d_bias, 3, first, n);
        args.dq = fresh(&backward->dq);
        args.d_alibi_slopes = backward->d_alibi_slopes.data ? fresh(&backward->d_alibi_slopes)
                                                            : backward->d_alibi_slopes;
        assert_int_equal(attn_backward(tables_context(table, 2), &args), ATTN_OK);
        add(&backward->dq, &args.dq);
        if (backward->d_alibi_slopes.data != NULL) {
            add(&backward->d_alibi_slopes, &args.d_alibi_slopes);
            free(args.d_alibi_slopes.data);
        }
        free(args.dq.data);
    }
}

static void test_gradients_of_parts(void **state)
{
    char sentence[512];
    (void)state;
    for (int line = 0; line < LINES; line++) {
        struct place place;
        op_trial trial = open_whole(line, &place);
        grad_trial_forward(&trial);
        run_backward_parts(&trial, tables_usual());
        assert_within_bounds(
            grad_runs_judge(&trial.tensors.grad, NULL, false, sentence, sizeof sentence), &trial,
            sentence);
        trial_close(&trial);
    }
}

/* ---- blocks of queries ----------------------------------------------------------------------- */

/* Rows first .. first + n - 1 as a call of their own give the bits that the whole has there. */
static void compare_rows(const op_trial *trial, int64_t first, int64_t n)
{
    struct place place;
    const attn_forward_args *whole = trial->args;
    const attn_backward_args *backward = &trial->tensors.grad;
    attn_forward_args args = *whole;
    attn_backward_args other = *backward;
    args.q = tensor_slice(args.q, 1, first, n);
    args.mask = slice_of(args.mask, 2, first, n), args.bias = slice_of(args.bias, 2, first, n);
    const attn_tensor o = tensor_slice(whole->o, 1, first, n),
                      dq = tensor_slice(backward->dq, 1, first, n),
                      lse = tensor_slice(whole->lse, 1, first, n);
    args.o = fresh(&o), args.lse = fresh(&lse);
    set_place(&trial->problem, &place, &args, first, 0);
    assert_int_equal(attn_forward(tables_context(NULL, 2), &args), ATTN_OK);
    assert_same_tensor(&args.o, &o);
    assert_same_tensor(&args.lse, &lse);

    other.forward = &args;
    other.d_o = tensor_slice(backward->d_o, 1, first, n),
    other.d_lse = slice_of(backward->d_lse, 1, first, n);
    other.dq = fresh(&dq);
    other.dk.dtype = other.dv.dtype = other.d_bias.dtype = other.d_alibi_slopes.dtype = 0;
    other.dk.data = other.dv.data = other.d_bias.data = other.d_alibi_slopes.data = NULL;
    assert_int_equal(attn_backward(tables_context(NULL, 2), &other), ATTN_OK);
    assert_same_tensor(&other.dq, &dq);
    free(args.o.data);
    free(args.lse.data);
    free(other.dq.data);
}

static void test_blocks_of_queries(void **state)
{
    static const int64_t ends[] = {0, 1, 14, 38, 39};
    (void)state;
    for (int line = 0; line < LINES; line++) {
        struct place place;
        op_trial trial = open_whole(line, &place);
        assert_int_equal(attn_forward(tables_context(NULL, 2), trial.args), ATTN_OK);
        assert_int_equal(attn_backward(tables_context(NULL, 2), &trial.tensors.grad), ATTN_OK);
        for (size_t n = 0; n < sizeof ends / sizeof *ends; n++) {
            const int64_t end = n + 1 < sizeof ends / sizeof *ends ? ends[n + 1] : trial.problem.nq;
            compare_rows(&trial, ends[n], end - ends[n]);
        }
        trial_close(&trial);
    }
}

/* An origin for all sequences is that origin for each; an absent one is 0. */
static void test_forms_of_an_origin(void **state)
{
    static const char *const same[] = {"q_origin=9,9 k_origin=0,0", "q_origin=9",
                                       "q_origin=9 k_origin=0", "q_origin=9,9 index=i64"};
    op_trial first = trial_open("b=2 hq=2 nq=30 nk=70 d=8 dtype=f32 causal=1 lse=1 %s", same[0]);
    (void)state;
    trial_check(&first);
    for (int n = 1; n < 4; n++) {
        op_trial trial =
            trial_open("b=2 hq=2 nq=30 nk=70 d=8 dtype=f32 causal=1 lse=1 %s", same[n]);
        trial_run(&trial);
        assert_same_outputs(&first, &trial);
        trial_close(&trial);
    }
    trial_close(&first);
}

/* ---- dropout's mask -------------------------------------------------------------------------- */

static void test_part_of_a_mask(void **state)
{
    enum { Q = 20, K = 33 };
    static unsigned char whole[Q * K], part[Q * K];
    (void)state;
    attn_dropout_mask_args args = {.struct_size = sizeof args, .dropout_p = 0.5, .dropout_seed = 3};
    args.keep = attn_tensor_bshd(whole, ATTN_BOOL, 1, 1, Q, K);
    assert_int_equal(attn_dropout_mask(NULL, &args), ATTN_OK);
    int64_t row = 0;
    for (int64_t first = 0; first < 9; first++) {
        row = first / 2;
        args.q_origin = attn_tensor_bshd(&row, ATTN_I64, 1, 1, 1, 1);
        args.k_origin = attn_tensor_bshd(&first, ATTN_I64, 1, 1, 1, 1);
        args.keep = attn_tensor_bshd(part, ATTN_BOOL, 1, 1, Q - row, K - first);
        assert_int_equal(attn_dropout_mask(NULL, &args), ATTN_OK);
        for (int64_t i = 0; i < Q - row; i++) {
            assert_memory_equal(part + i * (K - first), whole + (row + i) * K + first,
                                (size_t)(K - first));
        }
    }
    const int64_t far = INT64_C(1) << 34;
    args.k_origin = attn_tensor_bshd(&far, ATTN_I64, 1, 1, 1, 1);
    assert_int_equal(attn_dropout_mask(NULL, &args), ATTN_ERR_OVERFLOW);
    const int64_t negative = -1;
    args.k_origin = attn_tensor_bshd(&negative, ATTN_I64, 1, 1, 1, 1);
    assert_int_equal(attn_dropout_mask(NULL, &args), ATTN_ERR_INVALID_ARGUMENT);
    args.q_origin = (attn_tensor){.data = NULL};
    args.k_origin = attn_tensor_bshd(&row, ATTN_I64, 1, 1, 1, 1);
    args.keep = attn_tensor_bshd(&row, ATTN_BOOL, 1, 1, 2, 4);
    assert_int_equal(attn_dropout_mask(NULL, &args), ATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "keep and k_origin overlap"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_in_parts),     cmocka_unit_test(test_gradients_of_parts),
        cmocka_unit_test(test_blocks_of_queries), cmocka_unit_test(test_forms_of_an_origin),
        cmocka_unit_test(test_part_of_a_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
