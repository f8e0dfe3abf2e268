/*
 * standard.c: see standard.h.
 */
#include "standard.h"
#include "oracle.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Softmax --------------------------------------------------------------------------------- */

enum { LANES = 64, MAX_THREADS = 256 };

#if defined(__x86_64__)
#define FUSED(a, b, c) __builtin_fmaf(a, b, c)
#define SOFTMAX softmax_avx2
#define SOFTMAX_TARGET __attribute__((target("avx2,fma")))
#define MULTIPLY_ADD(a, b, c) FUSED(a, b, c)
#include "standard_softmax.h"
#define SOFTMAX softmax_avx512
#define SOFTMAX_TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#define MULTIPLY_ADD(a, b, c) FUSED(a, b, c)
#include "standard_softmax.h"
#endif
#define SOFTMAX softmax_portable
#define SOFTMAX_TARGET
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#include "standard_softmax.h"

typedef void softmax_function(float *s, int64_t n, int64_t stride);

static softmax_function *best_softmax(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        return softmax_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return softmax_avx2;
    }
#endif
    return softmax_portable;
}

/* The scores of rows first .. last-1 of one head, for one thread. */
struct rows {
    float *scores;
    int64_t first, last, nk, stride;
    int64_t diagonal; /* row i sees keys up to i + diagonal; INT64_MAX/2: all */
    softmax_function *softmax;
};

static void *softmax_rows(void *argument)
{
    const struct rows *r = argument;
    for (int64_t i = r->first; i < r->last; i++) {
        int64_t n = i + r->diagonal + 1;
        r->softmax(r->scores + i * r->stride, n < 0 ? 0 : n > r->nk ? r->nk : n, r->stride);
    }
    return NULL;
}

static void softmax_threaded(const struct rows *all, int threads)
{
    pthread_t id[MAX_THREADS];
    struct rows rows[MAX_THREADS];
    for (int t = 0; t < threads; t++) {
        rows[t] = *all;
        rows[t].first = all->last * t / threads, rows[t].last = all->last * (t + 1) / threads;
        if (t > 0 && pthread_create(&id[t], NULL, softmax_rows, &rows[t]) != 0) {
            abort();
        }
    }
    softmax_rows(&rows[0]);
    for (int t = 1; t < threads; t++) {
        pthread_join(id[t], NULL);
    }
}

/* ---- OpenBLAS -------------------------------------------------------------------------------- */

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 }; /* cblas.h's values */

static struct {
    char name[32]; /* "openblas Haswell" */
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*set_num_threads)(int threads);
} blas;

/* OpenBLAS knows CPUs by model, and takes SSE kernels on a model newer than itself. So name a core
 * by the CPU's features, unless the user has named one. */
static void name_core(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        setenv("OPENBLAS_CORETYPE", "Haswell", 0);
    }
#endif
    setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0); /* idle threads sleep after 2^20 cycles, not 2^26 */
}

static bool open_blas(void)
{
    if (blas.sgemm != NULL) {
        return true;
    }
    name_core();
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    void *sgemm = library == NULL ? NULL : dlsym(library, "cblas_sgemm");
    void *set = library == NULL ? NULL : dlsym(library, "openblas_set_num_threads");
    void *core = library == NULL ? NULL : dlsym(library, "openblas_get_corename");
    if (sgemm == NULL || set == NULL || core == NULL) {
        return false;
    }
    char *(*get_corename)(void);
    memcpy(&get_corename, &core, sizeof core); /* ISO C has no cast from void * to a function */
    memcpy(&blas.sgemm, &sgemm, sizeof sgemm);
    memcpy(&blas.set_num_threads, &set, sizeof set);
    snprintf(blas.name, sizeof blas.name, "openblas %.20s", get_corename());
    return true;
}

const char *standard_kernel(void)
{
    return blas.name;
}

/* ---- Attention ------------------------------------------------------------------------------- */

static int64_t padded(int64_t nk)
{
    return (nk + LANES - 1) / LANES * LANES;
}

const char *standard_not_plain(const attn_forward_args *args)
{
    if (args->flags & ATTN_WINDOW) {
        return "the others here have no window";
    }
    if (args->mask.data || args->bias.data || args->alibi_slopes.data || args->sinks.data ||
        args->softcap != 0) {
        return "the others here have no mask, bias, ALiBi, sinks or softcap";
    }
    if (args->cu_seqlens_q.data || args->seqused_q.data || args->seqused_k.data) {
        return "the others here have one length for all sequences";
    }
    if (args->block_table.data != NULL) {
        return "the others here take no pages";
    }
    if (args->q_origin.data || args->k_origin.data) {
        return "the others here have no origins";
    }
    if (args->dropout_p > 0) {
        return "the others here drop other positions";
    }
    if (args->lse.data || args->row_max.data) {
        return "the others here give neither LSE nor row maxima";
    }
    for (int n = 0; n < 4; n++) {
        if (args->q.shape[n] == 0 || args->k.shape[n] == 0 || args->v.shape[n] == 0) {
            return "the others here take no empty tensors";
        }
    }
    return args->q.dtype == ATTN_F64 ? "the others here compute in f32 or less" : NULL;
}

const char *standard_no_codes(const attn_forward_args *args)
{
    return args->k.dtype != args->q.dtype || args->v.dtype != args->q.dtype
               ? "the others here take no quantised keys and values"
               : NULL;
}

const char *standard_refuses(const attn_forward_args *args)
{
    const char *feature = standard_not_plain(args),
               *refuses = feature ? feature : standard_no_codes(args);
    if (refuses != NULL) {
        return refuses;
    }
    for (int n = 0; n < 4; n++) {
        if (args->k.shape[n] > INT32_MAX - LANES || args->q.shape[n] > INT32_MAX) {
            return "OpenBLAS takes no very long matrices";
        }
    }
    return open_blas() ? NULL : "libopenblas.so.0 is not installed (Debian: libopenblas0-pthread)";
}

/* sgemm reads rows of adjacent elements at a positive distance that fits an int. */
static bool fits_blas(const attn_tensor *t)
{
    return t->dtype == ATTN_F32 && t->stride[3] == 1 && t->stride[1] >= t->shape[3] &&
           t->stride[1] <= INT32_MAX;
}

static int64_t elements(const attn_tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

/* Copies the elements of t as f32 into the contiguous tensor that takes its place. */
static void widen(const attn_tensor *t, attn_tensor *copy, float *to)
{
    *copy = attn_tensor_bshd(to, ATTN_F32, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
    for (int64_t n = 0, all = elements(t); n < all; n++) {
        int64_t i3 = n % t->shape[3], i2 = n / t->shape[3] % t->shape[2];
        int64_t i1 = n / t->shape[3] / t->shape[2] % t->shape[1],
                i0 = n / t->shape[3] / t->shape[2] / t->shape[1];
        to[n] = (float)oracle_element(t, i0, i1, i2, i3);
    }
}

bool standard_adopt(const attn_forward_args *args, attn_forward_args *own, void **memory)
{
    *own = *args;
    *memory = NULL;
    if (fits_blas(&args->q) && fits_blas(&args->k) && fits_blas(&args->v) && fits_blas(&args->o)) {
        return true;
    }
    int64_t q = elements(&args->q), k = elements(&args->k), v = elements(&args->v),
            o = elements(&args->o);
    float *f = malloc((size_t)(q + k + v + o) * sizeof *f);
    if (f != NULL) {
        widen(&args->q, &own->q, f);
        widen(&args->k, &own->k, f + q);
        widen(&args->v, &own->v, f + q + k);
        own->o = attn_tensor_bshd(f + q + k + v, ATTN_F32, args->o.shape[0], args->o.shape[1],
                                  args->o.shape[2], args->o.shape[3]);
        *memory = f;
    }
    return f != NULL;
}

double standard_workspace(const attn_forward_args *args)
{
    return (double)args->q.shape[1] * (double)padded(args->k.shape[1]) * sizeof(float);
}

static float *rows_of(const attn_tensor *t, int64_t b, int64_t h)
{
    return (float *)t->data + b * t->stride[0] + h * t->stride[2];
}

void standard_forward(const attn_forward_args *args, int threads, float *scores)
{
    int64_t nq = args->q.shape[1], nk = args->k.shape[1], heads = args->q.shape[2],
            group = heads / args->k.shape[2];
    int d = (int)args->q.shape[3], dv = (int)args->v.shape[3], stride = (int)padded(nk);
    float scale = (float)(args->flags & ATTN_SCALE ? args->softmax_scale : 1 / sqrt((double)d));
    int64_t diagonal = !(args->flags & ATTN_CAUSAL)  ? INT64_MAX / 2
                       : args->flags & ATTN_TOP_LEFT ? 0
                                                     : nk - nq;
    threads = threads > MAX_THREADS ? MAX_THREADS : threads;
    struct rows rows = {scores, 0, nq, nk, stride, diagonal, best_softmax()};
    blas.set_num_threads(threads);
    for (int64_t n = 0; n < args->q.shape[0] * heads; n++) {
        int64_t b = n / heads, h = n % heads;
        blas.sgemm(ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, (int)nq, (int)nk, d, scale,
                   rows_of(&args->q, b, h), (int)args->q.stride[1], rows_of(&args->k, b, h / group),
                   (int)args->k.stride[1], 0.0f, scores, stride);
        softmax_threaded(&rows, nq < threads ? 1 : threads);
        blas.sgemm(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, (int)nq, dv, (int)nk, 1.0f, scores,
                   stride, rows_of(&args->v, b, h / group), (int)args->v.stride[1], 0.0f,
                   rows_of(&args->o, b, h), (int)args->o.stride[1]);
    }
}
