/*
 * grad_trial.c: see grad_trial.h.
 */
#include "grad_trial.h"
#include "outputs.h"
#include "tables.h"

#include <stdio.h>

static void fail_with_line(const trial *t, const char *sentence)
{
    char line[8192];
    problem_print(&t->p, line, sizeof line);
    fail_msg("%.500s: %s", line, sentence);
}

void grad_trial_forward(trial *t)
{
    char sentence[512];
    if (!runs_once(t->args, tables_usual(), 2, RUNS_NOISE, sentence, sizeof sentence)) {
        fail_with_line(t, sentence);
    }
}

void grad_trial_backward(trial *t)
{
    char sentence[512];
    size_t bytes;
    attn_forward_args before = *t->args;
    unsigned char *inputs = outputs_copy(&before, &bytes);
    uint64_t hash = outputs_inputs_hash(&before);
    if (!grad_runs_agree(&t->tensors.grad, sentence, sizeof sentence)) {
        fail_with_line(t, sentence);
    }
    unsigned char *after = outputs_copy(&before, &bytes);
    if (memcmp(inputs, after, bytes) != 0 || outputs_inputs_hash(&before) != hash) {
        fail_with_line(t, "an input was written");
    }
    free(inputs);
    free(after);
}

void grad_trial_check(trial *t)
{
    char sentence[512];
    if (!grad_runs_own_bits(&t->tensors.grad, sentence, sizeof sentence)) {
        fail_with_line(t, sentence);
    }
    grad_trial_forward(t);
    grad_trial_backward(t);
    if (!(grad_runs_judge(&t->tensors.grad, NULL, sentence, sizeof sentence) <= 1)) {
        fail_with_line(t, sentence);
    }
}

void assert_same_gradients(const attn_backward_args *a, const attn_backward_args *b)
{
    size_t a_bytes, b_bytes;
    unsigned char *a_bits = grad_runs_copy(a, &a_bytes), *b_bits = grad_runs_copy(b, &b_bytes);
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
