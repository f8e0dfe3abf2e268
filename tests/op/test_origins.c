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
static void set_place(const problem *p, struct place *to, attn_forward_args *a, int64_t first_row,
                      int64_t first_key)
{
    const bool placed = p->q_origins > 0 || p->k_origins > 0;
    for (int64_t b = 0; b < p->b; b++) {
        int64_t used_q = p->has_used_q ? p->used_q[b] : p->nq;
        int64_t used_k = p->has_used_k ? p->used_k[b] : p->nk;
        int64_t q = placed ? item(p->q_origin, p->q_origins, b) : used_k - used_q;
        to->q[b] = q + first_row, to->k[b] = item(p->k_origin, p->k_origins, b) + first_key;
        to->used_q[b] = cut(used_q, first_row, a->q.shape[1]);
        to->used_k[b] = cut(used_k, first_key, a->k.shape[1]);
    }
    a->q_origin = attn_tensor_bshd(to->q, ATTN_I64, p->b, 1, 1, 1);
    a->k_origin = attn_tensor_bshd(to->k, ATTN_I64, p->b, 1, 1, 1);
    a->seqused_q = attn_tensor_bshd(to->used_q, ATTN_I64, p->b, 1, 1, 1);
    a->seqused_k = attn_tensor_bshd(to->used_k, ATTN_I64, p->b, 1, 1, 1);
}

static attn_tensor slice_of(attn_tensor t, int axis, int64_t first, int64_t n)
{
    return t.data != NULL && t.shape[axis] > 1 ? tensor_slice(t, axis, first, n) : t;
}

/* Without origins dropout counts rows from 0: a whole to be compared with parts gets the origins
 * that its diagonal stands for. */
static trial open_whole(int line, struct place *whole)
{
    trial t = trial_open("%s lse=1 pass=backward", lines[line]);
    const attn_forward_args before = *t.args;
    set_place(&t.p, whole, t.args, 0, 0);
    t.args->seqused_q = before.seqused_q, t.args->seqused_k = before.seqused_k;
    return t;
}

/* ---- keys in parts --------------------------------------------------------------------------- */

/* Parts end inside quads of dropout's words and inside blocks of keys. */
static void part_of(int64_t nk, int part, int64_t *first, int64_t *n)
{
    const int64_t ends[PARTS + 1] = {0, 77, 130, nk};
    *first = ends[part], *n = ends[part + 1] - ends[part];
}

static attn_forward_args forward_part(const trial *t, int part, struct place *place)
{
    int64_t first, n;
    attn_forward_args a = *t->args;
    part_of(t->p.nk, part, &first, &n);
    a.k = tensor_slice(a.k, 1, first, n), a.v = tensor_slice(a.v, 1, first, n);
    a.mask = slice_of(a.mask, 3, first, n), a.bias = slice_of(a.bias, 3, first, n);
    set_place(&t->p, place, &a, 0, first);
    return a;
}

/* A tensor of t's shape and type with memory of its own. */
static attn_tensor fresh(const attn_tensor *t)
{
    const size_t count = (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]);
    return attn_tensor_bshd(calloc(count, sizeof(double)), (attn_dtype)t->dtype, t->shape[0],
                            t->shape[1], t->shape[2], t->shape[3]);
}

/* Into the outputs of t. */
static void run_forward_parts(const trial *t, const char *table)
{
    attn_tensor o[PARTS], lse[PARTS];
    for (int part = 0; part < PARTS; part++) {
        struct place place;
        attn_forward_args a = forward_part(t, part, &place);
        o[part] = a.o = fresh(&t->args->o), lse[part] = a.lse = fresh(&t->args->lse);
        assert_int_equal(attn_forward(tables_context(table, 2), &a), ATTN_OK);
    }
    attn_merge_args merge = {
        .struct_size = sizeof merge, .parts = PARTS, .part_o = o, .part_lse = lse};
    merge.o = t->args->o, merge.lse = t->args->lse;
    outputs_poison(t->args);
    assert_int_equal(attn_merge(NULL, &merge), ATTN_OK);
    for (int part = 0; part < PARTS; part++) {
        free(o[part].data);
        free(lse[part].data);
    }
}

static void assert_within_bounds(double share, const trial *t, const char *sentence)
{
    char line[1024];
    if (!(share <= 1)) {
        problem_print(&t->p, line, sizeof line);
        fail_msg("%s: %s", line, sentence);
    }
}

static void test_keys_in_parts(void **state)
{
    char sentence[512];
    (void)state;
    for (int line = 0; line < LINES; line++) {
        struct place place;
        trial t = open_whole(line, &place);
        run_forward_parts(&t, tables_usual());
        assert_within_bounds(outputs_judge(t.args, NULL, sentence, sizeof sentence), &t, sentence);
        trial_close(&t);
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
static void run_backward_parts(const trial *t, const char *table)
{
    const attn_backward_args *g = &t->tensors.grad;
    tensor_fill(&g->dq, 0);
    if (g->d_alibi_slopes.data != NULL) {
        tensor_fill(&g->d_alibi_slopes, 0);
    }
    for (int part = 0; part < PARTS; part++) {
        struct place place;
        int64_t first, n;
        attn_forward_args f = forward_part(t, part, &place);
        attn_backward_args a = *g;
        part_of(t->p.nk, part, &first, &n);
        a.forward = &f;
        a.dk = tensor_slice(g->dk, 1, first, n), a.dv = tensor_slice(g->dv, 1, first, n);
        a.d_bias = slice_of(g->d_bias, 3, first, n);
        a.dq = fresh(&g->dq);
        a.d_alibi_slopes = g->d_alibi_slopes.data ? fresh(&g->d_alibi_slopes) : g->d_alibi_slopes;
        assert_int_equal(attn_backward(tables_context(table, 2), &a), ATTN_OK);
        add(&g->dq, &a.dq);
        if (g->d_alibi_slopes.data != NULL) {
            add(&g->d_alibi_slopes, &a.d_alibi_slopes);
            free(a.d_alibi_slopes.data);
        }
        free(a.dq.data);
    }
}

static void test_gradients_of_parts(void **state)
{
    char sentence[512];
    (void)state;
    for (int line = 0; line < LINES; line++) {
        struct place place;
        trial t = open_whole(line, &place);
        grad_trial_forward(&t);
        run_backward_parts(&t, tables_usual());
        assert_within_bounds(grad_runs_judge(&t.tensors.grad, NULL, sentence, sizeof sentence), &t,
                             sentence);
        trial_close(&t);
    }
}

/* ---- blocks of queries ----------------------------------------------------------------------- */

/* Rows first .. first + n - 1 as a call of their own give the bits that the whole has there. */
static void compare_rows(const trial *t, int64_t first, int64_t n)
{
    struct place place;
    const attn_forward_args *whole = t->args;
    const attn_backward_args *g = &t->tensors.grad;
    attn_forward_args a = *whole;
    attn_backward_args b = *g;
    a.q = tensor_slice(a.q, 1, first, n);
    a.mask = slice_of(a.mask, 2, first, n), a.bias = slice_of(a.bias, 2, first, n);
    const attn_tensor o = tensor_slice(whole->o, 1, first, n),
                      dq = tensor_slice(g->dq, 1, first, n),
                      lse = tensor_slice(whole->lse, 1, first, n);
    a.o = fresh(&o), a.lse = fresh(&lse);
    set_place(&t->p, &place, &a, first, 0);
    assert_int_equal(attn_forward(tables_context(NULL, 2), &a), ATTN_OK);
    assert_same_tensor(&a.o, &o);
    assert_same_tensor(&a.lse, &lse);

    b.forward = &a;
    b.d_o = tensor_slice(g->d_o, 1, first, n), b.d_lse = slice_of(g->d_lse, 1, first, n);
    b.dq = fresh(&dq);
    b.dk.dtype = b.dv.dtype = b.d_bias.dtype = b.d_alibi_slopes.dtype = 0;
    b.dk.data = b.dv.data = b.d_bias.data = b.d_alibi_slopes.data = NULL;
    assert_int_equal(attn_backward(tables_context(NULL, 2), &b), ATTN_OK);
    assert_same_tensor(&b.dq, &dq);
    free(a.o.data);
    free(a.lse.data);
    free(b.dq.data);
}

static void test_blocks_of_queries(void **state)
{
    static const int64_t ends[] = {0, 1, 14, 38, 39};
    (void)state;
    for (int line = 0; line < LINES; line++) {
        struct place place;
        trial t = open_whole(line, &place);
        assert_int_equal(attn_forward(tables_context(NULL, 2), t.args), ATTN_OK);
        assert_int_equal(attn_backward(tables_context(NULL, 2), &t.tensors.grad), ATTN_OK);
        for (size_t n = 0; n < sizeof ends / sizeof *ends; n++) {
            const int64_t end = n + 1 < sizeof ends / sizeof *ends ? ends[n + 1] : t.p.nq;
            compare_rows(&t, ends[n], end - ends[n]);
        }
        trial_close(&t);
    }
}

/* An origin for all sequences is that origin for each; an absent one is 0. */
static void test_forms_of_an_origin(void **state)
{
    static const char *const same[] = {"q_origin=9,9 k_origin=0,0", "q_origin=9",
                                       "q_origin=9 k_origin=0", "q_origin=9,9 index=i64"};
    trial first = trial_open("b=2 hq=2 nq=30 nk=70 d=8 dtype=f32 causal=1 lse=1 %s", same[0]);
    (void)state;
    trial_check(&first);
    for (int n = 1; n < 4; n++) {
        trial t = trial_open("b=2 hq=2 nq=30 nk=70 d=8 dtype=f32 causal=1 lse=1 %s", same[n]);
        trial_run(&t);
        assert_same_outputs(&first, &t);
        trial_close(&t);
    }
    trial_close(&first);
}

/* ---- dropout's mask -------------------------------------------------------------------------- */

static void test_part_of_a_mask(void **state)
{
    enum { Q = 20, K = 33 };
    static unsigned char whole[Q * K], part[Q * K];
    (void)state;
    attn_dropout_mask_args a = {.struct_size = sizeof a, .dropout_p = 0.5, .dropout_seed = 3};
    a.keep = attn_tensor_bshd(whole, ATTN_BOOL, 1, 1, Q, K);
    assert_int_equal(attn_dropout_mask(NULL, &a), ATTN_OK);
    int64_t row = 0;
    for (int64_t first = 0; first < 9; first++) {
        row = first / 2;
        a.q_origin = attn_tensor_bshd(&row, ATTN_I64, 1, 1, 1, 1);
        a.k_origin = attn_tensor_bshd(&first, ATTN_I64, 1, 1, 1, 1);
        a.keep = attn_tensor_bshd(part, ATTN_BOOL, 1, 1, Q - row, K - first);
        assert_int_equal(attn_dropout_mask(NULL, &a), ATTN_OK);
        for (int64_t i = 0; i < Q - row; i++) {
            assert_memory_equal(part + i * (K - first), whole + (row + i) * K + first,
                                (size_t)(K - first));
        }
    }
    const int64_t far = INT64_C(1) << 34;
    a.k_origin = attn_tensor_bshd(&far, ATTN_I64, 1, 1, 1, 1);
    assert_int_equal(attn_dropout_mask(NULL, &a), ATTN_ERR_OVERFLOW);
    const int64_t negative = -1;
    a.k_origin = attn_tensor_bshd(&negative, ATTN_I64, 1, 1, 1, 1);
    assert_int_equal(attn_dropout_mask(NULL, &a), ATTN_ERR_INVALID_ARGUMENT);
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
