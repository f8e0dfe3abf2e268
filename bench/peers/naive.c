/*
 * naive.c: see naive.h.
 */
#include "naive.h"
#include "half.h"
#include "inputs.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

/* x as f32, but for calls in f64. */
static double working(const attn_forward_args *a, double x)
{
    return a->q.dtype == ATTN_F64 ? x : (double)(float)x;
}

/* Copies the rows of one head as doubles, one after the other. */
static void read_rows(const attn_tensor *t, int64_t b, int64_t h, double *rows)
{
    for (int64_t i = 0; i < t->shape[1]; i++) {
        for (int64_t c = 0; c < t->shape[3]; c++) {
            rows[i * t->shape[3] + c] = oracle_element(t, b, i, h, c);
        }
    }
}

/* p[j] = the probability of key j for the query row q. */
static void probabilities(const attn_forward_args *a, const double *q, const double *k, double *p)
{
    int64_t nk = a->k.shape[1], d = a->k.shape[3];
    double scale = working(a, 1 / sqrt((double)d)), most = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < nk; j++) {
        double s = 0;
        for (int64_t c = 0; c < d; c++) {
            s = working(a, s + working(a, q[c] * k[j * d + c]));
        }
        p[j] = half_rounded(a->q.dtype, working(a, s * scale));
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < nk; j++) {
        p[j] = working(a, exp(p[j] - most));
        sum = working(a, sum + p[j]);
    }
    for (int64_t j = 0; j < nk; j++) {
        p[j] = half_rounded(a->q.dtype, working(a, p[j] / sum));
    }
}

static void head(const attn_forward_args *a, int64_t b, int64_t h, double *memory)
{
    int64_t nk = a->k.shape[1], d = a->k.shape[3], dv = a->v.shape[3],
            kv_head = h / (a->q.shape[2] / a->k.shape[2]);
    double *k = memory, *v = k + nk * d, *p = v + nk * dv, *q = p + nk;
    read_rows(&a->k, b, kv_head, k);
    read_rows(&a->v, b, kv_head, v);
    read_rows(&a->q, b, h, q);
    for (int64_t i = 0; i < a->q.shape[1]; i++) {
        probabilities(a, q + i * d, k, p);
        for (int64_t c = 0; c < dv; c++) {
            double o = 0;
            for (int64_t j = 0; j < nk; j++) {
                o = working(a, o + working(a, p[j] * v[j * dv + c]));
            }
            inputs_store(&a->o, b, i, h, c, o);
        }
    }
}

bool naive_forward(const attn_forward_args *a)
{
    int64_t nk = a->k.shape[1], d = a->k.shape[3];
    double *memory =
        malloc((size_t)(nk * (d + a->v.shape[3] + 1) + a->q.shape[1] * d) * sizeof *memory);
    for (int64_t n = 0; memory != NULL && n < a->q.shape[0] * a->q.shape[2]; n++) {
        head(a, n / a->q.shape[2], n % a->q.shape[2], memory);
    }
    free(memory);
    return memory != NULL;
}
