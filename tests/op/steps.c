/*
 * steps.c: see steps.h.
 */
#include "steps.h"
#include "inputs.h"
#include "layout.h"
#include "oracle.h"
#include "outputs.h"
#include "runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_tensor fresh(int32_t dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    const size_t bytes = (size_t)(n0 * n1 * n2 * n3) * attn_dtype_size(dtype);
    void *data = malloc(bytes + 1);
    if (data == NULL) {
        abort();
    }
    memset(data, 0xFF, bytes);
    attn_tensor t = attn_tensor_bshd(data, (attn_dtype)dtype, n0, n1, n2, n3);
    layout_loosen(&t);
    return t;
}

static attn_tensor fresh_like(const attn_tensor *t)
{
    return fresh(t->dtype, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
}

/* to[b][i][h] = from[b][i][h], rotated by the angles of a position. */
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

/* Makes a copy, rotated from position first[b] on; first: NULL for no rotation. */
static attn_tensor rotated(const attn_tensor *from, const int64_t *first, const rotation *r)
{
    const rotation none = {0, false, 1};
    attn_tensor to = fresh_like(from);
    for (int64_t b = 0; b < from->shape[0]; b++) {
        for (int64_t i = 0; i < from->shape[1]; i++) {
            for (int64_t h = 0; h < from->shape[2]; h++) {
                rotate_row(&to, from, b, i, h, first ? first[b] + i : 0, first ? r : &none);
            }
        }
    }
    return to;
}

attn_tensor steps_copy(const attn_tensor *from)
{
    return rotated(from, NULL, NULL);
}

static int64_t used_keys(const problem_spec *p, int64_t b)
{
    return p->has_used_k ? p->used_k[b] : p->nk;
}

static int64_t used_rows(const problem_spec *p, int64_t b)
{
    return p->has_used_q ? p->used_q[b] : p->nq;
}

/* New rows as a cache holds them: elements of its type, and scales and shifts of codes. */
typedef struct stored {
    attn_tensor rows, scale, shift;
} stored;

/* A cache, and the place of a key of sequence b in it. */
typedef struct cache {
    const attn_tensor *table, *rows, *scale, *shift;
} cache;

static cache cache_of(const attn_forward_args *a, bool v)
{
    return (cache){&a->block_table, v ? &a->v : &a->k, v ? &a->v_scale : &a->k_scale,
                   v ? &a->v_shift : &a->k_shift};
}

static void find_place(const cache *c, int64_t b, int64_t key, int64_t place[2])
{
    const int64_t page = c->rows->shape[1];
    place[0] = c->table->data ? (int64_t)oracle_element(c->table, b, key / page, 0, 0) : b;
    place[1] = c->table->data ? key % page : key;
}

/* True where a scale has a row for each key: an append writes it. */
static bool own_scales(const cache *c)
{
    return c->scale->data && c->scale->shape[0] == c->rows->shape[0] &&
           c->scale->shape[1] == c->rows->shape[1];
}

static char *element(const attn_tensor *t, const int64_t at[4])
{
    int64_t offset = 0;
    for (int axis = 0; axis < 4; axis++) {
        offset += t->shape[axis] > 1 ? at[axis] * t->stride[axis] : 0;
    }
    return (char *)t->data + offset * (int64_t)attn_dtype_size(t->dtype);
}

/* Copies the heads and columns of a row; from NULL: bits that are a NaN of types that have one. */
static void copy_row(const attn_tensor *to, const int64_t there[2], const attn_tensor *from,
                     const int64_t here[2])
{
    for (int64_t h = 0; to->data && h < to->shape[2]; h++) {
        for (int64_t c = 0; c < to->shape[3]; c++) {
            const int64_t put[4] = {there[0], there[1], h, c}, get[4] = {here[0], here[1], h, c};
            char *at = element(to, put);
            if (from) {
                memcpy(at, element(from, get), attn_dtype_size(to->dtype));
            } else {
                memset(at, 0xFF, attn_dtype_size(to->dtype));
            }
        }
    }
}

/* Writes row i of `from` (NULL: NaN) to key `key` of a cache, which may be paged. */
static void put_row(const cache *c, int64_t b, int64_t key, const stored *from, int64_t i)
{
    int64_t place[2];
    const int64_t row[2] = {b, i};
    find_place(c, b, key, place);
    copy_row(c->rows, place, from ? &from->rows : NULL, row);
    if (own_scales(c)) {
        copy_row(c->scale, place, from ? &from->scale : NULL, row);
        copy_row(c->shift, place, from ? &from->shift : NULL, row);
    }
}

/* Quantises new rows as the cache wants them, by its own scales where keys share them. */
static stored encoded(const steps *s, const attn_tensor *x, const cache *c)
{
    const problem_spec *p = &s->problem;
    stored to = {.rows = *x};
    if (p->kv_dtype == 0) {
        to.rows = steps_copy(x);
        return to;
    }
    const int64_t *n = x->shape, *g = c->scale->shape;
    to.rows = fresh(c->rows->dtype, n[0], n[1], n[2], c->rows->shape[3]);
    if (c->scale->data) {
        to.scale = fresh(c->scale->dtype, n[0], n[1], g[2], g[3]);
    }
    if (c->shift->data) {
        to.shift = fresh(c->scale->dtype, n[0], n[1], g[2], g[3]);
    }
    for (int64_t b = 0; b < n[0] && !own_scales(c); b++) {
        for (int64_t i = 0; i < used_rows(p, b); i++) {
            int64_t place[2];
            const int64_t row[2] = {b, i};
            find_place(c, b, used_keys(p, b) - used_rows(p, b) + i, place);
            copy_row(&to.scale, row, c->scale, place);
            copy_row(&to.shift, row, c->shift, place);
        }
    }
    const attn_quantize_args args = {.struct_size = sizeof args,
                                     .x = *x,
                                     .codes = to.rows,
                                     .scale = to.scale,
                                     .shift = to.shift,
                                     .scale_given = c->scale->data && !own_scales(c)};
    if (attn_quantize(NULL, &args) != ATTN_OK) {
        abort();
    }
    return to;
}

static void free_stored(stored *s)
{
    free(s->rows.data);
    free(s->scale.data);
    free(s->shift.data);
}

/* Puts new rows of K or V into the first cache, and NaN in their place into the second. */
static void put_rows(steps *s, const attn_tensor *x, bool v)
{
    const problem_spec *p = &s->problem;
    const cache whole = cache_of(&s->whole.args, v), step = cache_of(&s->step.args, v);
    stored rows = encoded(s, x, &whole);
    for (int64_t b = 0; b < p->b; b++) {
        for (int64_t i = 0; i < used_rows(p, b); i++) {
            const int64_t key = used_keys(p, b) - used_rows(p, b) + i;
            put_row(&whole, b, key, &rows, i);
            put_row(&step, b, key, NULL, i);
        }
    }
    free_stored(&rows);
}

bool steps_open(const problem_spec *problem, const rotation *r, steps *s)
{
    const problem_spec *p = problem;
    int64_t first[PROBLEM_MAX_SEQS];
    *s = (steps){.problem = *problem};
    if (!problem_tensors_create(p, PLACE_GUARD_AFTER, &s->whole)) {
        return false;
    }
    if (!problem_tensors_create(p, PLACE_GUARD_AFTER, &s->step)) {
        problem_tensors_free(&s->whole);
        return false;
    }
    s->k_new = fresh(p->dtype, p->b, p->nq, p->hkv, p->d);
    s->v_new = fresh(p->dtype, p->b, p->nq, p->hkv, p->dv);
    inputs_fill(&s->k_new, p->inputs, p->seed + 7, INPUTS_K);
    inputs_fill(&s->v_new, p->inputs, p->seed + 8, INPUTS_V);
    for (int64_t b = 0; b < p->b; b++) {
        first[b] = p->q_origins
                       ? p->q_origin[p->q_origins > 1 ? b : 0]
                       : used_keys(p, b) - used_rows(p, b) - (p->has_leftpad ? p->leftpad_k[b] : 0);
    }
    s->q = rotated(&s->whole.args.q, r ? first : NULL, r);
    attn_tensor k = rotated(&s->k_new, r ? first : NULL, r);
    put_rows(s, &k, false);
    put_rows(s, &s->v_new, true);
    free(k.data);
    attn_forward_args *a = &s->step.args;
    s->whole.args.q = s->q;
    a->k_new = s->k_new, a->v_new = s->v_new;
    if (r) {
        a->rope_base = r->base, a->rope_dims = r->dims;
        a->flags |= r->interleaved ? ATTN_ROPE_INTERLEAVED : 0u;
    }
    return true;
}

void steps_close(steps *s)
{
    problem_tensors_free(&s->whole);
    problem_tensors_free(&s->step);
    free(s->q.data);
    free(s->k_new.data);
    free(s->v_new.data);
}

static bool same_bits(const attn_forward_args *a, const attn_forward_args *b)
{
    const attn_tensor *of_a[] = {&a->k,       &a->v,       &a->o,       &a->lse,    &a->row_max,
                                 &a->k_scale, &a->v_scale, &a->k_shift, &a->v_shift},
                      *of_b[] = {&b->k,       &b->v,       &b->o,       &b->lse,    &b->row_max,
                                 &b->k_scale, &b->v_scale, &b->k_shift, &b->v_shift};
    size_t a_bytes, b_bytes;
    unsigned char *a_bits = outputs_copy_these(of_a, 9, &a_bytes),
                  *b_bits = outputs_copy_these(of_b, 9, &b_bytes);
    const bool same = a_bytes == b_bytes && memcmp(a_bits, b_bits, a_bytes) == 0;
    free(a_bits);
    free(b_bits);
    return same;
}

bool steps_agree(steps *s, const char *table, int threads, char *sentence, size_t size)
{
    if (!runs_once(&s->whole.args, table, threads, RUNS_NOISE, sentence, size) ||
        !runs_once(&s->step.args, table, threads, RUNS_NOISE, sentence, size)) {
        return false;
    }
    snprintf(sentence, size, "%s with %d threads: other bits than with the rows in the cache",
             table ? table : "best table", threads);
    return same_bits(&s->whole.args, &s->step.args);
}
