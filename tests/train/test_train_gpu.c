/*
 * test_train_gpu.c: training on this machine's GPU beside the CPU: losses of six steps and
 * gradients of one, up to the effect of one rounding of the weights; equal bits of two runs, one of
 * them continued from a checkpoint. Skipped where there is no GPU.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "checkpoint.h"
#include "gpu.h"
#include "random.h"
#include "train.h"

enum { STEPS = 6, SAVED = 3, CONTEXT = 24, BATCH = 2 };

/* How much further apart than two runs that differ by a rounding of the weights: devices differ by
 * one in every product. */
static const double FACTOR = 4;

static const device *gpu;
static uint8_t letters[8192];

/* Words of four letters, which follow from their first. */
static text make_text(void)
{
    uint64_t random = 1;
    for (int i = 0; i < (int)sizeof letters; i++) {
        letters[i] =
            (uint8_t)(i % 4 == 0 ? 'a' + (int)(random_word(&random) % 8) : letters[i - 1] + 1);
    }
    return (text){
        .train = letters, .valid = letters, .train_bytes = sizeof letters, .valid_bytes = 1024};
}

static config small(enum attention_kind kind, double dropout)
{
    return (config){.layers = 2,
                    .width = 32,
                    .heads = 2,
                    .context = CONTEXT,
                    .batch = BATCH,
                    .steps = STEPS,
                    .seed = 7,
                    .attention = kind,
                    .rate = 2e-3,
                    .dropout = dropout};
}

/* ---- Losses ---------------------------------------------------------------------------------- */

static void compare_losses(enum attention_kind kind, double dropout)
{
    const text from = make_text();
    const config c = small(kind, dropout);
    gpt_trainer *ours = trainer_new(gpu, &c, &from), *cpu = trainer_new(&device_cpu, &c, &from),
                *nudged = trainer_new(&device_cpu, &c, &from);
    double apart = 0, by_rounding = 0;
    model_nudge(nudged->model);
    for (int i = 0; i < STEPS; i++) {
        double loss = trainer_step(cpu);
        apart = fmax(apart, fabs(trainer_step(ours) - loss));
        by_rounding = fmax(by_rounding, fabs(trainer_step(nudged) - loss));
    }
    print_message("losses %.1e apart; by one rounding of the weights %.1e; from %.3f to %.3f\n",
                  apart, by_rounding, ours->losses[0], ours->losses[STEPS - 1]);
    assert_true(apart <= FACTOR * by_rounding);
    assert_true(by_rounding < 1e-2);
    assert_true(ours->losses[STEPS - 1] < 0.9 * ours->losses[0]);
    trainer_delete(ours);
    trainer_delete(cpu);
    trainer_delete(nudged);
}

static void test_libattn(void **state)
{
    (void)state;
    compare_losses(ATTENTION_LIBATTN, 0);
}

static void test_standard(void **state)
{
    (void)state;
    compare_losses(ATTENTION_STANDARD, 0);
}

static void test_dropout(void **state)
{
    (void)state;
    compare_losses(ATTENTION_LIBATTN, 0.2);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* All gradients of a model with larger weights than the initial ones, so that each counts. */
static real *gradients_of(const device *on, bool nudge)
{
    const config c = small(ATTENTION_LIBATTN, 0);
    gpt_model *model = model_new(on, &c);
    const size_t bytes = (size_t)model->count * sizeof(real);
    real *numbers = malloc(bytes);
    uint8_t input[BATCH * CONTEXT], target[BATCH * CONTEXT];
    uint64_t random = 3;
    assert_non_null(numbers);
    on->get(numbers, model->parameters, bytes);
    for (int64_t i = 0; i < model->count; i++) {
        numbers[i] += (real)(0.2 * random_normal(&random));
    }
    on->put(model->parameters, numbers, bytes);
    if (nudge) {
        model_nudge(model);
    }
    for (int i = 0; i < (int)sizeof input; i++) {
        input[i] = (uint8_t)random_word(&random), target[i] = (uint8_t)random_word(&random);
    }
    const tokens t = {BATCH, CONTEXT, input, target};
    model_forward(model, t, (attention_dropout){0});
    model_backward(model, t, (attention_dropout){0});
    on->get(numbers, model->gradients, bytes);
    model_delete(model);
    return numbers;
}

static double furthest(const real *a, const real *b, const tensor *t)
{
    double most = 0;
    for (int64_t i = t->at; i < t->at + t->count; i++) {
        most = fmax(most, fabs((double)a[i] - (b == NULL ? 0 : (double)b[i])));
    }
    return most;
}

static void test_gradients(void **state)
{
    (void)state;
    const config c = small(ATTENTION_LIBATTN, 0);
    gpt_model *shape = model_new(&device_cpu, &c);
    real *ours = gradients_of(gpu, false), *cpu = gradients_of(&device_cpu, false),
         *nudged = gradients_of(&device_cpu, true);
    double worst = 0;
    for (const tensor *t = shape->tensor; t < shape->tensor + shape->tensors; t++) {
        const double largest = furthest(cpu, NULL, t), apart = furthest(ours, cpu, t),
                     by_rounding = furthest(nudged, cpu, t);
        if (!(apart <= FACTOR * by_rounding && by_rounding <= 1e-3 * largest)) {
            fail_msg("tensor %d: largest gradient %.3g, apart %.3g, by one rounding %.3g",
                     (int)(t - shape->tensor), largest, apart, by_rounding);
        }
        worst = fmax(worst, apart / by_rounding);
    }
    print_message("gradients of %d tensors at most %.2f times as far apart as by one rounding\n",
                  shape->tensors, worst);
    free(ours);
    free(cpu);
    free(nudged);
    model_delete(shape);
}

/* ---- Bits ------------------------------------------------------------------------------------ */

static void check_bits(enum attention_kind kind, double dropout)
{
    const text from = make_text();
    const config c = small(kind, dropout);
    char path[] = "/tmp/train_gpu.XXXXXX";
    gpt_trainer *whole = trainer_new(gpu, &c, &from), *first = trainer_new(gpu, &c, &from),
                *second = trainer_new(gpu, &c, &from);
    const size_t bytes = (size_t)whole->model->count * sizeof(real);
    close(mkstemp(path));
    for (int i = 0; i < STEPS; i++) {
        trainer_step(whole);
        trainer_step(i < SAVED ? first : second);
        if (i == SAVED - 1) {
            checkpoint_save(path, first);
            assert_true(checkpoint_load(path, second));
        }
    }
    real *a = malloc(bytes), *b = malloc(bytes);
    gpu->get(a, whole->model->parameters, bytes);
    gpu->get(b, second->model->parameters, bytes);
    assert_memory_equal(whole->losses, second->losses, STEPS * sizeof *whole->losses);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
    unlink(path);
    trainer_delete(whole);
    trainer_delete(first);
    trainer_delete(second);
}

static void test_bits(void **state)
{
    (void)state;
    check_bits(ATTENTION_LIBATTN, 0.1);
    check_bits(ATTENTION_STANDARD, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_libattn),
        cmocka_unit_test(test_standard),  cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_bits),
    };
    const char *missing = gpu_open();
    if (missing != NULL) {
        printf("SKIP training on a GPU: %s\n", missing);
        return 77;
    }
    gpu = device_cuda();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
