/*
 * grad_errors.h: distance of a call's gradients from the oracle's, in the units of
 * docs/contract.md.
 */
#ifndef SUPPORT_GRAD_ERRORS_H
#define SUPPORT_GRAD_ERRORS_H

#include "oracle.h"

/* One entry per gradient that the call has: */
typedef struct grad_errors {
    /* the smallest c for which each element is within half an ulp of its type plus c u times the
     * weighted sizes of oracle_gradients */
    double c[ORACLE_GRADIENTS];
    double rmse[ORACLE_GRADIENTS];      /* 0 without such a gradient */
    double rmse_once[ORACLE_GRADIENTS]; /* RMSE of rounding the exact gradient once to its type */
    double rms[ORACLE_GRADIENTS];       /* of the exact gradient */
    /* of the parts of an element's terms, added as errors of random signs add */
    double rms_parts[ORACLE_GRADIENTS];
    /* of what roundings of O and of the gradient itself, and P of 0, may cost */
    double rms_loss[ORACLE_GRADIENTS];
} grad_errors;

/* "dQ", "dK", ... */
const char *grad_errors_name(enum oracle_gradient which);

/* The tensors of a call by enum oracle_gradient. */
void grad_errors_tensors(const attn_backward_args *args,
                         const attn_tensor *tensors[ORACLE_GRADIENTS]);

/* Compares every element. */
void grad_errors_measure(const attn_backward_args *args, grad_errors *errors);

/* False if some gradient is off as a whole, by a factor, say, for which bounds of 16 bits on each
 * element leave room. For terms of random signs (docs/numerics.md, "Gradients as a whole"). */
bool grad_errors_proportional(const grad_errors *errors);

#endif
