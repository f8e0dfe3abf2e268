/*
 * adamw.c: see adamw.h.
 */
#include "adamw.h"

#include <tgmath.h>

static const double MEAN_DECAY = 0.9, SQUARE_DECAY = 0.99, EPSILON = 1e-8, WEIGHT_DECAY = 0.1,
                    CLIP = 1;

adamw adamw_new(const device *on, int64_t count)
{
    return (adamw){on, count, on->allocate((size_t)count, sizeof(real)),
                   on->allocate((size_t)count, sizeof(real))};
}

void adamw_free(adamw *o)
{
    o->on->release(o->mean);
    o->on->release(o->square);
}

double adamw_step(adamw *o, gpt_model *model, int64_t step, double rate)
{
    double size = o->on->magnitude(model->count, model->gradients);
    adamw_rule rule = {
        .clip = (real)(size > CLIP ? CLIP / size : 1),
        .unbias1 = (real)(1 / (1 - pow(MEAN_DECAY, (double)step))),
        .unbias2 = (real)(1 / (1 - pow(SQUARE_DECAY, (double)step))),
        .rate = (real)rate,
        .mean_decay = (real)MEAN_DECAY,
        .square_decay = (real)SQUARE_DECAY,
        .epsilon = (real)EPSILON,
    };
    for (const tensor *t = model->tensor; t < model->tensor + model->tensors; t++) {
        rule.keep = (real)(t->decays ? 1 - rate * WEIGHT_DECAY : 1);
        o->on->adamw(t->count, &rule, model->gradients + t->at, o->mean + t->at, o->square + t->at,
                     model->parameters + t->at);
    }
    return size;
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
