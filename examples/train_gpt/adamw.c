/*
 * adamw.c: see adamw.h. Compiled with -ffast-math like layers.c.
 */
#include "adamw.h"

#include <stdlib.h>
#include <tgmath.h>

#include "fail.h"

static const double MEAN_DECAY = 0.9, SQUARE_DECAY = 0.99, EPSILON = 1e-8, WEIGHT_DECAY = 0.1,
                    CLIP = 1;

enum { CHUNK = 4096 }; /* of the parameters, one thread's, with a fixed start: see layers.c */

adamw adamw_new(int64_t count)
{
    return (adamw){count, allocate((size_t)count, sizeof(real)),
                   allocate((size_t)count, sizeof(real))};
}

void adamw_free(adamw *o)
{
    free(o->mean);
    free(o->square);
}

static double norm_of(const real *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sqrt(sum);
}

/* One step's numbers, shared by all parameters. */
struct rule {
    real clip, unbias1, unbias2, rate;
};

static void update(adamw *o, gpt_model *model, const struct rule *rule, real keep, int64_t first,
                   int64_t end)
{
    const real b1 = (real)MEAN_DECAY, b2 = (real)SQUARE_DECAY;
    for (int64_t i = first; i < end; i++) {
        real g = model->gradients[i] * rule->clip;
        o->mean[i] = b1 * o->mean[i] + (1 - b1) * g;
        o->square[i] = b2 * o->square[i] + (1 - b2) * g * g;
        real step =
            o->mean[i] * rule->unbias1 / (sqrt(o->square[i] * rule->unbias2) + (real)EPSILON);
        model->parameters[i] = keep * model->parameters[i] - rule->rate * step;
    }
}

double adamw_step(adamw *o, gpt_model *model, int64_t step, double rate)
{
    double norm = norm_of(model->gradients, model->count);
    const struct rule rule = {
        .clip = (real)(norm > CLIP ? CLIP / norm : 1),
        .unbias1 = (real)(1 / (1 - pow(MEAN_DECAY, (double)step))),
        .unbias2 = (real)(1 / (1 - pow(SQUARE_DECAY, (double)step))),
        .rate = (real)rate,
    };
    for (const tensor *t = model->tensor; t < model->tensor + model->tensors; t++) {
        const real keep = (real)(t->decays ? 1 - rate * WEIGHT_DECAY : 1);
        const int64_t end = t->at + t->count;
#pragma omp parallel for
        for (int64_t first = t->at; first < end; first += CHUNK) {
            update(o, model, &rule, keep, first, first + CHUNK < end ? first + CHUNK : end);
        }
    }
    return norm;
}

double adamw_rate(double highest, int64_t step, int64_t steps)
{
    double warm = fmax(1, (double)steps / 20);
    if ((double)step < warm) {
        return highest * (double)step / warm;
    }
    double done = ((double)step - warm) / fmax(1, (double)steps - warm);
    return highest * (0.1 + 0.45 * (1 + cos(3.141592653589793 * done)));
}
