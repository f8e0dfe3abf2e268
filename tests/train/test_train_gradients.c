/*
 * test_train_gradients.c: the gradient of every parameter of the example's model, in double,
 * against central differences of the loss: both ways of attention, with and without dropout.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "model.h"
#include "random.h"
#include "threads.h"

enum { BATCH = 2, LENGTH = 7, ROWS = BATCH * LENGTH };
static const double STEP = 1e-5;

/* Truncation is about STEP^2 of the third derivative, rounding 1e-15 / STEP: both near 1e-10. */
static const double TOLERANCE = 1e-7;

static double loss_at(gpt_model *model, tokens t, attention_dropout d, int64_t i, double value)
{
    double old = model->parameters[i];
    model->parameters[i] = value;
    model_forward(model, t, d);
    double loss = cross_entropy(ROWS, t.target, model->logits, model->losses);
    model->parameters[i] = old;
    return loss;
}

static void check_tensor(gpt_model *model, tokens t, attention_dropout d, int which)
{
    const tensor *x = &model->tensor[which];
    double largest = 0, worst = 0;
    for (int64_t i = x->at; i < x->at + x->count; i++) {
        double at = model->parameters[i];
        double numeric =
            (loss_at(model, t, d, i, at + STEP) - loss_at(model, t, d, i, at - STEP)) / (2 * STEP);
        largest = fmax(largest, fabs(numeric));
        worst = fmax(worst, fabs(numeric - model->gradients[i]));
    }
    if (!(worst <= TOLERANCE * largest) || largest < 1e-3) {
        fail_msg("tensor %d: largest gradient %.3g, worst error %.3g", which, largest, worst);
    }
}

static void check_model(enum attention_kind kind, double p)
{
    const config c = {
        .layers = 2, .width = 12, .heads = 3, .context = LENGTH, .batch = BATCH, .attention = kind};
    const attention_dropout d = {p, 5, 1000};
    uint8_t input[ROWS], target[ROWS];
    uint64_t random = 3;
    gpt_model *model = model_new(&device_cpu, &c);
    /* far from the small initial weights, so that every gradient counts */
    for (int64_t i = 0; i < model->count; i++) {
        model->parameters[i] += 0.4 * random_normal(&random);
    }
    for (int i = 0; i < ROWS; i++) {
        input[i] = (uint8_t)random_word(&random), target[i] = (uint8_t)random_word(&random);
    }
    tokens t = {BATCH, LENGTH, input, target};
    model_forward(model, t, d);
    model_backward(model, t, d);
    for (int which = 0; which < model->tensors; which++) {
        check_tensor(model, t, d, which);
    }
    model_delete(model);
}

static void test_libattn(void **state)
{
    (void)state;
    check_model(ATTENTION_LIBATTN, 0);
}

static void test_standard(void **state)
{
    (void)state;
    check_model(ATTENTION_STANDARD, 0);
}

static void test_libattn_dropout(void **state)
{
    (void)state;
    check_model(ATTENTION_LIBATTN, 0.3);
}

static void test_standard_dropout(void **state)
{
    (void)state;
    check_model(ATTENTION_STANDARD, 0.3);
}

int main(void)
{
    threads_set(1); /* the model is too small for more */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_libattn),
        cmocka_unit_test(test_standard),
        cmocka_unit_test(test_libattn_dropout),
        cmocka_unit_test(test_standard_dropout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
