/*
 * grad_trial.c: see grad_trial.h.
 */
#include "grad_trial.h"
#include "outputs.h"
#include "tables.h"

#include <stdio.h>

static void fail_with_line(const op_trial *trial, const char *sentence)
{
    char line[8192];
    problem_print(&trial->problem, line, sizeof line);
    fail_msg("%.500s: %s", line, sentence);
}

void grad_trial_forward(op_trial *trial)
{
    char sentence[512];
    if (!runs_once(trial->args, tables_usual(), 2, RUNS_NOISE, sentence, sizeof sentence)) {
        fail_with_line(trial, sentence);
    }
}

void grad_trial_backward(op_trial *trial)
{
    char sentence[512];
    size_t bytes;
    attn_forward_args before = *trial->args;
    unsigned char *inputs = outputs_copy(&before, &bytes);
    uint64_t hash = outputs_inputs_hash(&before);
    if (!grad_runs_agree(&trial->tensors.grad, sentence, sizeof sentence)) {
        fail_with_line(trial, sentence);
    }
    unsigned char *after = outputs_copy(&before, &bytes);
    if (memcmp(inputs, after, bytes) != 0 || outputs_inputs_hash(&before) != hash) {
        fail_with_line(trial, "an input was written");
    }
    free(inputs);
    free(after);
}

void grad_trial_check(op_trial *trial)
{
    char sentence[512];
    if (!grad_runs_own_bits(&trial->tensors.grad, sentence, sizeof sentence)) {
        fail_with_line(trial, sentence);
    }
    grad_trial_forward(trial);
    grad_trial_backward(trial);
    if (!(grad_runs_judge(&trial->tensors.grad, NULL, false, sentence, sizeof sentence) <= 1)) {
        fail_with_line(trial, sentence);
    }
}

void assert_same_gradients(const attn_backward_args *args, const attn_backward_args *backward)
{
    size_t a_bytes, b_bytes;
    unsigned char *a_bits = grad_runs_copy(args, &a_bytes),
                  *b_bits = grad_runs_copy(backward, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a_bits, b_bits, a_bytes);
    free(a_bits);
    free(b_bits);
}

void assert_same_tensor(const attn_tensor *a, const attn_tensor *b)
{
    size_t a_bytes, b_bytes;
    unsigned char *a_bits = outputs_copy_these(&a, 1, &a_bytes),
                  *b_bits = outputs_copy_these(&b, 1, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a_bits, b_bits, a_bytes);
    free(a_bits);
    free(b_bits);
}
