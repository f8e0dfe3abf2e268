/*
 * test_append.c: new rows of the cache and rotary embedding within the call (k_new, v_new, rope_*):
 * the bits of the same done before it, in the cache and in the result, and nothing else written.
 */
#include "grad_trial.h"
#include "oracle.h"
#include "outputs.h"
#include "tables.h"

/* The rotation as the test knows it. */
typedef struct rotation {
    int64_t dims;
    bool interleaved;
    double base;
} rotation;

static attn_tensor fresh(const attn_tensor *like)
{
    const int64_t *n = like->shape;
    const size_t bytes = (size_t)(n[0] * n[1] * n[2] * n[3]) * attn_dtype_size(like->dtype);
    attn_tensor t =
        attn_tensor_bshd(malloc(bytes + 1), (attn_dtype)like->dtype, n[0], n[1], n[2], n[3]);
    assert_non_null(t.data);
    memset(t.data, 0xFF, bytes);
    return t;
}

static attn_tensor copy_of(const attn_tensor *from)
{
    attn_tensor t = fresh(from);
    tensor_copy(&t, from);
    return t;
}

/* to[b][i][h] = from[b][i][h], rotated as at a position. */
static void rotate_row(const attn_tensor *to, const attn_tensor *from, int64_t b, int64_t i,
                       int64_t h, int64_t position, const rotation *r)
{
    for (int64_t c = 0; c < from->shape[3]; c++) {
        double value = oracle_element(from, b, i, h, c);
        if (c < r->dims) {
            const int64_t half = r->dims / 2, pair = r->interleaved ? c / 2 : c % half;
            const bool second = r->interleaved ? c % 2 : c >= half;
            const int64_t other = r->interleaved ? c ^ 1 : second ? c - half : c + half;
            const double angle =
                (double)position * pow(r->base, -2 * (double)pair / (double)r->dims);
            const double partner = oracle_element(from, b, i, h, other);
            value = second ? partner * sin(angle) + value * cos(angle)
                           : value * cos(angle) - partner * sin(angle);
        }
        inputs_store(to, b, i, h, c, value);
    }
}

static attn_tensor rotated(const attn_tensor *from, const int64_t *first, const rotation *r)
{
    attn_tensor to = fresh(from);
    for (int64_t b = 0; b < from->shape[0]; b++) {
        for (int64_t i = 0; i < from->shape[1]; i++) {
            for (int64_t h = 0; h < from->shape[2]; h++) {
                rotate_row(&to, from, b, i, h, first[b] + i, r);
            }
        }
    }
    return to;
}

/* A step of decoding in two ways: `whole` has its rows in the cache and Q rotated, `step` gets them
 * by k_new and v_new, its cache holding NaN there. */
typedef struct steps {
    op_trial whole, step;
    attn_tensor q, k_new, v_new;
} steps;

enum { MOST_BATCH = 4 };

static int64_t used_keys(const problem_spec *p, int64_t b)
{
    return p->has_used_k ? p->used_k[b] : p->nk;
}

/* Row `key` of a trial's cache, which may be paged. */
static void find_row(const op_trial *t, int64_t b, int64_t key, int64_t *tensor, int64_t *row)
{
    const attn_tensor *table = &t->args->block_table;
    const int64_t size = t->args->k.shape[1];
    *tensor = table->data ? (int64_t)oracle_element(table, b, key / size, 0, 0) : b;
    *row = table->data ? key % size : key;
}

static void put_row(const op_trial *t, const attn_tensor *cache, int64_t b, int64_t key,
                    const attn_tensor *from, int64_t i, bool nan)
{
    int64_t tensor, row;
    find_row(t, b, key, &tensor, &row);
    for (int64_t h = 0; h < cache->shape[2]; h++) {
        for (int64_t c = 0; c < cache->shape[3]; c++) {
            inputs_store(cache, tensor, row, h, c,
                         nan ? (double)NAN : oracle_element(from, b, i, h, c));
        }
    }
}

static steps open_steps(const char *line, const rotation *r)
{
    steps s = {.whole = trial_open("%s", line), .step = trial_open("%s", line)};
    attn_forward_args *a = s.step.args;
    const problem_spec *p = &s.step.problem;
    int64_t first[MOST_BATCH];
    attn_tensor rows = a->k;
    rows.shape[0] = p->b, rows.shape[1] = p->nq;
    s.k_new = fresh(&rows);
    rows = a->v, rows.shape[0] = p->b, rows.shape[1] = p->nq;
    s.v_new = fresh(&rows);
    inputs_fill(&s.k_new, p->inputs, 7, INPUTS_K);
    inputs_fill(&s.v_new, p->inputs, 8, INPUTS_V);
    for (int64_t b = 0; b < p->b; b++) {
        first[b] = p->q_origins ? p->q_origin[b] : used_keys(p, b) - p->nq;
    }
    s.q = r ? rotated(&a->q, first, r) : copy_of(&a->q);
    attn_tensor k = r ? rotated(&s.k_new, first, r) : copy_of(&s.k_new);
    for (int64_t b = 0; b < p->b; b++) {
        for (int64_t i = 0; i < p->nq; i++) {
            const int64_t key = used_keys(p, b) - p->nq + i;
            put_row(&s.whole, &s.whole.args->k, b, key, &k, i, false);
            put_row(&s.whole, &s.whole.args->v, b, key, &s.v_new, i, false);
            put_row(&s.step, &a->k, b, key, NULL, i, true);
            put_row(&s.step, &a->v, b, key, NULL, i, true);
        }
    }
    free(k.data);
    s.whole.args->q = s.q;
    a->k_new = s.k_new, a->v_new = s.v_new;
    if (r) {
        a->rope_base = r->base, a->rope_dims = r->dims;
        a->flags |= r->interleaved ? ATTN_ROPE_INTERLEAVED : 0u;
    }
    return s;
}

static void close_steps(steps *s)
{
    trial_close(&s->whole);
    trial_close(&s->step);
    free(s->q.data);
    free(s->k_new.data);
    free(s->v_new.data);
}

static void compare_steps(steps *s)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        outputs_poison(s->whole.args);
        outputs_poison(s->step.args);
        assert_int_equal(attn_forward(tables_context(NULL, 2), s->whole.args), ATTN_OK);
        if (attn_forward(tables_context(NULL, threads), s->step.args) != ATTN_OK) {
            fail_msg("%s", attn_last_error());
        }
        assert_same_outputs(&s->whole, &s->step);
        assert_same_tensor(&s->whole.args->k, &s->step.args->k);
        assert_same_tensor(&s->whole.args->v, &s->step.args->v);
    }
}

static const char *const lines[] = {
    "b=2 hq=4 hkv=2 nq=1 nk=100 d=16 causal=1 lse=1 used_k=100,3",
    "b=3 hq=4 hkv=1 nq=3 nk=70 d=24 causal=1 lse=1 used_k=70,3,40 page=16 dtype=bf16",
    "b=2 hq=2 nq=5 nk=60 d=32 causal=1 used_k=60,33 page=3 dtype=f16 alibi=h",
    "hq=8 hkv=2 nq=40 nk=90 d=16 dv=24 causal=1 lse=1 dtype=f64 layout=bhsd",
    "b=2 hq=4 nq=2 nk=90 d=16 causal=1 q_origin=500,90 layout=gap index=i64",
};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static void test_append(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(lines); i++) {
        steps s = open_steps(lines[i], NULL);
        compare_steps(&s);
        close_steps(&s);
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
        close_steps(&s);
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
    s.step.args->rope_base = 0;
    s.step.args->rope_cos = attn_tensor_bshd(cosine, ATTN_F64, POSITIONS, PAIRS, 1, 1);
    s.step.args->rope_sin = attn_tensor_bshd(sine, ATTN_F64, POSITIONS, PAIRS, 1, 1);
    compare_steps(&s);
    s.step.args->rope_cos.shape[0] = 99;
    assert_int_equal(attn_forward(NULL, s.step.args), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "rope_cos.shape[0] = 99, but a row is at position 99");
    close_steps(&s);
}

/* V is a view of K: only K is appended to. */
static void test_view_of_the_keys(void **state)
{
    (void)state;
    steps s = open_steps("hq=8 hkv=1 nq=1 nk=64 d=24 dv=16 causal=1 lse=1", NULL);
    for (int i = 0; i < 2; i++) {
        attn_forward_args *a = i == 0 ? s.whole.args : s.step.args;
        a->v = a->k, a->v.shape[3] = 16;
    }
    s.step.args->v_new.data = NULL;
    compare_steps(&s);
    close_steps(&s);
}

/* Nothing is written. */
static void assert_refused(steps *s, const char *sentence)
{
    outputs_poison(s->step.args);
    const attn_tensor k = copy_of(&s->step.args->k);
    size_t bytes;
    unsigned char *before = outputs_copy(s->step.args, &bytes);
    assert_int_equal(attn_forward(NULL, s->step.args), ATTN_ERR_INVALID_ARGUMENT);
    if (strstr(attn_last_error(), sentence) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", attn_last_error(), sentence);
    }
    unsigned char *after = outputs_copy(s->step.args, &bytes);
    assert_memory_equal(before, after, bytes);
    assert_same_tensor(&k, &s->step.args->k);
    free(before);
    free(after);
    free(k.data);
}

static void test_refused(void **state)
{
    const rotation r = {16, false, 10000};
    (void)state;
    steps s = open_steps("b=2 hq=4 hkv=2 nq=3 nk=20 d=16 causal=1 lse=1 used_k=20,5", &r);
    attn_forward_args *a = s.step.args;
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
    close_steps(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),           cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_tables_of_angles), cmocka_unit_test(test_view_of_the_keys),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
