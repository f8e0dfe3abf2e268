/*
 * measure.h: the time of single kernels (--bench): for comparing tables with each other, not for
 * publishing.
 */
#ifndef TESTS_CHECKATTN_MEASURE_H
#define TESTS_CHECKATTN_MEASURE_H

#include "kit.h"

/* Prints ns per call and GFLOP/s of qk, softmax and pv on a whole block, d = d_v = 64 and 128. */
void measure(kernel_kit *kit);

#endif
