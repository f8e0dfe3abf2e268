/*
 * errors.h: distance of a call's outputs from the oracle's, in the units of docs/contract.md.
 */
#ifndef SUPPORT_ERRORS_H
#define SUPPORT_ERRORS_H

#include <attn/attn.h>
#include <stdbool.h>

/* A NaN or an infinity where the oracle has none, or the reverse, counts as an infinite error. */
typedef struct error_stats {
    int64_t rows;    /* compared: all, or a sample */
    double relative; /* largest |O - O64| / sum_j p_j |v_j| */
    double c;        /* the smallest c with which A1 (oracle_bound) holds for every element */
    /* errors beyond the rounding of O, relative to what a kernel of 16-bit inputs on a GPU's tensor
     * cores is allowed there: the largest (docs/numerics.md) */
    double rounded;
    /* largest |LSE - LSE64|, beyond the rounding to its type, / (u (1 + max |s|)): A3 wants at
     * most 8; 0 without LSE. Where scores cancel, the unit is u (1 + lse_abs) / 2 (oracle.h) if
     * that is larger: docs/decisions/005-error-of-lse.md */
    double lse;
    double row_max;   /* likewise of the row maximum, with row_max_abs */
    double rmse;      /* of O */
    double rmse_once; /* RMSE of rounding the exact O once to its type */
    double rmse_any; /* the same of any numbers of such sizes: O may be one that has no more bits */
    double l2;       /* |O - O64| / |O64|, as vectors of all elements */
    /* Systematic errors, in sum_j p_j |v_j|: the mean of O - O64, and the mean of (O - O64)
     * sign(O64), which truncation would show. errors_bias: the larger of the two. */
    double mean, outward;
    double score_abs; /* the largest of oracle.h */
    double spread;    /* of the scores of a row (oracle.h): root mean square over rows */
} error_stats;

/* Compares up to max_rows rows: all of them, or else the first, the last and others spread by a
 * fixed hash. max_rows = 0: as many rows as the oracle does in about a second, at least 64. */
void errors_measure(const attn_forward_args *args, int64_t max_rows, error_stats *errors);

double errors_bias(const error_stats *errors);

/* The mean that chance alone may give, for inputs that differ from row to row. Where each error is
 * within half an ulp and c u (1 + score_abs) of sum_j p_j |v_j|, and errors of two rows are
 * independent, a mean beyond 8 / sqrt(rows) of that has a probability of 2 exp(-32) (Hoeffding). */
double errors_bias_limit(const attn_forward_args *args, const error_stats *errors, double c);

/* Limits for a kernel with these losses (attn_plan): the c of A1 (4) and the factor of A3 (8), each
 * with the cost of the losses on top. */
typedef struct errors_limits {
    double c, lse;
    double grad_c; /* of gradients, where P and dS are rounded */
} errors_limits;
errors_limits errors_allowed(double input_loss, double weight_loss);

/* True where rounding a score to f32 moves O by less than rounding O to `dtype`, the inputs', does:
 * else an RMSE in roundings of O says nothing. */
bool errors_scores_small(int32_t dtype, const error_stats *errors);

/* RMSE of O, over that of rounding it once, where probabilities are rounded to 16 bits. alike: rows
 * may be (alike.h). docs/numerics.md, "RMSE of rounded probabilities". */
double errors_rmse_limit(const error_stats *errors, bool alike);

/* |x - exact|: 0 if both are NaN or the same infinity, infinite if one of them is and the other is
 * not. */
double errors_distance(double x, double exact);

/* Likewise, for an element of a type that may be too narrow for the exact value: 0 where that
 * rounds to the infinity x. */
double errors_element(int32_t dtype, double x, double exact);

#endif
