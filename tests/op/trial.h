/*
 * trial.h: one problem whose values a test sets by hand, run in every way of runs.h. Includes
 * cmocka and its headers. Tensors end at inaccessible pages; outputs and gaps are poisoned with
 * 0xFF, a NaN.
 */
#ifndef TESTS_OP_TRIAL_H
#define TESTS_OP_TRIAL_H

#include "inputs.h"
#include "problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct op_trial {
    problem_spec problem;
    problem_tensors tensors;
    attn_forward_args *args; /* a copy of tensors.args; tensors.grad.forward */
} op_trial;

/* The tensors of a problem line, filled as the line says. */
op_trial trial_open(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trial_close(op_trial *trial);

/* Runs it in every way (runs_agree): all bits equal, inputs and gaps untouched. */
void trial_run(op_trial *trial);

/* trial_run, and the oracle's judgement by A1 and A3. */
void trial_check(op_trial *trial);

/* trial_check for the tables with bits of their own, by their own limits. Not for infinities among
 * the inputs: where a number is a sum of parts, infinity is NaN. */
void trial_check_own_bits(op_trial *trial);

/* For large problems: runs once, on the best table and this many threads, and judges a sample of
 * rows. */
void trial_run_once(op_trial *trial, int threads);
void trial_check_once(op_trial *trial, int threads, int64_t rows);

/* Copies the bits of the outputs; free() the copy. */
unsigned char *trial_bits(const op_trial *trial, size_t *bytes);

/* All outputs have the same bits in the same order. */
void assert_same_outputs(const op_trial *a, const op_trial *b);

/* ---- values ---------------------------------------------------------------------------------- */

void tensor_fill(const attn_tensor *t, double value);

/* Copies to every element of `to` the element of `from` at the same index, axes of extent 1
 * broadcast; same shape or not. */
void tensor_copy(const attn_tensor *to, const attn_tensor *from);

/* Rows, keys or heads first .. first + n - 1 of an axis. */
attn_tensor tensor_slice(attn_tensor t, int axis, int64_t first, int64_t n);

double trial_o(const op_trial *trial, int64_t b, int64_t i, int64_t h, int64_t c);
double trial_lse(const op_trial *trial, int64_t b, int64_t i, int64_t h);

void assert_near(double got, double want, double error);

/* A3: 8 u (1 + max|score|) */
double lse_bound(double largest_score);

/* A context on GPU 0, whose memory gpu.h gives out from now on. NULL without a GPU, after a line
 * that says why: the test ends with 77, which counts as skipped. */
attn_context *trial_gpu(void);

#endif
