/*
 * tasks.c: see tasks.h.
 */
#include "cpu/machine/tasks.h"
#include "cpu/machine/host.h"

typedef struct loop {
    attn_task *task;
    const void *job;
    const attn_ukernel *uk;
} loop;

static void run_task(void *arg, int64_t item, int32_t thread)
{
    const loop *l = arg;
    attn_host host;
    attn_host_leave(&host);
    if (l->uk) {
        l->uk->begin();
    }
    l->task(l->job, item, thread);
    if (l->uk) {
        l->uk->end();
    }
    attn_host_return(&host);
}

void attn_tasks_run(const attn_executor *executor, int64_t items, attn_task *task, const void *job,
                    const attn_ukernel *uk)
{
    loop l = {task, job, uk};
    executor->parallel_for(executor->user, items, run_task, &l);
}
