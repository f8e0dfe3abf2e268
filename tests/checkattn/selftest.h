/*
 * selftest.h: the harness on kernels that are wrong on purpose.
 */
#ifndef TESTS_CHECKATTN_SELFTEST_H
#define TESTS_CHECKATTN_SELFTEST_H

#include <stdint.h>

/* The number of wrong kernels that were not caught; each is printed. */
int selftest(uint64_t seed);

#endif
