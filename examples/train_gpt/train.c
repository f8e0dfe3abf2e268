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

trainer *trainer_new(const config *c, const text *from)
{
    trainer *t = allocate(1, sizeof *t);
    size_t rows = (size_t)c->batch * (size_t)c->context;
    *t = (trainer){.config = *c, .text = from, .model = model_new(c), .random = (uint64_t)c->seed};
    t->adamw = adamw_new(t->model->count);
    t->losses = allocate((size_t)c->steps, sizeof *t->losses);
    t->valid = allocate((size_t)c->steps + 1, sizeof *t->valid);
    for (int64_t i = 0; i <= c->steps; i++) {
        t->valid[i] = NAN;
    }
    t->input = allocate(rows, 1);
    t->target = allocate(rows, 1);
    return t;
}

void trainer_delete(trainer *t)
{
    model_delete(t->model);
    adamw_free(&t->adamw);
    free(t->losses);
    free(t->valid);
    free(t->input);
    free(t->target);
    free(t);
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Sequence n of the batch: the bytes at `from`, and each one's successor. */
static void put_sequence(trainer *t, int n, const uint8_t *from)
{
    size_t length = (size_t)t->config.context;
    memcpy(t->input + (size_t)n * length, from, length);
    memcpy(t->target + (size_t)n * length, from + 1, length);
}

static tokens batch_of(const trainer *t, int sequences)
{
    return (tokens){sequences, t->model->context, t->input, t->target};
}

double trainer_step(trainer *t)
{
    const attention_dropout dropout = {t->config.dropout, (uint64_t)t->config.seed,
                                       (uint64_t)t->step * model_dropout_stride(t->model)};
    uint64_t starts = (uint64_t)(t->text->train_bytes - t->config.context);
    for (int n = 0; n < t->model->batch; n++) {
        put_sequence(t, n, t->text->train + random_word(&t->random) % starts);
    }
    tokens batch = batch_of(t, t->model->batch);
    model_forward(t->model, batch, dropout);
    double loss = model_backward(t->model, batch, dropout);
    if (!isfinite(loss)) {
        fail(EXIT_INTERNAL, "the loss of step %lld is not finite: a lower --rate may help",
             (long long)t->step + 1);
    }
    t->losses[t->step++] = loss;
    adamw_step(&t->adamw, t->model, t->step, adamw_rate(t->config.rate, t->step, t->config.steps));
    return loss;
}

double trainer_validate(trainer *t)
{
    int64_t room = (t->text->valid_bytes - 1) / t->config.context,
            windows = room < VALID_WINDOWS ? room : VALID_WINDOWS;
    double sum = 0;
    for (int64_t first = 0; first < windows; first += t->config.batch) {
        int count = (int)(windows - first < t->config.batch ? windows - first : t->config.batch);
        for (int n = 0; n < count; n++) {
            put_sequence(t, n, t->text->valid + (first + n) * room / windows * t->config.context);
        }
        sum += count * model_loss(t->model, batch_of(t, count));
    }
    return sum / (double)windows;
}

/* ---- The loop -------------------------------------------------------------------------------- */

static bool validates_at(const trainer *t)
{
    int64_t interval = t->config.steps < VALIDATIONS ? 1 : t->config.steps / VALIDATIONS;
    return t->step % interval == 0 || t->step == t->config.steps;
}

/* The common part of the last validation's line and of the line that is overwritten. */
static void print_state(FILE *out, const trainer *t, double speed)
{
    double left =
        (double)(t->config.steps - t->step) * (double)(t->config.batch * t->config.context) / speed;
    fprintf(out, "step %4lld/%lld", (long long)t->step, (long long)t->config.steps);
    if (t->step > 0) {
        fprintf(out, "  loss %.3f", t->losses[t->step - 1]);
    }
    if (!isnan(t->valid[t->step])) {
        fprintf(out, "  validation %.3f", t->valid[t->step]);
    }
    if (speed > 0) {
        fprintf(out, "  %.1fk tokens/s  %d:%02d to go", speed / 1e3, (int)left / 60,
                (int)left % 60);
    }
}

static void show_progress(const trainer *t, double speed)
{
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
        print_state(stderr, t, speed);
        fflush(stderr);
    }
}

static void show_validation(const trainer *t, FILE *out, double speed)
{
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
    }
    print_state(out, t, speed);
    fputc('\n', out);
    fflush(out);
}

void trainer_run(trainer *t, FILE *out, const char *checkpoint, double interval)
{
    double start = seconds_now(), saved = start;
    int64_t first = t->step;
    if (t->step == 0) {
        t->valid[0] = trainer_validate(t);
        show_validation(t, out, 0);
    }
    while (t->step < t->config.steps) {
        trainer_step(t);
        bool validates = validates_at(t);
        double speed = (double)((t->step - first) * t->config.batch * t->config.context) /
                       (seconds_now() - start);
        if (validates) {
            t->valid[t->step] = trainer_validate(t);
            show_validation(t, out, speed);
        } else {
            show_progress(t, speed);
        }
        if (checkpoint != NULL &&
            (t->step == t->config.steps || seconds_now() - saved >= interval)) {
            checkpoint_save(checkpoint, t);
            saved = seconds_now();
        }
    }
    t->seconds = seconds_now() - start;
}
