/*
 * adamw_update.c: see adamw_update.h. Compiled with -ffast-math like layers.c.
 */
#include "adamw_update.h"

#include <tgmath.h>

enum { CHUNK = 4096 }; /* of the parameters, one thread's, with a fixed start: see layers.c */

double magnitude(int64_t count, const real *x)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sqrt(sum);
}

void adamw_update(int64_t count, const adamw_rule *rule, const real *gradient, real *mean,
                  real *square, real *parameter)
{
    const adamw_rule r = *rule;
#pragma omp parallel for
    for (int64_t first = 0; first < count; first += CHUNK) {
        const int64_t end = first + CHUNK < count ? first + CHUNK : count;
        for (int64_t i = first; i < end; i++) {
            real g = gradient[i] * r.clip;
            mean[i] = r.mean_decay * mean[i] + (1 - r.mean_decay) * g;
            square[i] = r.square_decay * square[i] + (1 - r.square_decay) * g * g;
            real step = mean[i] * r.unbias1 / (sqrt(square[i] * r.unbias2) + r.epsilon);
            parameter[i] = r.keep * parameter[i] - r.rate * step;
        }
    }
}
