/*
 * check.h: `attn check` on GPUs, from check.c, and what both have in common.
 */
#ifndef CLI_CHECK_H
#define CLI_CHECK_H

#include "cli.h"
#include "errors.h"

/* Contract A1 and A3: the most that errors.c and errors.lse may be in f32 arithmetic. */
#define CHECK_MAX_C 4.0
#define CHECK_MAX_LSE 8.0

/* A hash of the values of o, lse and row_max; all NaNs are one. */
uint64_t check_hash(const attn_forward_args *args);

/* Adds error_c .. memory_intact, ok and the seed to the object of a problem, prints it and frees
 * it. */
struct check_verdict {
    errors errors;
    bool intact, equal;    /* nothing written beside the outputs; the bits that there should be */
    bool exact, exact_lse; /* O and LSE are near enough */
    bool ok;
};
void check_tell_json(cJSON *object, uint64_t seed, const struct check_verdict *verdict);

/* Where a verdict is not ok: why, on a line of its own. */
void check_tell_failure(const char *by, const struct check_verdict *verdict);

/* The whole command with --device cuda; returns an exit status. */
int check_gpu(const cli_list *list, int64_t seeds, bool json);

#endif
