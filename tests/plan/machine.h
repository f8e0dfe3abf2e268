/*
 * machine.h: the machine of the plan tests: the same wherever they run. The plan of the forward
 * pass is a pure function of problem and machine, so its text can be kept in git.
 */
#ifndef TESTS_PLAN_MACHINE_H
#define TESTS_PLAN_MACHINE_H

#include "cpu/forward/plan.h"
#include "problem.h"

/* One table, caches of 32 KiB, 1 MiB and 32 MiB, and the threads of the problem, or 4. */
static inline attn_machine test_machine(const attn_isa *isa, const problem_spec *problem)
{
    return (attn_machine){.isa = isa,
                          .caches = {32 << 10, 1 << 20, 32 << 20},
                          .threads = problem->threads > 0 ? problem->threads : 4};
}

/* A problem's plan on that machine; tensors lie nowhere, but for lengths. */
typedef struct planned {
    problem_tensors tensors;
    attn_problem problem;
    attn_cpu_plan plan;
} planned;

/* False with the library's sentence if it cannot be planned. Free with problem_tensors_free either
 * way. */
static inline bool plan_on(const attn_isa *isa, const problem_spec *problem, planned *x)
{
    attn_machine machine = test_machine(isa, problem);
    return problem_tensors_create(problem, PLACE_NOWHERE, &x->tensors) &&
           attn_problem_init(&x->problem, &x->tensors.args, ATTN_OF_SHAPES) == ATTN_OK &&
           attn_cpu_plan_forward(&x->plan, &x->problem, &machine) == ATTN_OK;
}

#endif
