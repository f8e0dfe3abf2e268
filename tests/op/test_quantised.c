/*
 * test_quantised.c: quantised K and V (k_scale): attention has the bits of attention over the
 * codes' values; rows that are appended, rows that are not in use. Against the oracle:
 * quantised.txt.
 */
#include "codes_kit.h"
#include "grad_trial.h"
#include "oracle.h"
#include "outputs.h"
#include "tables.h"

/* The elements without gaps. */
static attn_tensor packed(const attn_tensor *from)
{
    attn_tensor t = fresh(from->dtype, from->shape);
    const int64_t *n = t.shape, size = (int64_t)attn_dtype_size(t.dtype);
    for (int64_t at = 0; at < n[0] * n[1] * n[2] * n[3]; at++) {
        const int64_t i3 = at % n[3], i2 = at / n[3] % n[2], i1 = at / n[3] / n[2] % n[1],
                      i0 = at / n[3] / n[2] / n[1];
        memcpy((char *)t.data + at * size,
               (const char *)from->data + size * (i0 * from->stride[0] + i1 * from->stride[1] +
                                                  i2 * from->stride[2] + i3 * from->stride[3]),
               (size_t)size);
    }
    return t;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* A call has the bits of one with the values in place of the codes, with ATTN_PRECISE where Q is of
 * bf16; with values of 16 bits where those are exact. */
static void test_bits_of_values(void **state)
{
    static const char *const lines[] = {
        "b=2 hq=8 hkv=2 nq=1 nk=300 d=64 lse=1 kv_dtype=i8",
        "b=2 hq=8 hkv=2 nq=5 nk=300 d=64 causal=1 kv_dtype=i4x2 kv_group=32 kv_shift=1",
        "b=1 hq=4 hkv=1 nq=2 nk=2500 d=32 page=16 kv_dtype=e4m3 kv_scale=f16:h",
        "b=2 hq=4 hkv=4 nq=40 nk=90 d=48 page=7 kv_dtype=e5m2 kv_scale=bkh kv_group=16",
        "b=2 hq=8 hkv=2 nq=1 nk=300 d=64 dtype=bf16 kv_dtype=e4m3",
        "b=2 hq=8 hkv=2 nq=1 nk=300 d=64 dtype=f16 kv_dtype=e5m2",
        "b=2 hq=8 hkv=2 nq=9 nk=100 d=64 dtype=bf16 kv_dtype=i8 kv_scale=1",
    };
    (void)state;
    for (int i = 0; i < COUNT(lines); i++) {
        op_trial codes = trial_open("%s", lines[i]), values = trial_open("%s", lines[i]);
        attn_forward_args *a = codes.args, *b = values.args;
        if (i == COUNT(lines) - 1) {
            tensor_fill(&a->k_scale, 0.25), tensor_fill(&a->v_scale, 0.5);
        }
        b->k = values_of(&a->k, &a->k_scale, &a->k_shift, a->q.dtype);
        b->v = values_of(&a->v, &a->v_scale, &a->v_shift, a->q.dtype);
        b->k_scale.data = b->k_shift.data = b->v_scale.data = b->v_shift.data = NULL;
        a->flags |= a->q.dtype == ATTN_BF16 ? ATTN_PRECISE : 0;
        b->flags |= ATTN_PRECISE;
        for (int threads = 1; threads <= 3; threads++) {
            outputs_poison(a), outputs_poison(b);
            assert_ok(attn_forward(tables_context(NULL, threads), a));
            assert_ok(attn_forward(tables_context(NULL, 2), b));
            assert_same_outputs(&codes, &values);
        }
        free(b->k.data);
        free(b->v.data);
        trial_close(&codes);
        trial_close(&values);
    }
}

/* The same for codes that are not finite, in a row of K that all see or in one of V; and in one of
 * K that gives all rows -inf, so that other keys of its chunk count. */
static void test_special_codes(void **state)
{
    static const char *const lines[] = {
        "b=2 hq=8 hkv=2 nq=1 nk=300 d=64 lse=1 kv_dtype=e4m3 kv_scale=bkh",
        "b=2 hq=8 hkv=2 nq=1 nk=300 d=64 lse=1 kv_dtype=e5m2 kv_scale=bkh page=16",
    };
    static const uint8_t codes_of[] = {0x7f, 0xfc}; /* NaN; minus infinity */
    (void)state;
    for (int i = 0; i < 2 * COUNT(lines) + 1; i++) {
        const int line = i < 2 * COUNT(lines) ? i / 2 : 1;
        op_trial codes = trial_open("%s", lines[line]), values = trial_open("%s", lines[line]);
        attn_forward_args *a = codes.args, *b = values.args;
        const attn_tensor *of = i % 2 ? &a->v : &a->k;
        ((uint8_t *)of->data)[77 * of->stride[1] + 5] = codes_of[line];
        for (int64_t head = 0; i == 2 * COUNT(lines) && head < 16; head++) {
            inputs_store(&a->q, head / 8, 0, head % 8, 5, 1);
            inputs_store(&b->q, head / 8, 0, head % 8, 5, 1);
        }
        b->k = values_of(&a->k, &a->k_scale, &a->k_shift, a->q.dtype);
        b->v = values_of(&a->v, &a->v_scale, &a->v_shift, a->q.dtype);
        b->k_scale.data = b->v_scale.data = NULL;
        b->flags |= ATTN_PRECISE;
        outputs_poison(a), outputs_poison(b);
        assert_ok(attn_forward(NULL, a));
        assert_ok(attn_forward(NULL, b));
        assert_same_outputs(&codes, &values);
        free(b->k.data);
        free(b->v.data);
        trial_close(&codes);
        trial_close(&values);
    }
}

/* The last row of several has the bits of a step of decoding. */
static void test_step_and_prefill(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(types); i++) {
        op_trial all = trial_open("hq=8 hkv=2 nq=33 nk=400 d=64 causal=1 dtype=bf16 o_dtype=f32 "
                                  "kv_dtype=%s kv_scale=bkh",
                                  i == 0   ? "i8"
                                  : i == 1 ? "i4x2"
                                  : i == 2 ? "e4m3"
                                           : "e5m2");
        assert_ok(attn_forward(NULL, all.args));
        attn_forward_args one = *all.args;
        const attn_tensor last = tensor_slice(all.args->o, 1, 32, 1);
        one.q = tensor_slice(one.q, 1, 32, 1), one.o = fresh(ATTN_F32, last.shape);
        assert_ok(attn_forward(NULL, &one));
        const attn_tensor same = packed(&last);
        assert_memory_equal(same.data, one.o.data, 8 * 64 * sizeof(float));
        free(one.o.data);
        free(same.data);
        trial_close(&all);
    }
}

/* Writes 0xFF, which is a NaN in scales and in floats of 8 bits, to the rows of keys that are not
 * in use. */
static void poison_unused(const op_trial *t, const attn_tensor *keys, const attn_tensor *lines)
{
    const attn_tensor *table = &t->args->block_table;
    for (int64_t page = 0; page < keys->shape[0]; page++) {
        for (int64_t row = 0; row < keys->shape[1]; row++) {
            bool used = false;
            for (int64_t at = 0; at < table->shape[0] * table->shape[1]; at++) {
                const int64_t b = at / table->shape[1], n = at % table->shape[1];
                used = used || ((int64_t)oracle_element(table, b, n, 0, 0) == page &&
                                n * keys->shape[1] + row < t->problem.used_k[b]);
            }
            for (int64_t h = 0; h < lines->shape[2] && !used; h++) {
                memset((char *)lines->data + (page * lines->stride[0] + row * lines->stride[1] +
                                              h * lines->stride[2]) *
                                                 (int64_t)attn_dtype_size(lines->dtype),
                       0xFF, (size_t)lines->shape[3] * attn_dtype_size(lines->dtype));
            }
        }
    }
}

static void test_unused_rows(void **state)
{
    static const char *const lines[] = {
        "b=3 hq=4 hkv=2 nq=2 nk=90 d=32 page=16 used_k=90,0,33 kv_dtype=i8 kv_shift=1",
        "b=3 hq=4 hkv=2 nq=2 nk=90 d=32 page=3 used_k=90,0,33 kv_dtype=e4m3 kv_scale=bkh",
        "b=3 hq=4 hkv=2 nq=2 nk=90 d=32 page=17 used_k=1,90,33 kv_dtype=e5m2 kv_scale=bkh",
        "b=3 hq=4 hkv=2 nq=2 nk=90 d=32 page=256 used_k=1,90,33 kv_dtype=i4x2 kv_group=16",
        "b=3 hq=4 hkv=2 nq=2 nk=90 d=32 dtype=bf16 page=3 used_k=90,0,33 kv_dtype=i8",
        "b=3 hq=4 hkv=2 nq=40 nk=90 d=32 dtype=bf16 page=16 used_k=1,90,33 kv_dtype=e5m2",
    };
    (void)state;
    for (int i = 0; i < COUNT(lines); i++) {
        op_trial clean = trial_open("%s", lines[i]), dirty = trial_open("%s", lines[i]);
        attn_forward_args *a = dirty.args;
        const attn_tensor *const all[] = {&a->k,       &a->v,       &a->k_scale,
                                          &a->v_scale, &a->k_shift, &a->v_shift};
        for (int n = 0; n < COUNT(all); n++) {
            if (all[n]->data) {
                poison_unused(&dirty, &a->k, all[n]);
            }
        }
        assert_ok(attn_forward(NULL, clean.args));
        assert_ok(attn_forward(NULL, a));
        assert_same_outputs(&clean, &dirty);
        trial_close(&clean);
        trial_close(&dirty);
    }
}

/* ---- rows that are appended ------------------------------------------------------------------ */

static attn_tensor one_row(const attn_tensor *t, int64_t i0, int64_t i1)
{
    attn_tensor row = *t;
    if (t->data) {
        const int64_t at =
            (t->shape[0] == 1 ? 0 : i0) * t->stride[0] + (t->shape[1] == 1 ? 0 : i1) * t->stride[1];
        row.data = (char *)t->data + at * (int64_t)attn_dtype_size(t->dtype);
        row.shape[0] = row.shape[1] = 1;
    }
    return row;
}

/* K and V with their scales and shifts, without gaps. */
typedef struct cache {
    attn_tensor codes[2], scale[2], shift[2];
} cache;

static cache cache_open(const attn_forward_args *a)
{
    cache c = {{packed(&a->k), packed(&a->v)}, {a->k_scale, a->v_scale}, {a->k_shift, a->v_shift}};
    for (int n = 0; n < 2; n++) {
        c.scale[n] = c.scale[n].data ? packed(&c.scale[n]) : c.scale[n];
        c.shift[n] = c.shift[n].data ? packed(&c.shift[n]) : c.shift[n];
    }
    return c;
}

static void cache_close(cache *c)
{
    for (int n = 0; n < 2; n++) {
        free(c->codes[n].data);
        free(c->scale[n].data);
        free(c->shift[n].data);
    }
}

static void cache_use(const cache *c, attn_forward_args *a)
{
    a->k = c->codes[0], a->v = c->codes[1];
    a->k_scale = c->scale[0], a->v_scale = c->scale[1];
    a->k_shift = c->shift[0], a->v_shift = c->shift[1];
}

static void assert_same_memory(const attn_tensor *a, const attn_tensor *b)
{
    const int64_t *n = a->shape;
    if (a->data) {
        assert_memory_equal(a->data, b->data,
                            (size_t)(n[0] * n[1] * n[2] * n[3]) * attn_dtype_size(a->dtype));
    }
}

/* Rotates the new rows as the call does: a cache of Q's type gets these. */
static void rotate_rows(const op_trial *t, attn_tensor rows[2], int64_t first)
{
    attn_forward_args plain = *t->args;
    int64_t n[4] = {t->problem.b, t->problem.nk, t->problem.hkv, t->problem.d};
    plain.k = fresh(plain.q.dtype, n), n[3] = t->problem.dv, plain.v = fresh(plain.q.dtype, n);
    plain.k_scale.data = plain.v_scale.data = plain.k_shift.data = plain.v_shift.data = NULL;
    plain.block_table.data = NULL;
    tensor_fill(&plain.k, 0), tensor_fill(&plain.v, 0);
    plain.k_new = rows[0], plain.v_new = rows[1];
    assert_ok(attn_forward(NULL, &plain));
    const attn_tensor k = tensor_slice(plain.k, 1, first, t->problem.nq);
    rows[0] = packed(&k);
    free(plain.k.data);
    free(plain.v.data);
}

static void append_case(const char *line, bool rotate)
{
    op_trial whole = trial_open("%s", line), step = trial_open("%s", line);
    const problem_spec *p = &whole.problem;
    cache want = cache_open(whole.args), got = cache_open(step.args);
    const int64_t first = p->nk - p->nq, n[4] = {p->b, p->nq, p->hkv, p->d},
                  m[4] = {p->b, p->nq, p->hkv, p->dv};
    attn_tensor rows[2] = {fresh(p->dtype, n), fresh(p->dtype, m)}, raw = rows[0];
    inputs_fill(&rows[0], p->inputs, 7, INPUTS_K);
    inputs_fill(&rows[1], p->inputs, 8, INPUTS_V);
    if (rotate) {
        whole.args->rope_base = step.args->rope_base = 10000;
    }
    step.args->k_new = rows[0], step.args->v_new = rows[1];
    rotate_rows(&whole, rows, first);
    for (int64_t at = 0; at < 2 * p->b * p->nq; at++) {
        const int64_t which = at % 2, b = at / 2 / p->nq, i = at / 2 % p->nq, key = first + i;
        const int64_t size = want.codes[which].shape[1];
        const attn_tensor *table = &whole.args->block_table;
        const int64_t page = table->data ? (int64_t)oracle_element(table, b, key / size, 0, 0) : b;
        const attn_tensor *scale = &want.scale[which];
        const bool given = !scale->data || scale->shape[0] != want.codes[which].shape[0] ||
                           scale->shape[1] != size;
        const attn_quantize_args a = {.struct_size = sizeof a,
                                      .x = one_row(&rows[which], b, i),
                                      .codes = one_row(&want.codes[which], page, key % size),
                                      .scale = one_row(scale, page, key % size),
                                      .shift = one_row(&want.shift[which], page, key % size),
                                      .scale_given = given};
        assert_ok(attn_quantize(NULL, &a));
    }
    cache_use(&want, whole.args);
    cache_use(&got, step.args);
    assert_ok(attn_forward(NULL, whole.args));
    assert_ok(attn_forward(tables_context(NULL, 2), step.args));
    assert_same_outputs(&whole, &step);
    for (int i = 0; i < 2; i++) {
        assert_same_memory(&want.codes[i], &got.codes[i]);
        assert_same_memory(&want.scale[i], &got.scale[i]);
        assert_same_memory(&want.shift[i], &got.shift[i]);
    }
    cache_close(&want);
    cache_close(&got);
    free(raw.data);
    free(rows[0].data);
    free(rows[1].data);
    trial_close(&whole);
    trial_close(&step);
}

static void test_append(void **state)
{
    static const char *const lines[] = {
        "b=2 hq=4 hkv=2 nq=3 nk=40 d=32 causal=1 lse=1 kv_dtype=i8",
        "b=2 hq=4 hkv=2 nq=3 nk=40 d=32 causal=1 kv_dtype=i8 kv_scale=f16:bkh kv_group=16",
        "b=2 hq=4 hkv=2 nq=3 nk=40 d=32 kv_dtype=i4x2 kv_shift=1 page=3 used_k=40,40 dtype=bf16",
        "b=2 hq=4 hkv=2 nq=1 nk=40 d=32 causal=1 kv_dtype=i4x2 kv_group=2 page=1 dtype=f16",
        "b=2 hq=4 hkv=2 nq=2 nk=40 d=32 causal=1 kv_dtype=e4m3 kv_scale=h page=16 used_k=40,40",
        "b=2 hq=4 hkv=2 nq=2 nk=40 d=32 causal=1 kv_dtype=e5m2",
        "b=2 hq=4 hkv=2 nq=2 nk=40 d=32 causal=1 kv_dtype=e4m3 kv_scale=bf16:bk",
    };
    (void)state;
    for (int i = 0; i < 2 * COUNT(lines); i++) {
        append_case(lines[i / 2], i % 2);
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void assert_refused(const attn_forward_args *a, attn_status status, const char *sentence)
{
    assert_int_equal(attn_forward(NULL, a), status);
    if (strstr(attn_last_error(), sentence) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", attn_last_error(), sentence);
    }
}

static void test_refused(void **state)
{
    (void)state;
    op_trial t = trial_open("b=2 hq=4 hkv=2 nq=3 nk=20 d=16 kv_dtype=i4x2 kv_shift=1");
    attn_forward_args *a = t.args;
    const attn_forward_args good = *a;
    a->k_scale.data = a->k_shift.data = NULL;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "k.dtype = 12 (i4x2) needs k_scale");
    *a = good, a->v_scale.shape[1] = 19;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "v_scale.shape[1] = 19, must be 1 or 20");
    *a = good, a->v_scale.shape[3] = 3;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "v_scale.shape[3] = 3 does not divide 16");
    *a = good, a->k_scale.dtype = ATTN_F64;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "k_scale.dtype = 1 (f64), must be f32");
    *a = good, a->k_shift.shape[2] = 1;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "k_scale and k_shift differ in type or shape");
    *a = good, a->k.dtype = ATTN_E4M3;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "k.shape[3] = 8 but q.shape[3] = 16");
    *a = good, a->k.shape[3] = 7;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "k.shape[3] = 7 of i4x2, 2 columns each, but q");
    *a = good, a->v.dtype = ATTN_E5M2, a->o.shape[3] = 8;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "v_shift is for i8 and i4x2");
    *a = good, a->q.dtype = a->o.dtype = ATTN_F64;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "q.dtype = 1 (f64), must be f32, f16 or bf16");
    *a = good, a->k = a->q, a->k.shape[2] = 2, a->v = a->k;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "");
    *a = good, a->k_new = a->q, a->k_new.shape[2] = 2, a->k_scale.data = a->k.data;
    assert_refused(a, ATTN_ERR_INVALID_ARGUMENT, "k and k_scale overlap");
    *a = good;
    attn_backward_args b = {.struct_size = sizeof b, .forward = a, .d_o = a->q, .dq = a->o};
    a->lse = a->o;
    assert_int_equal(attn_backward(NULL, &b), ATTN_ERR_UNSUPPORTED);
    assert_string_equal(attn_last_error(), "k.dtype = 12 (i4x2): quantised keys are for "
                                           "attn_forward only");
    *a = good;
    trial_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_values),   cmocka_unit_test(test_special_codes),
        cmocka_unit_test(test_step_and_prefill), cmocka_unit_test(test_unused_rows),
        cmocka_unit_test(test_append),           cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
