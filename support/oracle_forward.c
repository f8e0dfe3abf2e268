/*
 * oracle_forward.c: the formula of attn.h, sequence by sequence and row by row; the arithmetic of a
 * row is in oracle_scores.h and oracle_row.h. Rows are dealt out to one thread per core, each with
 * its own copy of the KV head at hand. Arguments must be valid. A position that a row does not see
 * may hold anything.
 */
#include "oracle.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>
#include <unistd.h>

#include "oracle_sequence.h"

enum { MAX_THREADS = 64 };

struct job {
    const attn_forward_args *args;
    const oracle_result *result;
    const bool *wanted; /* by flat row */
    int thread, threads;
};

static void put(double *array, int64_t at, double value)
{
    if (array != NULL) {
        array[at] = value;
    }
}

#define REAL double
#define NAME(name) name##_double
#include "oracle_scores.h"
#include "oracle_row.h"
#undef REAL
#undef NAME
#define REAL long double
#define NAME(name) name##_long
#include "oracle_scores.h"
#include "oracle_row.h"

/* Does the thread's share of the wanted rows of one sequence and KV head: by flat row, so that
 * threads share the heads too where each has few rows. */
static void run_head(const struct job *job, const struct sequence *sequence, int64_t hk)
{
    int64_t heads = job->args->q.shape[2], group = heads / job->args->k.shape[2];
    bool wide = job->args->q.dtype == ATTN_F64;
    void *panel = NULL; /* K, V, and room for the scores and the output of a row */
    for (int64_t n = 0; n < sequence->rows * group; n++) {
        int64_t i = n / group, h = hk * group + n % group;
        int64_t at = (sequence->tensor * job->args->q.shape[1] + sequence->q_first + i) * heads + h;
        if (!job->wanted[at] || (int)(at % job->threads) != job->thread) {
            continue;
        }
        if (panel == NULL) {
            size_t count =
                (size_t)(sequence->nk * (sequence->d + sequence->dv + 2) + 3 * sequence->dv + 1);
            panel = calloc(count, wide ? sizeof(long double) : sizeof(double));
            if (panel == NULL) {
                abort(); /* no test can go on without its judge */
            }
            wide ? load_long(sequence, hk, panel) : load_double(sequence, hk, panel);
        }
        wide ? row_long(sequence, i, h, at, panel) : row_double(sequence, i, h, at, panel);
    }
    free(panel);
}

static void *run_thread(void *argument)
{
    const struct job *job = argument;
    for (int64_t b = 0; b < sequences_of(job->args); b++) {
        struct sequence sequence = any_sequence_of(job->args, job->result, b);
        for (int64_t hk = 0; hk < job->args->k.shape[2]; hk++) {
            run_head(job, &sequence, hk);
        }
    }
    return NULL;
}

/* Marks the wanted rows, and gives them the result of a row outside every sequence. */
static void want(const oracle_result *result, bool *wanted, int64_t at, int64_t dv)
{
    wanted[at] = true;
    for (int64_t c = 0; c < dv; c++) {
        put(result->o, at * dv + c, 0);
        put(result->o_abs, at * dv + c, 0);
        put(result->o_tiny, at * dv + c, 0);
    }
    put(result->lse, at, -(double)INFINITY);
    put(result->row_max, at, -(double)INFINITY);
    put(result->score_abs, at, 0);
    put(result->score_max, at, 0);
    put(result->lse_abs, at, 0);
    put(result->row_max_abs, at, 0);
}

void oracle_forward(const attn_forward_args *args, const oracle_result *result, const int64_t *rows,
                    int64_t count)
{
    int64_t all = args->q.shape[0] * args->q.shape[1] * args->q.shape[2];
    bool *wanted = calloc((size_t)all + 1, sizeof *wanted);
    if (wanted == NULL) {
        abort();
    }
    count = rows == NULL ? all : count;
    for (int64_t n = 0; n < count; n++) {
        want(result, wanted, rows == NULL ? n : rows[n], args->o.shape[3]);
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = count * args->k.shape[0] * args->k.shape[1] < 1 << 16 ? 1
                  : cores > MAX_THREADS                                 ? MAX_THREADS
                                                                        : (int)cores;
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

bool oracle_scores(const attn_forward_args *args, int64_t b, int64_t h, double *scores)
{
    const struct sequence sequence = sequence_of(args, NULL, b);
    const int64_t group = args->q.shape[2] / args->k.shape[2], nk = sequence.nk;
    double *panel = calloc((size_t)(nk * (sequence.d + sequence.dv + 2) + 1), sizeof *panel);
    if (panel == NULL) {
        return false;
    }
    double *row = panel + nk * (sequence.d + sequence.dv), top[3];
    load_double(&sequence, h / group, panel);
    for (int64_t i = 0; i < sequence.rows; i++) {
        scores_double(&sequence, i, h, panel, row, row + nk, top);
        for (int64_t j = 0; j < nk; j++) {
            const bool seen = j >= first_key(&sequence, i) && j < end_key(&sequence, i);
            scores[i * nk + j] = seen ? row[j] : -INFINITY;
        }
    }
    free(panel);
    return true;
}
