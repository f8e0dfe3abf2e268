/*
 * errors.h: how far the outputs of a call are from the oracle's, in the units of the contract. Used
 * by `attn run --check`, `attn bench` and `attn check`.
 */
#ifndef SUPPORT_ERRORS_H
#define SUPPORT_ERRORS_H

#include <attn/attn.h>
#include <stdbool.h>

/* A NaN or an infinity where the oracle has none, or the reverse, counts as an infinite error. */
typedef struct errors {
    int64_t rows;    /* compared: all, or a sample */
    double relative; /* largest |O - O64| / sum_j p_j |v_j| */
    double c;        /* the smallest c with which A1 (oracle_bound) holds for every element */
    /* largest |LSE - LSE64|, beyond the rounding to its type, / (u (1 + max |s|)): A3 wants at
     * most 8; 0 without LSE. Where scores cancel, the unit is u (1 + lse_abs) / 2 (oracle.h) if
     * that is larger: docs/decisions/005-error-of-lse.md */
    double lse;
    double row_max;   /* the same for the row maximum, with row_max_abs */
    double rmse;      /* of O */
    double rmse_once; /* of rounding the exact O once to its type */
} errors;

/* Compares up to max_rows rows: all of them, or else the first, the last and others spread by a
 * fixed hash. max_rows = 0: as many as the oracle does in a second or so, at least 64. */
void errors_measure(const attn_forward_args *args, int64_t max_rows, errors *e);

/* Limits for a kernel with these losses (attn_plan): the c of A1, 4, and what A3 multiplies, 8, and
 * on top of them what the losses can cost. */
typedef struct errors_limits {
    double c, lse;
    double grad_c; /* of gradients, where P and dS are rounded */
} errors_limits;
errors_limits errors_allowed(double input_loss, double weight_loss);

/* |x - exact|: 0 if both are NaN or the same infinity, infinite if one of them is and the other is
 * not. */
double errors_distance(double x, double exact);

#endif
