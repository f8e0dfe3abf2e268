/*
 * grad_trial.h: a trial (trial.h) of the backward pass: its line says pass=backward, its arguments
 * are t->tensors.grad.
 */
#ifndef TESTS_OP_GRAD_TRIAL_H
#define TESTS_OP_GRAD_TRIAL_H

#include "grad_runs.h"
#include "trial.h"

/* Fills o and lse by one forward pass. */
void grad_trial_forward(op_trial *trial);

/* Runs the backward pass in every way: all bits equal, inputs and gaps untouched. o and lse stay as
 * they are. */
void grad_trial_backward(op_trial *trial);

/* Both, and the oracle's judgement. */
void grad_trial_check(op_trial *trial);

/* The same gradients, bit for bit. */
void assert_same_gradients(const attn_backward_args *args, const attn_backward_args *backward);

/* Two tensors of the same shape and type hold the same bits. */
void assert_same_tensor(const attn_tensor *a, const attn_tensor *b);

#endif
