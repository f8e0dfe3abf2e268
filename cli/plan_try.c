/*
 * plan_try.c: see plan_try.h. It includes the library's sources: the rows of an item follow from
 * the size of the L2 cache, which a plan takes as a number, so a plan for another L2 has other
 * items.
 */
#include "plan_try.h"
#include "cpu/forward/forward.h"
#include "cpu/machine/select.h"
#include "stats.h"

#include <stdlib.h>

enum { ROUNDS = 5, MOST = 16 };

static int32_t one_thread(void *user)
{
    (void)user;
    return 1;
}

static void run_all(void *user, int64_t n, void (*task)(void *arg, int64_t i, int32_t thread),
                    void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++) {
        task(arg, i, 0);
    }
}

/* Makes a plan whose items have the wanted rows, or the nearest number. */
static attn_status plan_rows(const problem_spec *problem, const attn_problem *checked, int64_t rows,
                             attn_cpu_plan *plan)
{
    const uint32_t features = attn_cpu_features();
    attn_machine machine = {attn_select(features, problem->cpu), {1, 1, 1}, 1, features};
    attn_status status = attn_cpu_plan_forward(plan, checked, &machine);
    if (status == ATTN_OK) {
        const int64_t strips = rows / plan->table->strip;
        machine.caches.l2 = 2 * (strips > 0 ? strips : 1) * (int64_t)plan->scratch.strip_bytes;
        status = attn_cpu_plan_forward(plan, checked, &machine);
    }
    return status;
}

/* Replaces wanted sizes by sizes that the library has. */
static attn_status settle_sizes(const problem_spec *problem, const attn_problem *checked,
                                int64_t *rows, int *count)
{
    int kept = 0;
    for (int i = 0; i < *count; i++) {
        attn_cpu_plan plan;
        const attn_status status = plan_rows(problem, checked, rows[i], &plan);
        if (status != ATTN_OK) {
            return status;
        }
        if (kept == 0 || plan.schedule.block_rows != rows[kept - 1]) {
            rows[kept++] = plan.schedule.block_rows;
        }
    }
    *count = kept;
    return ATTN_OK;
}

static bool run_once(const problem_spec *problem, const attn_problem *checked, int64_t rows,
                     double *seconds)
{
    const attn_executor executor = {NULL, one_thread, run_all};
    attn_cpu_plan plan;
    if (plan_rows(problem, checked, rows, &plan) != ATTN_OK) {
        return false;
    }
    void *workspace = aligned_alloc(64, (plan.workspace_bytes + 127) / 64 * 64);
    if (workspace != NULL) {
        const double start = stats_used();
        attn_cpu_forward(&plan, checked, &executor, workspace);
        *seconds = stats_used() - start;
        free(workspace);
    }
    return workspace != NULL;
}

bool plan_try(const problem_spec *problem, int64_t *rows, int *count, double *seconds,
              attn_status *status)
{
    problem_tensors tensors;
    attn_problem checked;
    double samples[MOST][ROUNDS];
    *status = ATTN_OK;
    if (*count > MOST || !problem_tensors_create(problem, PLACE_PLAIN, &tensors)) {
        return false;
    }
    *status = attn_problem_init(&checked, &tensors.args, 0);
    *status = *status == ATTN_OK ? settle_sizes(problem, &checked, rows, count) : *status;
    bool ok = *status == ATTN_OK;
    for (int round = -1; round < ROUNDS && ok; round++) { /* round -1 warms up */
        for (int i = 0; i < *count && ok; i++) {
            ok = run_once(problem, &checked, rows[i], &samples[i][round < 0 ? 0 : round]);
        }
    }
    for (int i = 0; i < *count && ok; i++) {
        seconds[i] = stats_of(samples[i], ROUNDS).median;
    }
    problem_tensors_free(&tensors);
    return ok;
}
