/*
 * test_train_runs.c: twenty steps of training, in float: the same losses with libattn and with
 * standard attention, up to the effect of one rounding of the initial weights; the same bits for
 * any number of threads; less loss at the end.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "random.h"
#include "threads.h"
#include "train.h"

enum { STEPS = 20 };

/* How much further apart than two runs that differ by a rounding: the ways differ by one in every
 * product. */
static const double FACTOR = 32;

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

static gpt_trainer *start(const text *from, enum attention_kind kind, double dropout)
{
    const config c = {.layers = 2,
                      .width = 48,
                      .heads = 3,
                      .context = 32,
                      .batch = 4,
                      .steps = STEPS,
                      .seed = 7,
                      .attention = kind,
                      .rate = 2e-3,
                      .dropout = dropout};
    return trainer_new(&device_cpu, &c, from);
}

static void compare_ways(double dropout)
{
    text from = make_text();
    gpt_trainer *ours = start(&from, ATTENTION_LIBATTN, dropout),
                *standard = start(&from, ATTENTION_STANDARD, dropout);
    gpt_trainer *nudged = start(&from, ATTENTION_STANDARD, dropout);
    double apart = 0, by_rounding = 0;
    model_nudge(nudged->model);
    for (int i = 0; i < STEPS; i++) {
        double loss = trainer_step(standard);
        apart = fmax(apart, fabs(trainer_step(ours) - loss));
        by_rounding = fmax(by_rounding, fabs(trainer_step(nudged) - loss));
    }
    print_message("losses %.1e apart; by one rounding of the weights %.1e; from %.3f to %.3f\n",
                  apart, by_rounding, ours->losses[0], ours->losses[STEPS - 1]);
    assert_true(apart <= FACTOR * by_rounding);
    assert_true(by_rounding < 1e-2);
    assert_true(ours->losses[STEPS - 1] < 0.7 * ours->losses[0]);
    trainer_delete(ours);
    trainer_delete(standard);
    trainer_delete(nudged);
}

static void test_ways_agree(void **state)
{
    (void)state;
    compare_ways(0);
}

static void test_ways_agree_with_dropout(void **state)
{
    (void)state;
    compare_ways(0.2);
}

static void check_threads(enum attention_kind kind)
{
    double losses[3][STEPS];
    text from = make_text();
    for (int n = 0; n < 3; n++) {
        threads_set(n + 1);
        gpt_trainer *trainer = start(&from, kind, 0.1);
        for (int i = 0; i < STEPS; i++) {
            losses[n][i] = trainer_step(trainer);
        }
        trainer_delete(trainer);
        assert_memory_equal(losses[0], losses[n], sizeof losses[0]);
    }
}

static void test_threads(void **state)
{
    (void)state;
    threads_set(2);
    if (threads_count() == 1) {
        print_message("SKIP one and several threads: built without OpenMP\n");
        skip();
    }
    check_threads(ATTENTION_LIBATTN);
    check_threads(ATTENTION_STANDARD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways_agree),
        cmocka_unit_test(test_ways_agree_with_dropout),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
