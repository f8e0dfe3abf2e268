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

/* Writes row i of `from` (NULL: NaN) to key `key` of a cache, which may be paged. */
static void put_row(const attn_forward_args *args, const attn_tensor *cache, int64_t b, int64_t key,
                    const attn_tensor *from, int64_t i)
{
    const attn_tensor *table = &args->block_table;
    const int64_t page = args->k.shape[1],
                  tensor = table->data ? (int64_t)oracle_element(table, b, key / page, 0, 0) : b,
                  row = table->data ? key % page : key;
    for (int64_t h = 0; h < cache->shape[2]; h++) {
        for (int64_t c = 0; c < cache->shape[3]; c++) {
            inputs_store(cache, tensor, row, h, c,
                         from ? oracle_element(from, b, i, h, c) : (double)NAN);
        }
    }
}

static void put_rows(steps *s, const attn_tensor *k)
{
    const problem_spec *p = &s->problem;
    for (int64_t b = 0; b < p->b; b++) {
        for (int64_t i = 0; i < p->nq; i++) {
            const int64_t key = used_keys(p, b) - p->nq + i;
            put_row(&s->whole.args, &s->whole.args.k, b, key, k, i);
            put_row(&s->whole.args, &s->whole.args.v, b, key, &s->v_new, i);
            put_row(&s->step.args, &s->step.args.k, b, key, NULL, i);
            put_row(&s->step.args, &s->step.args.v, b, key, NULL, i);
        }
    }
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
        first[b] = p->q_origins ? p->q_origin[p->q_origins > 1 ? b : 0]
                                : used_keys(p, b) - p->nq - (p->has_leftpad ? p->leftpad_k[b] : 0);
    }
    s->q = rotated(&s->whole.args.q, r ? first : NULL, r);
    attn_tensor k = rotated(&s->k_new, r ? first : NULL, r);
    put_rows(s, &k);
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
    const attn_tensor *of_a[] = {&a->k, &a->v, &a->o, &a->lse, &a->row_max},
                      *of_b[] = {&b->k, &b->v, &b->o, &b->lse, &b->row_max};
    size_t a_bytes, b_bytes;
    unsigned char *a_bits = outputs_copy_these(of_a, 5, &a_bytes),
                  *b_bits = outputs_copy_these(of_b, 5, &b_bytes);
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
