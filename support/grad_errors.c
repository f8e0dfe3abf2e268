/*
 * grad_errors.c: see grad_errors.h.
 */
#include "grad_errors.h"
#include "errors.h"
#include "half.h"

#include <math.h>

const char *grad_errors_name(enum oracle_gradient which)
{
    static const char *const names[] = {"dQ", "dK", "dV", "dBias", "dSlopes", "dSinks"};
    return names[which];
}

void grad_errors_tensors(const attn_backward_args *args,
                         const attn_tensor *tensors[ORACLE_GRADIENTS])
{
    tensors[ORACLE_DQ] = &args->dq, tensors[ORACLE_DK] = &args->dk, tensors[ORACLE_DV] = &args->dv;
    tensors[ORACLE_DBIAS] = &args->d_bias, tensors[ORACLE_DSLOPES] = &args->d_alibi_slopes;
    tensors[ORACLE_DSINKS] = &args->d_sinks;
}

/* The largest |x| of the numbers of a tensor, at least 1. */
static double largest(const attn_tensor *t)
{
    double most = 1;
    for (int64_t i0 = 0; t->data && i0 < t->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < t->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < t->shape[2]; i2++) {
                for (int64_t i3 = 0; i3 < t->shape[3]; i3++) {
                    const double x = fabs(oracle_element(t, i0, i1, i2, i3));
                    most = isfinite(x) ? fmax(most, x) : most;
                }
            }
        }
    }
    return most;
}

/* A P below 2^-125 (f64: 2^-1021) counts as 0: the loss of a gradient by such P, each factor at its
 * largest, with 2^13 terms or so. */
static double least_error(const attn_backward_args *args)
{
    const attn_forward_args *forward = args->forward;
    const double factors = largest(&args->d_o) * largest(&forward->v) * largest(&args->d_lse) *
                           fmax(largest(&forward->q), largest(&forward->k));
    return factors * (forward->q.dtype == ATTN_F64 ? 0x1p-1000 : 0x1p-110);
}

/* A bound on distances of rows and keys, which are factors of gradients of slopes. */
static double farthest(const attn_forward_args *args)
{
    return (double)(args->q.shape[1] + args->k.shape[1]) + largest(&args->q_origin) +
           largest(&args->k_origin);
}

/* Half an ulp of the number that was rounded: it may lie in the binade above the exact one, if
 * more than rounding is granted. */
static double half_ulp(const attn_backward_args *args, const attn_tensor *t, double exact,
                       double granted)
{
    const double most = fabs(exact) + granted;
    return oracle_bound(args->forward->q.dtype, t->dtype, 0, isfinite(most) ? most : exact, 0, 0);
}

/* The part of an error beyond half an ulp and `granted`, in units of u times the size of the
 * terms. */
static double error_in_units(const attn_backward_args *args, const attn_tensor *t, double error,
                             double exact, double size, double granted)
{
    bool wide = args->forward->q.dtype == ATTN_F64;
    double u = wide ? 0x1p-53 : 0x1p-24;
    double excess =
        isinf(error) ? error : fmax(error - half_ulp(args, t, exact, granted) - granted, 0);
    return excess == 0 ? 0 : excess / (u * size);
}

/* True for an infinity that the bound allows, beyond the largest number of a type: terms of f64 in
 * a gradient of f32. */
static bool leaves_type(const attn_backward_args *args, int32_t dtype, double got, double exact,
                        double size, double granted)
{
    const double u = args->forward->q.dtype == ATTN_F64 ? 0x1p-53 : 0x1p-24;
    return isinf(got) && isinf(half_rounded(dtype, fabs(exact) + 4 * u * size + granted));
}

static void measure(const attn_backward_args *args, const attn_tensor *t,
                    const oracle_gradients *exact, enum oracle_gradient which, grad_errors *errors)
{
    const double least =
        least_error(args) * (which == ORACLE_DSLOPES ? farthest(args->forward) : 1);
    int64_t at = 0, count = t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
    for (int64_t i0 = 0; i0 < t->shape[0]; i0++) {
        for (int64_t i1 = 0; i1 < t->shape[1]; i1++) {
            for (int64_t i2 = 0; i2 < t->shape[2]; i2++) {
                for (int64_t i3 = 0; i3 < t->shape[3]; i3++, at++) {
                    double x = (double)exact->of[which][at];
                    double got = oracle_element(t, i0, i1, i2, i3);
                    double size = (double)exact->size[which][at];
                    double granted = least + (double)exact->loss[which][at];
                    double error = leaves_type(args, t->dtype, got, x, size, granted)
                                       ? 0
                                       : errors_element(t->dtype, got, x);
                    double once = errors_element(t->dtype, half_rounded(t->dtype, x), x);
                    errors->c[which] =
                        fmax(errors->c[which], error_in_units(args, t, error, x, size, granted));
                    errors->rmse[which] += error * error;
                    errors->rmse_once[which] += once * once;
                    errors->rms[which] += x * x;
                    errors->rms_loss[which] += pow(granted + half_ulp(args, t, x, granted), 2);
                }
            }
        }
    }
    double *const sums[] = {&errors->rmse[which], &errors->rmse_once[which], &errors->rms[which],
                            &errors->rms_loss[which], &errors->rms_parts[which]};
    errors->rms_parts[which] = exact->squares[which];
    for (int n = 0; n < 5 && count > 0; n++) {
        *sums[n] = sqrt(*sums[n] / (double)count);
    }
}

bool grad_errors_proportional(const grad_errors *errors)
{
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        const double size = fmax(errors->rms[n], errors->rms_parts[n]);
        if (errors->rmse[n] > size * 0x1p-6 + errors->rms_loss[n]) {
            return false;
        }
    }
    return true;
}

void grad_errors_measure(const attn_backward_args *args, grad_errors *errors)
{
    const attn_tensor *tensors[ORACLE_GRADIENTS];
    oracle_gradients exact;
    *errors = (grad_errors){0};
    oracle_backward(args, &exact);
    grad_errors_tensors(args, tensors);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        if (tensors[n]->data != NULL) {
            measure(args, tensors[n], &exact, (enum oracle_gradient)n, errors);
        }
    }
    oracle_gradients_free(&exact);
}
