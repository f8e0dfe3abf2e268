/*
 * trial.c: see trial.h.
 */
#include "trial.h"
#include "errors.h"
#include "oracle.h"
#include "outputs.h"
#include "runs.h"
#include "tables.h"

#include <stdio.h>

trial trial_open(const char *format, ...)
{
    char line[8192], error[512];
    trial t;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (!problem_parse(line, &t.p, error, sizeof error)) {
        fail_msg("%s", error);
    }
    if (!problem_tensors_create(&t.p, PLACE_GUARD_AFTER, &t.tensors)) {
        fail_msg("no memory for %s", line);
    }
    t.args = calloc(1, sizeof *t.args); /* so that a trial can be returned */
    *t.args = t.tensors.args;
    t.tensors.grad.forward = t.args;
    return t;
}

void trial_close(trial *t)
{
    problem_tensors_free(&t->tensors);
    free(t->args);
}

static void fail_with_line(const trial *t, const char *sentence)
{
    char line[8192];
    problem_print(&t->p, line, sizeof line);
    fail_msg("%.500s: %s", line, sentence);
}

void trial_run(trial *t)
{
    char sentence[512];
    uint64_t before = outputs_inputs_hash(t->args);
    if (!runs_agree(t->args, sentence, sizeof sentence)) {
        fail_with_line(t, sentence);
    }
    if (outputs_inputs_hash(t->args) != before) {
        fail_with_line(t, "an input was written");
    }
}

void trial_check(trial *t)
{
    char sentence[512];
    trial_run(t);
    if (!(outputs_judge(t->args, NULL, sentence, sizeof sentence) <= 1)) {
        fail_with_line(t, sentence);
    }
}

void trial_check_own_bits(trial *t)
{
    char sentence[512];
    int count;
    const char *const *names = tables_own_bits(&count);
    for (int i = 0; i < count; i++) {
        if (!runs_agree_on(t->args, names[i], sentence, sizeof sentence) ||
            !(outputs_judge(t->args, names[i], sentence, sizeof sentence) <= 1)) {
            fail_with_line(t, sentence);
        }
    }
}

void trial_run_once(trial *t, int threads)
{
    char sentence[512];
    if (!runs_once(t->args, NULL, threads, RUNS_NOISE, sentence, sizeof sentence)) {
        fail_with_line(t, sentence);
    }
}

void trial_check_once(trial *t, int threads, int64_t rows)
{
    char sentence[512];
    errors e;
    trial_run_once(t, threads);
    errors_measure(t->args, rows, &e);
    if (!(e.c <= 4 && e.lse <= 8 && e.row_max <= 8)) {
        snprintf(sentence, sizeof sentence, "c = %.3g, lse %.3g, row_max %.3g", e.c, e.lse,
                 e.row_max);
        fail_with_line(t, sentence);
    }
}

unsigned char *trial_bits(const trial *t, size_t *bytes)
{
    unsigned char *bits = outputs_copy(t->args, bytes);
    assert_non_null(bits);
    return bits;
}

void assert_same_outputs(const trial *a, const trial *b)
{
    size_t a_bytes, b_bytes;
    unsigned char *a_bits = trial_bits(a, &a_bytes), *b_bits = trial_bits(b, &b_bytes);
    bool same = a_bytes == b_bytes && memcmp(a_bits, b_bits, a_bytes) == 0;
    free(a_bits);
    free(b_bits);
    if (!same) {
        fail_with_line(a, "not the bits of the other trial");
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

void tensor_fill(const attn_tensor *t, double value)
{
    for (int64_t i0 = 0; i0 < t->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < t->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < t->shape[2]; i2++) {
                for (int64_t i3 = 0; i3 < t->shape[3]; i3++) {
                    inputs_store(t, i0, i1, i2, i3, value);
                }
            }
        }
    }
}

void tensor_copy(const attn_tensor *to, const attn_tensor *from)
{
    const int64_t *n = from->shape;
    for (int64_t i0 = 0; i0 < to->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < to->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < to->shape[2]; i2++) {
                for (int64_t i3 = 0; i3 < to->shape[3]; i3++) {
                    double value = oracle_element(from, n[0] == 1 ? 0 : i0, n[1] == 1 ? 0 : i1,
                                                  n[2] == 1 ? 0 : i2, n[3] == 1 ? 0 : i3);
                    inputs_store(to, i0, i1, i2, i3, value);
                }
            }
        }
    }
}

attn_tensor tensor_slice(attn_tensor t, int axis, int64_t first, int64_t n)
{
    t.data = (char *)t.data + first * t.stride[axis] * (int64_t)attn_dtype_size(t.dtype);
    t.shape[axis] = n;
    return t;
}

double trial_o(const trial *t, int64_t b, int64_t i, int64_t h, int64_t c)
{
    return oracle_element(&t->args->o, b, i, h, c);
}

double trial_lse(const trial *t, int64_t b, int64_t i, int64_t h)
{
    return oracle_element(&t->args->lse, b, i, h, 0);
}

void assert_near(double got, double want, double error)
{
    if (!(got == want || fabs(got - want) <= error)) {
        fail_msg("%.9g is not %.9g +- %.3g", got, want, error);
    }
}

double lse_bound(double largest_score)
{
    return 8 * 0x1p-24 * (1 + largest_score);
}
