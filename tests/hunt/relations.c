/*
 * relations.c: see relations.h. Each relation changes the arguments of the second of two equal
 * problems, and says which element of the first one's result each element of the second one's is.
 */
#include "relations.h"
#include "inputs.h"
#include "judge.h"
#include "oracle.h"
#include "outputs.h"
#include "runs.h"
#include "tables.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Two problems with equal values. A relation changes the arguments of the second. */
struct pair {
    problem_tensors first, second;
    attn_forward_args *args; /* of the second */
    const char *table;
    int threads;
    int64_t origins[2]; /* q_origin and k_origin of the second */
    dice *d;
};

static attn_tensor *const *score_tensors(attn_forward_args *a, attn_tensor *list[4])
{
    list[0] = &a->mask, list[1] = &a->bias, list[2] = &a->alibi_slopes, list[3] = &a->sinks;
    return list;
}

static attn_tensor slice(attn_tensor t, int axis, int64_t first, int64_t n)
{
    t.data = (char *)t.data + first * t.stride[axis] * (int64_t)attn_dtype_size(t.dtype);
    t.shape[axis] = n;
    return t;
}

static attn_tensor reversed(attn_tensor t, int axis)
{
    if (t.data && t.shape[axis] > 0) {
        const int64_t last = (t.shape[axis] - 1) * t.stride[axis];
        t.data = (char *)t.data + last * (int64_t)attn_dtype_size(t.dtype);
        t.stride[axis] = -t.stride[axis];
    }
    return t;
}

/* Rows from `row` on and keys from `key` on of the whole problem, by origins. */
static void set_origins(struct pair *p, int64_t row, int64_t key)
{
    attn_forward_args *a = p->args;
    const int64_t off =
        a->flags & ATTN_TOP_LEFT ? 0 : p->first.args.k.shape[1] - p->first.args.q.shape[1];
    p->origins[0] = row + (off > 0 ? off : 0), p->origins[1] = key + (off < 0 ? -off : 0);
    a->q_origin = attn_tensor_bshd(&p->origins[0], ATTN_I64, 1, 1, 1, 1);
    a->k_origin = attn_tensor_bshd(&p->origins[1], ATTN_I64, 1, 1, 1, 1);
    a->flags &= ~(uint64_t)ATTN_TOP_LEFT;
}

static bool run_one(struct pair *p, const attn_forward_args *args, char *sentence, size_t size)
{
    return runs_once(args, p->table, p->threads, RUNS_NOISE, sentence, size);
}

/* got[b, i, h] = want[b0 + b, i0 + i, h0 + turn h] times a power of two. */
struct places {
    int64_t b0, i0, h0, turn;
    double factor;
};

static bool same_tensor(const attn_tensor *got, const attn_tensor *want, struct places at,
                        bool scaled)
{
    const double factor = scaled ? at.factor : 1;
    /* below that a 16-bit result may be subnormal, which rounds otherwise */
    const double least = factor == 1 ? 0 : got->dtype == ATTN_F16 ? 0x1p-9 : 0x1p-90;
    for (int64_t b = 0; b < got->shape[0]; b++) {
        for (int64_t i = 0; i < got->shape[1]; i++) {
            for (int64_t h = 0; h < got->shape[2]; h++) {
                for (int64_t c = 0; c < got->shape[3]; c++) {
                    const double x = oracle_element(got, b, i, h, c);
                    const double y =
                        oracle_element(want, at.b0 < 0 ? 0 : b, at.i0 + i, at.h0 + at.turn * h, c);
                    if (x != factor * y && !(isnan(x) && isnan(y)) && !(fabs(y) < least)) {
                        return false;
                    }
                }
            }
        }
    }
    return true;
}

static bool same(struct pair *p, struct places at, char *sentence, size_t size)
{
    const attn_forward_args *a = p->args, *whole = &p->first.args;
    if (!run_one(p, whole, sentence, size) || !run_one(p, a, sentence, size)) {
        return false;
    }
    snprintf(sentence, size, "other bits");
    return same_tensor(&a->o, &whole->o, at, true) &&
           same_tensor(&a->lse, &whole->lse, at, false) &&
           same_tensor(&a->row_max, &whole->row_max, at, false);
}

/* ---- relations ------------------------------------------------------------------------------- */

static bool values_scaled(struct pair *p, char *sentence, size_t size)
{
    const double factor = ldexp(1, (int)dice_roll(p->d, 5) - 2);
    const attn_tensor *v = &p->args->v;
    for (int64_t at = 0; at < v->shape[0] * v->shape[1] * v->shape[2] * v->shape[3]; at++) {
        const int64_t row = at / v->shape[3], head = row / v->shape[2];
        const int64_t b = head / v->shape[1], j = head % v->shape[1], h = row % v->shape[2];
        const int64_t c = at % v->shape[3];
        inputs_store(v, b, j, h, c, factor * oracle_element(v, b, j, h, c));
        /* a subnormal has lost bits that the first must lose too */
        inputs_store(&p->first.args.v, b, j, h, c, oracle_element(v, b, j, h, c) / factor);
    }
    return same(p, (struct places){0, 0, 0, 1, factor}, sentence, size);
}

/* A batch whose sequences all equal the first one. */
static bool batch_of_copies(struct pair *p, char *sentence, size_t size)
{
    attn_forward_args *a = p->args;
    attn_tensor *list[4];
    a->q.stride[0] = a->k.stride[0] = a->v.stride[0] = 0;
    for (int n = 0; n < 4; n++) {
        score_tensors(a, list)[n]->stride[0] = 0;
    }
    return same(p, (struct places){-1, 0, 0, 1, 1}, sentence, size);
}

static bool heads_reversed(struct pair *p, char *sentence, size_t size)
{
    attn_forward_args *a = p->args;
    attn_tensor *list[4];
    a->q = reversed(a->q, 2), a->k = reversed(a->k, 2), a->v = reversed(a->v, 2);
    for (int n = 0; n < 4; n++) {
        attn_tensor *t = score_tensors(a, list)[n];
        *t = t->shape[1] > 1 ? reversed(*t, 1) : *t;
    }
    return same(p, (struct places){0, 0, a->q.shape[2] - 1, -1, 1}, sentence, size);
}

/* Some rows in a call of their own. */
static bool some_rows(struct pair *p, char *sentence, size_t size)
{
    attn_forward_args *a = p->args;
    const int64_t rows = a->q.shape[1], first = dice_roll(p->d, rows + 1),
                  n = dice_roll(p->d, rows - first + 1);
    attn_tensor *const cut[] = {&a->q, &a->o, &a->lse, &a->row_max};
    set_origins(p, first, 0);
    for (int i = 0; i < 4; i++) {
        *cut[i] = slice(*cut[i], 1, first, n);
    }
    a->mask = a->mask.shape[2] == rows && rows > 1 ? slice(a->mask, 2, first, n) : a->mask;
    a->bias = a->bias.shape[2] == rows && rows > 1 ? slice(a->bias, 2, first, n) : a->bias;
    return same(p, (struct places){0, first, 0, 1, 1}, sentence, size);
}

/* True if an element is below the normal numbers of its type. */
static bool has_subnormal(const attn_tensor *o)
{
    const double least = o->dtype == ATTN_F64 ? DBL_MIN : FLT_MIN;
    bool found = false;
    for (int64_t at = 0; at < o->shape[0] * o->shape[1] * o->shape[2] * o->shape[3]; at++) {
        const int64_t row = at / o->shape[3], i = row / o->shape[2];
        const double x = oracle_element(o, i / o->shape[1], i % o->shape[1], row % o->shape[2],
                                        at % o->shape[3]);
        found |= x != 0 && fabs(x) < least;
    }
    return found;
}

/* The keys in two calls, merged, within twice the bound, since a merge rounds as well. No judgement
 * where sinks or small V make O subnormal: both roundings are of half the smallest number there,
 * which the bound has once. */
static bool keys_in_two_parts(struct pair *p, char *sentence, size_t size)
{
    attn_forward_args *a = p->args;
    const attn_forward_args whole = *a;
    const int64_t keys = a->k.shape[1], cut = dice_roll(p->d, keys + 1);
    attn_tensor o[2] = {p->first.args.o, whole.o}, lse[2] = {p->first.args.lse, whole.lse};
    if (a->mask.dtype == ATTN_B1X8) { /* a cut would be within a byte */
        return true;
    }
    for (int n = 0; n < 2; n++) {
        const int64_t first = n ? cut : 0, count = n ? keys - cut : cut;
        *a = whole;
        a->o = o[n], a->lse = lse[n];
        a->k = slice(a->k, 1, first, count), a->v = slice(a->v, 1, first, count);
        a->mask = a->mask.shape[3] == keys && keys > 1 ? slice(a->mask, 3, first, count) : a->mask;
        a->bias = a->bias.shape[3] == keys && keys > 1 ? slice(a->bias, 3, first, count) : a->bias;
        a->row_max.data = NULL;
        a->sinks.data = n ? NULL : a->sinks.data;
        set_origins(p, 0, first);
        if (!run_one(p, a, sentence, size)) {
            return false;
        }
    }
    const attn_merge_args merge = {.struct_size = sizeof merge,
                                   .parts = 2,
                                   .part_o = o,
                                   .part_lse = lse,
                                   .o = whole.o,
                                   .lse = whole.lse};
    if (attn_merge(tables_context(p->table, p->threads), &merge) != ATTN_OK) {
        snprintf(sentence, size, "%s", attn_last_error());
        return false;
    }
    *a = whole;
    a->row_max.data = NULL;
    return has_subnormal(&a->o) || outputs_judge(a, p->table, sentence, size) <= 2;
}

static const struct {
    const char *name;
    bool parts; /* O has 32 bits at least */
    bool (*judge)(struct pair *p, char *sentence, size_t size);
} relations[] = {
    {"V times a power of two", false, values_scaled},
    {"a batch of copies", false, batch_of_copies},
    {"heads in reverse order", false, heads_reversed},
    {"some of the rows", false, some_rows},
    {"keys in two parts", true, keys_in_two_parts},
};

bool relations_judge(dice *d, char *line, size_t line_size, char *sentence, size_t size)
{
    const int64_t which = dice_roll(d, sizeof relations / sizeof relations[0]);
    char error[512], why[512] = "";
    problem_spec spec;
    struct pair p = {.d = d, .threads = 1 + (int)dice_roll(d, 3), .table = judge_draw_table(d)};
    draw_plain_line(d, line, line_size);
    if (!problem_parse(line, &spec, error, sizeof error)) {
        return true;
    }
    spec.o_dtype = relations[which].parts && spec.dtype != ATTN_F64 ? ATTN_F32 : spec.o_dtype;
    problem_print(&spec, line, line_size);
    if (!problem_tensors_create(&spec, PLACE_PLAIN, &p.first)) {
        return true;
    }
    bool ok = true;
    if (problem_tensors_create(&spec, PLACE_GUARD_AFTER, &p.second)) {
        p.args = &p.second.args;
        ok = relations[which].judge(&p, why, sizeof why);
        snprintf(sentence, size, "relation \"%s\" on %s: %s", relations[which].name, p.table, why);
        problem_tensors_free(&p.second);
    }
    problem_tensors_free(&p.first);
    return ok;
}
