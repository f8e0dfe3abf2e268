/*
 * outputs.c: see outputs.h.
 */
#include "outputs.h"
#include "oracle.h"
#include "region.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls visit for the address of each element, in order of its index. */
static void each_element(const attn_tensor *t, void (*visit)(void *user, char *element, size_t size), void *user)
{
    size_t size = attn_dtype_size(t->dtype);
    for (int64_t i0 = 0; i0 < t->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < t->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < t->shape[2]; i2++) {
                int64_t at = i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2];
                for (int64_t i3 = 0; i3 < t->shape[3]; i3++) {
                    visit(user, (char *)t->data + (at + i3 * t->stride[3]) * (int64_t)size, size);
                }
            }
        }
    }
}

static void poison_element(void *user, char *element, size_t size)
{
    (void)user;
    memset(element, 0xFF, size);
}

void outputs_poison(const attn_forward_args *args)
{
    const attn_tensor *outputs[] = {&args->o, &args->lse, &args->row_max};
    for (int i = 0; i < 3; i++) {
        if (outputs[i]->data != NULL) {
            each_element(outputs[i], poison_element, NULL);
        }
    }
}

static void copy_element(void *user, char *element, size_t size)
{
    unsigned char **to = user;
    memcpy(*to, element, size);
    *to += size;
}

static size_t bytes_of(const attn_tensor *t)
{
    return (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]) * attn_dtype_size(t->dtype);
}

unsigned char *outputs_copy(const attn_forward_args *args, size_t *bytes)
{
    const attn_tensor *outputs[] = {&args->o, &args->lse, &args->row_max};
    *bytes = 0;
    for (int i = 0; i < 3; i++) {
        *bytes += outputs[i]->data ? bytes_of(outputs[i]) : 0;
    }
    unsigned char *copy = malloc(*bytes + 1), *to = copy;
    for (int i = 0; i < 3 && copy != NULL; i++) {
        if (outputs[i]->data) {
            each_element(outputs[i], copy_element, &to);
        }
    }
    return copy;
}

/* ---- the oracle -------------------------------------------------------------------------------------------------- */

/* How much of the bound beyond the part `rounding` that no implementation can avoid is used up. */
static double share_of_bound(double got, double exact, double rounding, double bound)
{
    if (got == exact || (isnan(got) && isnan(exact)) || fabs(got - exact) <= rounding) {
        return 0;
    }
    bool finite = isfinite(got) && isfinite(exact) && bound > rounding;
    return finite ? (fabs(got - exact) - rounding) / (bound - rounding) : (double)INFINITY;
}

struct verdict {
    double worst;
    char *sentence;
    size_t size;
};

static void note(struct verdict *v, const char *what, const int64_t index[4], double got, double exact, double rounding,
                 double bound)
{
    double error = share_of_bound(got, exact, rounding, bound);
    if (error > v->worst) {
        v->worst = error;
        snprintf(v->sentence, v->size, "%s[%lld,%lld,%lld,%lld] = %.9g, exact %.17g, bound %.3g: %.3g of it", what,
                 (long long)index[0], (long long)index[1], (long long)index[2], (long long)index[3], got, exact, bound,
                 error);
    }
}

static void judge_row(struct verdict *v, const attn_forward_args *a, const oracle_result *exact, int64_t row, double c)
{
    int64_t dv = a->v.shape[3], heads = a->q.shape[2], nq = a->q.shape[1];
    int64_t index[4] = {row / heads / nq, row / heads % nq, row % heads, 0};
    double u = a->q.dtype == ATTN_F64 ? 0x1p-53 : 0x1p-24, bound = 8 * u * (1 + exact->score_abs[row]);
    const attn_tensor *sums[] = {&a->lse, &a->row_max};
    const double *values[] = {exact->lse, exact->row_max};
    for (int i = 0; i < 2; i++) {
        if (sums[i]->data != NULL) {
            double got = oracle_element(sums[i], index[0], index[1], index[2], 0);
            note(v, i == 0 ? "lse" : "row_max", index, got, values[i][row], 0, bound);
        }
    }
    for (; index[3] < dv; index[3]++) {
        int64_t at = row * dv + index[3];
        double got = oracle_element(&a->o, index[0], index[1], index[2], index[3]);
        bound = oracle_bound(a->q.dtype, a->o.dtype, c, exact->o[at], exact->o_abs[at], exact->score_abs[row]);
        double rounding = oracle_bound(a->q.dtype, a->o.dtype, 0, exact->o[at], 0, 0);
        note(v, "o", index, got, exact->o[at], rounding, bound);
    }
}

double outputs_judge(const attn_forward_args *args, double c, char *sentence, size_t size)
{
    int64_t rows = args->q.shape[0] * args->q.shape[1] * args->q.shape[2], dv = args->v.shape[3];
    double *room = calloc((size_t)(rows * (2 * dv + 3) + 1), sizeof *room);
    struct verdict v = {0, sentence, size};
    if (room == NULL) {
        snprintf(sentence, size, "no memory for the oracle");
        return (double)INFINITY;
    }
    double *o_abs = room + rows * dv, *lse = o_abs + rows * dv;
    oracle_result exact = {room, o_abs, lse, lse + rows, lse + 2 * rows};
    sentence[0] = '\0';
    oracle_forward(args, &exact, NULL, 0);
    for (int64_t row = 0; row < rows; row++) {
        judge_row(&v, args, &exact, row, c);
    }
    free(room);
    return v.worst;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static uint64_t span_hash(const attn_tensor *t)
{
    int64_t size = (int64_t)attn_dtype_size(t->dtype), low = 0, high = 1;
    for (int a = 0; a < 4; a++) {
        int64_t reach = (t->shape[a] - 1) * t->stride[a];
        *(reach < 0 ? &low : &high) += reach;
        if (t->shape[a] == 0) {
            return 0;
        }
    }
    region r = {.first = (unsigned char *)t->data + low * size, .bytes = (size_t)((high - low) * size)};
    return t->data ? region_hash(&r) : 0;
}

uint64_t outputs_inputs_hash(const attn_forward_args *a)
{
    const attn_tensor *inputs[] = {&a->q,
                                   &a->k,
                                   &a->v,
                                   &a->mask,
                                   &a->bias,
                                   &a->alibi_slopes,
                                   &a->sinks,
                                   &a->cu_seqlens_q,
                                   &a->cu_seqlens_k,
                                   &a->seqused_q,
                                   &a->seqused_k};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        hash = hash * 31 + span_hash(inputs[i]);
    }
    return hash;
}
