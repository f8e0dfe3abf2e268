/*
 * grad_runs.h: attn_backward in every way that must not matter, the mirror of runs.h: each kernel
 * table with the usual bits, its numbers of threads, workspaces of exactly the required size with
 * 0xFF, 0x00 or noise.
 */
#ifndef TESTS_OP_GRAD_RUNS_H
#define TESTS_OP_GRAD_RUNS_H

#include "runs.h"

/* Copies the gradients of a call one after the other; free() the copy. */
unsigned char *grad_runs_copy(const attn_backward_args *args, size_t *bytes);

/* Runs once. Poisons the gradients first. False with a sentence if the call fails. */
bool grad_runs_once(const attn_backward_args *args, const char *table, int threads,
                    enum runs_poison poison, char *sentence, size_t size);

/* Runs in all ways. False with a sentence unless all calls succeed with the same bits; the last
 * run's gradients stay. */
bool grad_runs_agree(const attn_backward_args *args, char *sentence, size_t size);

/* Runs each table on one thread only. */
bool grad_runs_tables_agree(const attn_backward_args *args, char *sentence, size_t size);

/* On each table with bits of its own: a forward pass, then backward passes on 1 and 3 threads with
 * equal bits, judged by the table's own limits. */
bool grad_runs_own_bits(const attn_backward_args *args, char *sentence, size_t size);

/* The largest share of its bound (half an ulp and c u times the weighted sizes; grad_c of
 * errors_allowed) that the error of a gradient has. random: inputs are N(0, 1), and the share is
 * infinite for a gradient that is off as a whole. The sentence has the numbers. */
double grad_runs_judge(const attn_backward_args *args, const char *table, bool random,
                       char *sentence, size_t size);

#endif
