/*
 * crowd.c: see crowd.h.
 */
#include "crowd.h"
#include "grad_runs.h"
#include "judge.h"
#include "outputs.h"
#include "runs.h"
#include "tables.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CROWD = 4, ROUNDS = 3 };

/* One thread's problem. */
typedef struct member {
    problem_tensors tensors;
    problem_spec spec;
    const char *table;
    int threads;
    unsigned char *alone; /* the results' bits */
    size_t bytes;
    bool equal;
    char sentence[256];
} member;

static bool run(member *m)
{
    return runs_once(&m->tensors.args, m->table, m->threads, RUNS_NOISE, m->sentence,
                     sizeof m->sentence) &&
           (m->spec.pass == PASS_FORWARD ||
            grad_runs_once(&m->tensors.grad, m->table, m->threads, RUNS_NOISE, m->sentence,
                           sizeof m->sentence));
}

static unsigned char *copy(const member *m, size_t *bytes)
{
    return m->spec.pass == PASS_FORWARD ? outputs_copy(&m->tensors.args, bytes)
                                        : grad_runs_copy(&m->tensors.grad, bytes);
}

static void *call(void *arg)
{
    member *m = arg;
    for (int n = 0; n < ROUNDS && m->equal; n++) {
        m->equal = run(m);
        size_t bytes = 0;
        unsigned char *bits = copy(m, &bytes);
        if (m->equal && (bytes != m->bytes || memcmp(bits, m->alone, bytes) != 0)) {
            snprintf(m->sentence, sizeof m->sentence, "other bits beside other calls");
            m->equal = false;
        }
        free(bits);
    }
    return NULL;
}

/* Draws a problem that the library takes, and runs it alone. */
static bool member_open(member *m, dice *d, const char *table, int threads)
{
    char line[4096], error[512];
    draw_line(d, NULL, line, sizeof line);
    *m = (member){.table = table, .threads = threads, .equal = true};
    if (!problem_parse(line, &m->spec, error, sizeof error) ||
        !problem_tensors_create(&m->spec, PLACE_PLAIN, &m->tensors)) {
        return false;
    }
    if (!run(m)) { /* words that contradict each other */
        problem_tensors_free(&m->tensors);
        return false;
    }
    m->alone = copy(m, &m->bytes);
    return true;
}

bool crowd_judge(dice *d, char *line, size_t line_size, char *sentence, size_t size)
{
    static member members[CROWD];
    pthread_t thread[CROWD];
    bool started[CROWD], ok = true;
    const char *table = judge_draw_table(d);
    const int threads = 1 + (int)dice_roll(d, 4);
    int count = 0;
    for (int n = 0; n < CROWD; n++) {
        count += member_open(&members[count], d, table, threads);
    }
    for (int n = 0; n < count; n++) {
        started[n] = pthread_create(&thread[n], NULL, call, &members[n]) == 0;
    }
    for (int n = 0; n < count; n++) {
        if (started[n]) {
            pthread_join(thread[n], NULL);
        }
        if (ok && !members[n].equal) {
            problem_print(&members[n].spec, line, line_size);
            snprintf(sentence, size, "%d calls at once on %s with %d threads: %s", count, table,
                     threads, members[n].sentence);
            ok = false;
        }
        free(members[n].alone);
        problem_tensors_free(&members[n].tensors);
    }
    return ok;
}
