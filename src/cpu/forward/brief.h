/*
 * brief.h: a call whose rows, of all heads, fill few strips, and which all see the same few keys of
 * their head: a pass for each strip, each lane with keys of its own, instead of an item for each
 * head.
 */
#ifndef ATTN_CPU_FORWARD_BRIEF_H
#define ATTN_CPU_FORWARD_BRIEF_H

#include "cpu/forward/plan.h"

/* Decides whether the call is brief. The plan has its table and its score step. Pure. */
void attn_brief_plan(attn_cpu_plan *plan, const attn_problem *problem);

/* Runs a plan that is `brief`, with the scratch of one thread at `scratch`: the bits of its items.
 * False if a sum is not finite: they are to run then. */
bool attn_brief_run(const attn_cpu_plan *plan, const attn_problem *problem,
                    const attn_executor *executor, char *scratch);

#endif
