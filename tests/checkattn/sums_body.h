/*
 * sums_body.h: the functions of sums.h in REAL, with its EXP; NAME gives their names.
 */
static REAL NAME(weights)[2 * KIT_MOST_KEYS], NAME(weight);

static exact_sum NAME(dot)(const double *x, const double *y, int64_t n)
{
    REAL value = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const REAL term = (REAL)x[i] * (REAL)y[i];
        value += term, size += term < 0 ? -term : term;
    }
    return (exact_sum){(double)value, (double)size};
}

static bool NAME(softmax)(const double *s, int64_t n)
{
    double top = -(double)INFINITY;
    for (int64_t i = 0; i < n; i++) {
        top = fmax(top, s[i]);
    }
    NAME(weight) = 0;
    for (int64_t i = 0; i < n; i++) {
        NAME(weights)[i] = s[i] == -(double)INFINITY ? 0 : EXP((REAL)s[i] - (REAL)top);
        NAME(weight) += NAME(weights)[i];
    }
    return NAME(weight) != 0;
}

static exact_sum NAME(average)(const double *y, int64_t n)
{
    REAL value = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (NAME(weights)[i] != 0) {
            const REAL term = NAME(weights)[i] * (REAL)y[i];
            value += term, size += term < 0 ? -term : term;
        }
    }
    return (exact_sum){(double)(value / NAME(weight)), (double)(size / NAME(weight))};
}
