/*
 * oracle.h: attention in float64 by two passes over each row, straight from the formula in attn.h.
 *
 * Shares nothing with src/: it reads strided tensors, masks and exponentials in its own way. It
 * judges every test, so it is kept plain. f64 inputs are computed in long double, the others in
 * double.
 */
#ifndef SUPPORT_ORACLE_H
#define SUPPORT_ORACLE_H

#include <attn/attn.h>
#include <stdbool.h>

/* Dense results for the declared shape, index ((b*Nq + i)*Hq + h) (*d_v + c). Any of them may be
 * NULL. */
typedef struct oracle_result {
    double *o;       /* exact output */
    double *o_abs;   /* sum_j p_j |v_j|, the scale of O's error */
    double *o_tiny;  /* the part of it that may count as 0: p_j below 2^-123 (f64: 2^-1019) */
    double *lse;     /* natural logarithm, -inf for an empty row */
    double *row_max; /* -inf for an empty row */
    /* Per row (no c). a_j = |scale| sum_c |q_c k_jc| + |bias| + |ALiBi| is the scale of the error
     * of s_j: */
    double *score_max; /* max over visible j of |s_j| */
    double *score_abs; /* max over visible j of a_j */
    double *lse_abs;   /* sum_j p_j a_j, since dLSE / ds_j = p_j */
    /* max over visible j of a_j - (row_max - s_j) / 4u: a_j of the scores that may seem the
     * largest, if the error of s_j is 4u (1 + a_j) */
    double *row_max_abs;
    double *score_spread; /* standard deviation of s_j over visible j, 0 for an empty row */
} oracle_result;

/* Computes all rows if rows == NULL, else rows[count], flat (b, i, h) indices; the others are left
 * alone (for long N). */
void oracle_forward(const attn_forward_args *args, const oracle_result *result, const int64_t *rows,
                    int64_t count);

/* Dense gradients in the shapes of q, k, v, bias, alibi_slopes and sinks (outer axis first), and
 * with each the sum of the sizes of its terms, every term of a row weighted with 1 + its largest
 * sum of |score| terms + |LSE|: u times that is the scale of an error; and the error that the
 * rounding of O to its type may cost. */
enum oracle_gradient {
    ORACLE_DQ,
    ORACLE_DK,
    ORACLE_DV,
    ORACLE_DBIAS,
    ORACLE_DSLOPES,
    ORACLE_DSINKS,
    ORACLE_GRADIENTS
};

typedef struct oracle_gradients {
    /* NULL without such an input */
    long double *of[ORACLE_GRADIENTS], *size[ORACLE_GRADIENTS], *loss[ORACLE_GRADIENTS];
    /* sum of squares of the parts of all terms: P dP and P delta, each times the other factors */
    double squares[ORACLE_GRADIENTS];
} oracle_gradients;

/* Computes O and LSE anew. Only the type of the call's o (or o_f32) counts. */
void oracle_backward(const attn_backward_args *args, oracle_gradients *g);
void oracle_gradients_free(oracle_gradients *g);

/* scores[i * Nk + j] = the score of row i and key j of head h of sequence b after all its steps;
 * -inf where masked. Nq x Nk of that sequence. False: no memory. */
bool oracle_scores(const attn_forward_args *args, int64_t b, int64_t h, double *scores);

/* True if dropout (C11) keeps position (b, h, i, j) of `heads` heads. */
bool oracle_keeps(double p, uint64_t seed, uint64_t offset, int64_t b, int64_t heads, int64_t h,
                  int64_t i, int64_t j);

/* The value of element (i0, i1, i2, i3) of any tensor of any dtype, as double. */
double oracle_element(const attn_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);

/* Promise A1: the largest |O - O64| allowed, half an ulp of the output type at o plus c * u * (1 +
 * score_abs) * o_abs, with u = 2^-24 (2^-53 for f64 inputs). */
double oracle_bound(int32_t in_dtype, int32_t out_dtype, double c, double o, double o_abs,
                    double score_abs);

#endif
