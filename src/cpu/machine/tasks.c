/*
 * tasks.c: see tasks.h.
 */
#include "cpu/machine/tasks.h"
#include "cpu/machine/host.h"

typedef struct loop {
    attn_task *task;
    const void *job;
    const attn_ukernel *table;
} loop;

static void run_task(void *arg, int64_t item, int32_t thread)
{
    const loop *l = arg;
    attn_host host;
    attn_host_leave(&host);
    if (l->table) {
        l->table->begin();
    }
    l->task(l->job, item, thread);
    if (l->table) {
        l->table->end();
    }
    attn_host_return(&host);
}

void attn_tasks_run(const attn_executor *executor, int64_t items, attn_task *task, const void *arg,
                    const attn_ukernel *table)
{
    loop l = {task, arg, table};
    executor->parallel_for(executor->user, items, run_task, &l);
}
