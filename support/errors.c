/*
 * errors.c: see errors.h.
 */
#include "errors.h"
#include "half.h"
#include "inputs.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

double errors_distance(double x, double exact)
{
    if (x == exact || (isnan(x) && isnan(exact))) {
        return 0;
    }
    return isfinite(x) && isfinite(exact) ? fabs(x - exact) : (double)INFINITY;
}

double errors_element(int32_t dtype, double x, double exact)
{
    return isinf(x) && x == half_rounded(dtype, exact) ? 0 : errors_distance(x, exact);
}

/* error / unit, where 0 / 0 is 0, and an infinite error stays one whatever the unit (NaN if the
 * exact value is) */
static double in_units(double error, double unit)
{
    return error == 0 || isinf(error) ? error : error / unit;
}

/* The smallest c for which an error is within expm1(c unit) o_abs: in first order c unit o_abs. The
 * least unit of o_abs: half of the least f64 is 0, so it is the least f64. */
static double scores_c(double error, double unit, double o_abs)
{
    const double first = in_units(error, fmax(unit * o_abs, 0x1p-1074)), share = first * unit;
    return share > 0 && isfinite(share) ? log1p(share) / unit : first;
}

/* Of a kernel on a GPU's tensor cores: its c where scores are large. */
static const double fast_c = 16;

/* What rounding probabilities to the type of the inputs, and half as much again, costs in O. */
static double weight_loss(int32_t dtype)
{
    return dtype == ATTN_F16 ? 0x1p-11 : 0x1p-8;
}

/* Factor of 8u in A3: 1 + max |s|, or, with the constant of A1, the loss of scores that cancel, 4u
 * (1 + abs); see docs/decisions/005-error-of-lse.md. */
static double score_unit(double max, double abs)
{
    return fmax(1 + max, (1 + abs) / 2);
}

/* Adds an element of O to *errors, whose rmse members and l2 are sums of squares here, and whose
 * means are sums. */
static void compare_element(int32_t dtype, double got, double o, double o_abs, error_stats *errors)
{
    const double error = errors_element(dtype, got, o),
                 half_ulp = oracle_bound(dtype, dtype, 0, o, 0, 0);
    errors->relative = fmax(errors->relative, in_units(error, o_abs));
    errors->rmse += error * error;
    errors->rmse_once += pow(errors_element(dtype, half_rounded(dtype, o), o), 2);
    errors->rmse_any += isfinite(half_ulp) ? half_ulp * half_ulp / 3 : 0;
    errors->l2 += isfinite(o) ? o * o : 0;
    if (isfinite(error) && error > 0 && o_abs > 0) {
        errors->mean += (got - o) / o_abs;
        errors->outward += (o < 0 ? o - got : got - o) / o_abs;
    }
}

/* Adds row `at` of the flat order (b, i, h) to *errors. */
static void compare_row(const attn_forward_args *args, const oracle_result *exact, int64_t at,
                        error_stats *errors)
{
    int64_t heads = args->o.shape[2], rows = args->o.shape[1], dv = args->o.shape[3];
    int64_t h = at % heads, i = at / heads % rows, b = at / heads / rows;
    double u = args->q.dtype == ATTN_F64 ? 0x1p-53 : 0x1p-24;
    errors->score_abs = fmax(errors->score_abs, exact->score_abs[at]);
    errors->spread += isfinite(exact->score_spread[at]) ? pow(exact->score_spread[at], 2) : 0;
    for (int64_t c = 0; c < dv; c++) {
        double o = exact->o[at * dv + c], o_abs = exact->o_abs[at * dv + c];
        double got = oracle_element(&args->o, b, i, h, c);
        double error = errors_element(args->o.dtype, got, o);
        double granted =
            oracle_bound(args->q.dtype, args->o.dtype, 0, o, o_abs, 0) + exact->o_tiny[at * dv + c];
        const double beyond = isinf(error) ? error : fmax(error - granted, 0),
                     of_scores = u * (1 + exact->score_abs[at]);
        compare_element(args->o.dtype, got, o, o_abs, errors);
        errors->c = fmax(errors->c, scores_c(beyond, of_scores, o_abs));
        errors->rounded = fmax(
            errors->rounded,
            in_units(beyond, fmax(expm1(of_scores * fast_c), weight_loss(args->q.dtype)) * o_abs));
    }
    if (args->lse.data != NULL) {
        double lse = exact->lse[at], roundings = args->q.dtype == ATTN_F64 ? 3 : 1;
        double error = errors_distance(oracle_element(&args->lse, b, i, h, 0), lse);
        double half_ulp =
            isfinite(lse) ? oracle_bound(args->q.dtype, args->lse.dtype, 0, lse, 0, 0) : 0;
        error = isinf(error) ? error : fmax(error - roundings * half_ulp, 0);
        errors->lse = fmax(
            errors->lse, in_units(error, u * score_unit(exact->score_max[at], exact->lse_abs[at])));
    }
    if (args->row_max.data != NULL) {
        double error =
            errors_distance(oracle_element(&args->row_max, b, i, h, 0), exact->row_max[at]);
        errors->row_max =
            fmax(errors->row_max,
                 in_units(error, u * score_unit(exact->score_max[at], exact->row_max_abs[at])));
    }
}

static int64_t row_of_sample(int64_t n, int64_t count, int64_t all)
{
    if (count == all) {
        return n;
    }
    return n == 0 ? 0 : n == 1 ? all - 1 : (int64_t)(inputs_bits(0, 0, n) % (uint64_t)all);
}

static int64_t rows_in_a_second(const attn_forward_args *args, int64_t all)
{
    const double pages = args->block_table.data ? (double)args->block_table.shape[1] : 1;
    double row = ((double)args->k.shape[1] * pages + 1) *
                 ((double)(args->q.shape[3] + args->o.shape[3]) + 16);
    double rows = 2e9 / row / (args->q.dtype == ATTN_F64 ? 8 : 1);
    return rows < 64 ? 64 : rows < (double)all ? (int64_t)rows : all;
}

/* Sums over n elements become means. */
static void finish(error_stats *errors, double n)
{
    errors->spread = errors->rows > 0 ? sqrt(errors->spread / (double)errors->rows) : 0;
    if (n > 0) {
        errors->l2 = errors->l2 > 0 ? sqrt(errors->rmse / errors->l2) : 0;
        errors->rmse = sqrt(errors->rmse / n), errors->rmse_once = sqrt(errors->rmse_once / n);
        errors->rmse_any = sqrt(errors->rmse_any / n);
        errors->mean /= n, errors->outward /= n;
    }
}

double errors_bias(const error_stats *errors)
{
    return fmax(fabs(errors->mean), fabs(errors->outward));
}

double errors_bias_limit(const attn_forward_args *args, const error_stats *errors, double c)
{
    const double u = args->q.dtype == ATTN_F64 ? 0x1p-53 : 0x1p-24;
    const int32_t type = args->o.dtype;
    const double half_ulp = type == ATTN_BF16  ? 0x1p-8
                            : type == ATTN_F16 ? 0x1p-11
                            : type == ATTN_F32 ? 0x1p-24
                                               : 0x1p-53;
    return 8 / sqrt((double)errors->rows) * (half_ulp + c * u * (1 + errors->score_abs));
}

bool errors_scores_small(int32_t dtype, const error_stats *errors)
{
    return 0x1p-24 * (1 + errors->score_abs) <= weight_loss(dtype) / 2;
}

double errors_rmse_limit(const error_stats *errors, bool alike)
{
    return alike || errors->spread < 0.75 ? sqrt(5) : 1.45;
}

void errors_measure(const attn_forward_args *args, int64_t max_rows, error_stats *errors)
{
    int64_t all = args->o.shape[0] * args->o.shape[1] * args->o.shape[2], dv = args->o.shape[3];
    int64_t wanted = max_rows > 0 ? max_rows : rows_in_a_second(args, all),
            count = wanted < all ? wanted : all;
    size_t elements = (size_t)(all * dv + 1), size = sizeof(double);
    double *row = calloc((size_t)all * 7 + 1, size), *o = calloc(elements, size),
           *o_abs = calloc(elements, size), *o_tiny = calloc(elements, size);
    int64_t *rows = calloc((size_t)count + 1, sizeof *rows);
    if (row == NULL || o == NULL || o_abs == NULL || o_tiny == NULL || rows == NULL) {
        abort(); /* without the oracle's memory there is no answer */
    }
    oracle_result exact = {.o = o,
                           .o_abs = o_abs,
                           .o_tiny = o_tiny,
                           .lse = row,
                           .row_max = row + all,
                           .score_max = row + 2 * all,
                           .score_abs = row + 3 * all,
                           .lse_abs = row + 4 * all,
                           .row_max_abs = row + 5 * all,
                           .score_spread = row + 6 * all};
    for (int64_t n = 0; n < count; n++) {
        rows[n] = row_of_sample(n, count, all);
    }
    oracle_forward(args, &exact, rows, count);
    *errors = (error_stats){.rows = count};
    for (int64_t n = 0; n < count; n++) {
        compare_row(args, &exact, rows[n], errors);
    }
    finish(errors, (double)(count * dv));
    free(row);
    free(o);
    free(o_abs);
    free(o_tiny);
    free(rows);
}

/* With s the size of a score and i, w the losses: scores are off by i s, so O, by way of P and l,
 * by 2 i s, and by w for the product with P: at most max(2 i, w) (1 + s). dS is off by 2 i s by way
 * of P and LSE, by 2 i (1 + s) for delta and by i for dP, and its product loses w: with i = 0, or
 * w >= i, at most (3 i + w) (1 + s). */
errors_limits errors_allowed(double input_loss, double weight_loss)
{
    const double i = input_loss / 0x1p-24, w = weight_loss / 0x1p-24;
    return (errors_limits){.c = 4 + fmax(2 * i, w), .lse = 8 + 2 * i, .grad_c = 4 + 3 * i + w};
}
