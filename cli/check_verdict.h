/*
 * check_verdict.h: the judgement of `attn check` on one call, on a CPU or a GPU.
 */
#ifndef CLI_CHECK_VERDICT_H
#define CLI_CHECK_VERDICT_H

#include "cli.h"
#include "errors.h"
#include "grad_errors.h"

/* Promises A1 and A3: the largest errors.c and errors.lse allowed in f32 arithmetic. */
#define CHECK_MAX_C 4.0
#define CHECK_MAX_LSE 8.0

/* Hash of the values of o, lse and row_max; all NaNs are one. */
uint64_t check_hash(const attn_forward_args *args);

/* Hash of a backward pass's gradients, on top of another hash. */
uint64_t check_hash_gradients(const attn_backward_args *args, uint64_t hash);

/* Adds error_c .. memory_intact, ok and the seed to a problem's object, prints it and frees it. */
struct check_verdict {
    error_stats errors;
    bool backward;                     /* gradients were computed, too: */
    grad_errors gradients;             /* 0 where there is none */
    double grad_c;                     /* the largest of gradients.c */
    bool intact, equal;                /* nothing written beside the outputs; the expected bits */
    bool exact, exact_lse, exact_grad; /* O, LSE and gradients are near enough */
    bool ok;
};
void check_tell_json(cJSON *object, uint64_t seed, const struct check_verdict *verdict);

/* Sets exact_grad. allowed: of grad_c. */
void check_judge_gradients(struct check_verdict *verdict, const problem_spec *problem,
                           double allowed);

/* The reason of a verdict that is not ok, on a line of its own. */
void check_tell_failure(const char *by, const struct check_verdict *verdict);

#endif
