/*
 * trial.c: see trial.h.
 */
#include "trial.h"
#include "errors.h"
#include "gpu.h"
#include "oracle.h"
#include "outputs.h"
#include "runs.h"
#include "tables.h"

#include <stdio.h>

op_trial trial_open(const char *format, ...)
{
    char line[8192], error[512];
    op_trial trial;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (!problem_parse(line, &trial.problem, error, sizeof error)) {
        fail_msg("%s", error);
    }
    if (!problem_tensors_create(&trial.problem, PLACE_GUARD_AFTER, &trial.tensors)) {
        fail_msg("no memory for %s", line);
    }
    trial.args = calloc(1, sizeof *trial.args); /* so that a trial can be returned */
    *trial.args = trial.tensors.args;
    trial.tensors.grad.forward = trial.args;
    return trial;
}

void trial_close(op_trial *trial)
{
    problem_tensors_free(&trial->tensors);
    free(trial->args);
}

static void fail_with_line(const op_trial *trial, const char *sentence)
{
    char line[8192];
    problem_print(&trial->problem, line, sizeof line);
    fail_msg("%.500s: %s", line, sentence);
}

void trial_run(op_trial *trial)
{
    char sentence[512];
    uint64_t before = outputs_inputs_hash(trial->args);
    if (!runs_agree(trial->args, sentence, sizeof sentence)) {
        fail_with_line(trial, sentence);
    }
    if (outputs_inputs_hash(trial->args) != before) {
        fail_with_line(trial, "an input was written");
    }
}

void trial_check(op_trial *trial)
{
    char sentence[512];
    trial_run(trial);
    if (!(outputs_judge(trial->args, NULL, sentence, sizeof sentence) <= 1)) {
        fail_with_line(trial, sentence);
    }
}

void trial_check_own_bits(op_trial *trial)
{
    char sentence[512];
    int count;
    const char *const *names = tables_own_bits(&count);
    for (int i = 0; i < count; i++) {
        if (!runs_agree_on(trial->args, names[i], sentence, sizeof sentence) ||
            !(outputs_judge(trial->args, names[i], sentence, sizeof sentence) <= 1)) {
            fail_with_line(trial, sentence);
        }
    }
}

void trial_run_once(op_trial *trial, int threads)
{
    char sentence[512];
    if (!runs_once(trial->args, NULL, threads, RUNS_NOISE, sentence, sizeof sentence)) {
        fail_with_line(trial, sentence);
    }
}

void trial_check_once(op_trial *trial, int threads, int64_t rows)
{
    char sentence[512];
    error_stats errors;
    trial_run_once(trial, threads);
    errors_measure(trial->args, rows, &errors);
    if (!(errors.c <= 4 && errors.lse <= 8 && errors.row_max <= 8)) {
        snprintf(sentence, sizeof sentence, "c = %.3g, lse %.3g, row_max %.3g", errors.c,
                 errors.lse, errors.row_max);
        fail_with_line(trial, sentence);
    }
}

unsigned char *trial_bits(const op_trial *trial, size_t *bytes)
{
    unsigned char *bits = outputs_copy(trial->args, bytes);
    assert_non_null(bits);
    return bits;
}

void assert_same_outputs(const op_trial *a, const op_trial *b)
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

double trial_o(const op_trial *trial, int64_t b, int64_t i, int64_t h, int64_t c)
{
    return oracle_element(&trial->args->o, b, i, h, c);
}

double trial_lse(const op_trial *trial, int64_t b, int64_t i, int64_t h)
{
    return oracle_element(&trial->args->lse, b, i, h, 0);
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

/* True for reasons that a machine has; the emulated GPU is never absent. */
static bool may_lack_gpu(const char *failure)
{
    static const char *const reasons[] = {"no CUDA driver: ", "the CUDA driver ",
                                          "has no GPU kernels", "or newer is needed"};
    bool known = false;
    for (int i = 0; i < 4; i++) {
        known |= strstr(failure, reasons[i]) != NULL;
    }
    return known && getenv("ATTN_EMULATED_GPU") == NULL;
}

attn_context *trial_gpu(void)
{
    const attn_context_config config = {.struct_size = sizeof config, .device = ATTN_DEVICE_CUDA};
    attn_context *context = NULL;
    const char *failure = gpu_open();
    if (!failure && attn_context_create(&config, &context) != ATTN_OK) {
        failure = attn_last_error();
    }
    if (failure && !may_lack_gpu(failure)) {
        fail_msg("%s", failure);
    }
    if (failure) {
        printf("SKIP no GPU: %s\n", failure);
    }
    return context;
}
