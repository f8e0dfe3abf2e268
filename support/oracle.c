/*
 * oracle.c: the formula of attn.h, sequence by sequence and row by row; the arithmetic of a row is oracle_row.h.
 * Rows are dealt out to one thread per core, each with its own copy of the KV head at hand. Arguments are taken to be
 * valid. A position that the formula does not let a row see may hold anything.
 */
#include "oracle.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>
#include <unistd.h>

enum { MAX_THREADS = 64 };

/* One sequence as the formula sees it. */
struct sequence {
    const attn_forward_args *args;
    const oracle_result *result;
    int64_t index, tensor;    /* b, and the index of axis 0 of q, k, v */
    int64_t q_first, k_first; /* its first rows in q, o and in k, v */
    int64_t rows, nq, nk;     /* query rows; those in use; keys in use */
    int64_t diagonal;         /* off */
    int64_t d, dv;
    double scale;
};

struct job {
    const attn_forward_args *args;
    const oracle_result *result;
    const bool *wanted; /* by flat row */
    int thread, threads;
};

static double broadcast(const attn_tensor *t, double absent, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return t->data == NULL ? absent
                           : oracle_element(t, t->shape[0] == 1 ? 0 : b, t->shape[1] == 1 ? 0 : h,
                                            t->shape[2] == 1 ? 0 : i, t->shape[3] == 1 ? 0 : j);
}

/* Row i sees keys first_key .. end_key-1 by causality, window and lengths (C3). */
static int64_t first_key(const struct sequence *q, int64_t i)
{
    int64_t left = q->args->flags & ATTN_WINDOW ? q->args->window_left : -1;
    return left >= 0 && left < i + q->diagonal ? i + q->diagonal - left : 0;
}

static int64_t end_key(const struct sequence *q, int64_t i)
{
    int64_t right = q->args->flags & ATTN_WINDOW ? q->args->window_right : -1, end = q->nk;
    if (right >= 0 && right < end - 1 - i - q->diagonal) {
        end = i + q->diagonal + right + 1;
    }
    if ((q->args->flags & ATTN_CAUSAL) && i + q->diagonal + 1 < end) {
        end = i + q->diagonal + 1;
    }
    return i < q->nq ? end : 0;
}

static void put(double *array, int64_t at, double value)
{
    if (array != NULL) {
        array[at] = value;
    }
}

#define REAL double
#define NAME(name) name##_double
#include "oracle_row.h"
#undef REAL
#undef NAME
#define REAL long double
#define NAME(name) name##_long
#include "oracle_row.h"

static int64_t count_at(const attn_tensor *t, int64_t i, int64_t absent)
{
    return t->data == NULL ? absent : (int64_t)oracle_element(t, i, 0, 0, 0);
}

static struct sequence sequence_of(const struct job *job, int64_t b)
{
    const attn_forward_args *x = job->args;
    struct sequence q = {.args = x, .result = job->result, .index = b, .tensor = x->cu_seqlens_q.data ? 0 : b};
    q.q_first = count_at(&x->cu_seqlens_q, b, 0), q.k_first = count_at(&x->cu_seqlens_k, b, 0);
    q.rows = count_at(&x->cu_seqlens_q, b + 1, x->q.shape[1]) - q.q_first;
    q.nq = count_at(&x->seqused_q, b, q.rows);
    q.nk = count_at(&x->seqused_k, b, count_at(&x->cu_seqlens_k, b + 1, x->k.shape[1]) - q.k_first);
    q.diagonal = x->flags & ATTN_TOP_LEFT ? 0 : q.nk - q.nq;
    q.d = x->q.shape[3], q.dv = x->v.shape[3];
    q.scale = x->flags & ATTN_SCALE ? x->softmax_scale : q.d > 0 ? 1 / sqrt((double)q.d) : 1;
    return q;
}

/* The thread's share of the wanted rows of one sequence and KV head. */
static void run_head(const struct job *job, const struct sequence *q, int64_t hk)
{
    int64_t heads = job->args->q.shape[2], group = heads / job->args->k.shape[2];
    bool wide = job->args->q.dtype == ATTN_F64;
    void *panel = NULL; /* K, V, and room for the scores and the output of a row */
    for (int64_t n = 0; n < q->rows * group; n++) {
        int64_t i = n / group, h = hk * group + n % group;
        int64_t at = (q->tensor * job->args->q.shape[1] + q->q_first + i) * heads + h;
        if (!job->wanted[at] || (int)(n % job->threads) != job->thread) {
            continue;
        }
        if (panel == NULL) {
            size_t count = (size_t)(q->nk * (q->d + q->dv + 2) + 2 * q->dv + 1);
            panel = calloc(count, wide ? sizeof(long double) : sizeof(double));
            if (panel == NULL) {
                abort(); /* without its judge a test cannot go on */
            }
            wide ? load_long(q, hk, panel) : load_double(q, hk, panel);
        }
        wide ? row_long(q, i, h, at, panel) : row_double(q, i, h, at, panel);
    }
    free(panel);
}

static void *run_thread(void *argument)
{
    const struct job *job = argument;
    const attn_tensor *cu = &job->args->cu_seqlens_q;
    int64_t batch = cu->data ? cu->shape[0] - 1 : job->args->q.shape[0];
    for (int64_t b = 0; b < batch; b++) {
        struct sequence q = sequence_of(job, b);
        for (int64_t hk = 0; hk < job->args->k.shape[2]; hk++) {
            run_head(job, &q, hk);
        }
    }
    return NULL;
}

/* Marks the wanted rows, and gives them the result of a row that belongs to no sequence. */
static void want(const oracle_result *result, bool *wanted, int64_t at, int64_t dv)
{
    wanted[at] = true;
    for (int64_t c = 0; c < dv; c++) {
        put(result->o, at * dv + c, 0);
        put(result->o_abs, at * dv + c, 0);
    }
    put(result->lse, at, -(double)INFINITY);
    put(result->row_max, at, -(double)INFINITY);
    put(result->score_abs, at, 0);
    put(result->score_max, at, 0);
    put(result->lse_abs, at, 0);
    put(result->row_max_abs, at, 0);
}

void oracle_forward(const attn_forward_args *args, const oracle_result *result, const int64_t *rows, int64_t count)
{
    int64_t all = args->q.shape[0] * args->q.shape[1] * args->q.shape[2];
    bool *wanted = calloc((size_t)all + 1, sizeof *wanted);
    if (wanted == NULL) {
        abort();
    }
    count = rows == NULL ? all : count;
    for (int64_t n = 0; n < count; n++) {
        want(result, wanted, rows == NULL ? n : rows[n], args->v.shape[3]);
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = count * args->k.shape[1] < 1 << 16 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int)cores;
    struct job job[MAX_THREADS];
    pthread_t id[MAX_THREADS];
    for (int t = 0; t < threads; t++) {
        job[t] = (struct job){args, result, wanted, t, threads};
        if (t > 0 && pthread_create(&id[t], NULL, run_thread, &job[t]) != 0) {
            abort();
        }
    }
    run_thread(&job[0]);
    for (int t = 1; t < threads; t++) {
        pthread_join(id[t], NULL);
    }
    free(wanted);
}
