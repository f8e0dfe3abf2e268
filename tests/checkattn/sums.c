/*
 * sums.c: see sums.h.
 */
#include "sums.h"

#include <math.h>

#define REAL double
#define EXP exp
#define NAME(name) name##_double
#include "sums_body.h"
#undef REAL
#undef EXP
#undef NAME
#define REAL long double
#define EXP expl
#define NAME(name) name##_long
#include "sums_body.h"

static bool is_wide(const kernel_kit *kit)
{
    return kit->uk->real_size == 8;
}

exact_sum exact_dot(const kernel_kit *kit, const double *x, const double *y, int64_t n)
{
    return is_wide(kit) ? dot_long(x, y, n) : dot_double(x, y, n);
}

bool exact_softmax(const kernel_kit *kit, const double *s, int64_t n)
{
    return is_wide(kit) ? softmax_long(s, n) : softmax_double(s, n);
}

exact_sum exact_average(const kernel_kit *kit, const double *y, int64_t n)
{
    return is_wide(kit) ? average_long(y, n) : average_double(y, n);
}
