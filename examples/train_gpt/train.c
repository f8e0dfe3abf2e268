/*
 * train.c: see train.h.
 */
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint.h"
#include "fail.h"
#include "random.h"

enum { VALIDATIONS = 20, VALID_WINDOWS = 32 };

gpt_trainer *trainer_new(const device *on, const config *c, const text *from)
{
    gpt_trainer *trainer = allocate(1, sizeof *trainer);
    size_t rows = (size_t)c->batch * (size_t)c->context;
    *trainer = (gpt_trainer){
        .config = *c, .text = from, .model = model_new(on, c), .random = (uint64_t)c->seed};
    trainer->adamw = adamw_new(on, trainer->model->count);
    trainer->losses = allocate((size_t)c->steps, sizeof *trainer->losses);
    trainer->valid = allocate((size_t)c->steps + 1, sizeof *trainer->valid);
    for (int64_t i = 0; i <= c->steps; i++) {
        trainer->valid[i] = NAN;
    }
    trainer->input = allocate(rows, 1);
    trainer->target = allocate(rows, 1);
    return trainer;
}

void trainer_delete(gpt_trainer *trainer)
{
    model_delete(trainer->model);
    adamw_free(&trainer->adamw);
    free(trainer->losses);
    free(trainer->valid);
    free(trainer->input);
    free(trainer->target);
    free(trainer);
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Sequence n of the batch: the bytes at `from`, and each one's successor. */
static void put_sequence(gpt_trainer *trainer, int n, const uint8_t *from)
{
    size_t length = (size_t)trainer->config.context;
    memcpy(trainer->input + (size_t)n * length, from, length);
    memcpy(trainer->target + (size_t)n * length, from + 1, length);
}

static tokens batch_of(const gpt_trainer *trainer, int sequences)
{
    return (tokens){sequences, trainer->model->context, trainer->input, trainer->target};
}

double trainer_step(gpt_trainer *trainer)
{
    const attention_dropout dropout = {trainer->config.dropout, (uint64_t)trainer->config.seed,
                                       (uint64_t)trainer->step *
                                           model_dropout_stride(trainer->model)};
    uint64_t starts = (uint64_t)(trainer->text->train_bytes - trainer->config.context);
    for (int n = 0; n < trainer->model->batch; n++) {
        put_sequence(trainer, n, trainer->text->train + random_word(&trainer->random) % starts);
    }
    tokens batch = batch_of(trainer, trainer->model->batch);
    model_forward(trainer->model, batch, dropout);
    double loss = model_backward(trainer->model, batch, dropout);
    if (!isfinite(loss)) {
        fail(EXIT_INTERNAL, "the loss of step %lld is not finite: a lower --rate may help",
             (long long)trainer->step + 1);
    }
    trainer->losses[trainer->step++] = loss;
    adamw_step(&trainer->adamw, trainer->model, trainer->step,
               adamw_rate(trainer->config.rate, trainer->step, trainer->config.steps));
    return loss;
}

double trainer_validate(gpt_trainer *trainer)
{
    int64_t room = (trainer->text->valid_bytes - 1) / trainer->config.context,
            windows = room < VALID_WINDOWS ? room : VALID_WINDOWS;
    double sum = 0;
    for (int64_t first = 0; first < windows; first += trainer->config.batch) {
        int count = (int)(windows - first < trainer->config.batch ? windows - first
                                                                  : trainer->config.batch);
        for (int n = 0; n < count; n++) {
            put_sequence(trainer, n,
                         trainer->text->valid +
                             (first + n) * room / windows * trainer->config.context);
        }
        sum += count * model_loss(trainer->model, batch_of(trainer, count));
    }
    return sum / (double)windows;
}

/* ---- The loop -------------------------------------------------------------------------------- */

static bool validates_at(const gpt_trainer *trainer)
{
    int64_t interval =
        trainer->config.steps < VALIDATIONS ? 1 : trainer->config.steps / VALIDATIONS;
    return trainer->step % interval == 0 || trainer->step == trainer->config.steps;
}

/* The common part of the last validation's line and of the line that is overwritten. */
static void print_state(FILE *out, const gpt_trainer *trainer, double speed)
{
    double left = (double)(trainer->config.steps - trainer->step) *
                  (double)(trainer->config.batch * trainer->config.context) / speed;
    fprintf(out, "step %4lld/%lld", (long long)trainer->step, (long long)trainer->config.steps);
    if (trainer->step > 0) {
        fprintf(out, "  loss %.3f", trainer->losses[trainer->step - 1]);
    }
    if (!isnan(trainer->valid[trainer->step])) {
        fprintf(out, "  validation %.3f", trainer->valid[trainer->step]);
    }
    if (speed > 0) {
        fprintf(out, "  %.1fk tokens/s  %d:%02d to go", speed / 1e3, (int)left / 60,
                (int)left % 60);
    }
}

static void show_progress(const gpt_trainer *trainer, double speed)
{
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
        print_state(stderr, trainer, speed);
        fflush(stderr);
    }
}

static void show_validation(const gpt_trainer *trainer, FILE *out, double speed)
{
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
    }
    print_state(out, trainer, speed);
    fputc('\n', out);
    fflush(out);
}

void trainer_run(gpt_trainer *trainer, FILE *out, const char *checkpoint, double interval)
{
    double start = seconds_now(), saved = start;
    int64_t first = trainer->step;
    if (trainer->step == 0) {
        trainer->valid[0] = trainer_validate(trainer);
        show_validation(trainer, out, 0);
    }
    while (trainer->step < trainer->config.steps) {
        trainer_step(trainer);
        bool validates = validates_at(trainer);
        double speed =
            (double)((trainer->step - first) * trainer->config.batch * trainer->config.context) /
            (seconds_now() - start);
        if (validates) {
            trainer->valid[trainer->step] = trainer_validate(trainer);
            show_validation(trainer, out, speed);
        } else {
            show_progress(trainer, speed);
        }
        if (checkpoint != NULL &&
            (trainer->step == trainer->config.steps || seconds_now() - saved >= interval)) {
            checkpoint_save(checkpoint, trainer);
            saved = seconds_now();
        }
    }
    trainer->seconds = seconds_now() - start;
}
