/*
 * tasks.h: the parallel loop of every operation on the CPU: its tasks run in the default
 * floating-point environment (host.h), on any thread of the executor.
 */
#ifndef ATTN_CPU_TASKS_H
#define ATTN_CPU_TASKS_H

#include "cpu/ukernel/table.h"

/* One item of a loop. thread: below the executor's number, no two tasks at once have the same. */
typedef void attn_task(const void *job, int64_t item, int32_t thread);

/* Runs items 0 .. items-1 of a job. Each is enclosed by the begin and end of a table of
 * microkernels, if it calls one that has any (NULL: none). */
void attn_tasks_run(const attn_executor *executor, int64_t items, attn_task *task, const void *arg,
                    const attn_ukernel *table);

#endif
