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
static double working(const attn_forward_args *args, double x)
{
    return args->q.dtype == ATTN_F64 ? x : (double)(float)x;
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
static void probabilities(const attn_forward_args *args, const double *q, const double *k,
                          double *p)
{
    int64_t nk = args->k.shape[1], d = args->k.shape[3];
    double scale = working(args, 1 / sqrt((double)d)), most = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < nk; j++) {
        double s = 0;
        for (int64_t c = 0; c < d; c++) {
            s = working(args, s + working(args, q[c] * k[j * d + c]));
        }
        p[j] = half_rounded(args->q.dtype, working(args, s * scale));
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < nk; j++) {
        p[j] = working(args, exp(p[j] - most));
        sum = working(args, sum + p[j]);
    }
    for (int64_t j = 0; j < nk; j++) {
        p[j] = half_rounded(args->q.dtype, working(args, p[j] / sum));
    }
}

static void head(const attn_forward_args *args, int64_t b, int64_t h, double *memory)
{
    int64_t nk = args->k.shape[1], d = args->k.shape[3], dv = args->v.shape[3],
            kv_head = h / (args->q.shape[2] / args->k.shape[2]);
    double *k = memory, *v = k + nk * d, *p = v + nk * dv, *q = p + nk;
    read_rows(&args->k, b, kv_head, k);
    read_rows(&args->v, b, kv_head, v);
    read_rows(&args->q, b, h, q);
    for (int64_t i = 0; i < args->q.shape[1]; i++) {
        probabilities(args, q + i * d, k, p);
        for (int64_t c = 0; c < dv; c++) {
            double o = 0;
            for (int64_t j = 0; j < nk; j++) {
                o = working(args, o + working(args, p[j] * v[j * dv + c]));
            }
            inputs_store(&args->o, b, i, h, c, o);
        }
    }
}

bool naive_forward(const attn_forward_args *args)
{
    int64_t nk = args->k.shape[1], d = args->k.shape[3];
    double *memory =
        malloc((size_t)(nk * (d + args->v.shape[3] + 1) + args->q.shape[1] * d) * sizeof *memory);
    for (int64_t n = 0; memory != NULL && n < args->q.shape[0] * args->q.shape[2]; n++) {
        head(args, n / args->q.shape[2], n % args->q.shape[2], memory);
    }
    free(memory);
    return memory != NULL;
}
