/*
 * random.h: random numbers from one word of state (SplitMix64; Steele, Lea, Flood, OOPSLA 2014),
 * which a checkpoint can hold.
 */
#ifndef TRAIN_GPT_RANDOM_H
#define TRAIN_GPT_RANDOM_H

#include <math.h>
#include <stdint.h>

static inline uint64_t random_word(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* In [0, 1). */
static inline double random_unit(uint64_t *state)
{
    return (double)(random_word(state) >> 11) * 0x1p-53;
}

/* N(0, 1), Box-Muller. */
static inline double random_normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(1 - random_unit(state)));
    return radius * cos(6.283185307179586 * random_unit(state));
}

#endif
