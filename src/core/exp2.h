/*
 * exp2.h: 2^f = 1 + f P(f) for |f| <= 1/2, the one formula behind every exponential of the CPU
 * kernels, and of rows of f32 with few keys on GPUs.
 *
 * P is the minimax polynomial of the relative error of 2^f (Remez exchange in 40 digits): 2.6e-9
 * for f32 and 1.8e-17 for f64 before rounding; in f32 each coefficient was refitted after those
 * above it had been rounded. Over all floats the worst error is 0.80 ulp (`checkattn --exp2`). With
 * d <= 0 the difference of two scores and c = log2(e) times the scale, n = round(d c) comes from
 * adding and subtracting 1.5 times 2^23 (2^52), f = fma(d, c, -n) is exact but for one rounding,
 * and 2^(d c) = 2^n (1 + f P(f)). Results below about 2^-125 (2^-1021) are 0: no subnormal
 * probabilities, hence no slow ones.
 */
#ifndef ATTN_CORE_EXP2_H
#define ATTN_CORE_EXP2_H

/* Coefficients from the highest power down: the first, and COEFF(x) for each of the rest. */
/* clang-format off */
#define ATTN_EXP2_FIRST_F32 0.000152916167f
#define ATTN_EXP2_REST_F32(COEFF) \
    COEFF(0.00133909821f) COEFF(0.00961865298f) COEFF(0.0555035956f) COEFF(0.240226462f) \
    COEFF(0.693147182f)

#define ATTN_EXP2_FIRST_F64 4.078071929588336665e-10
#define ATTN_EXP2_REST_F64(COEFF) \
    COEFF(7.07257041281442351e-9) COEFF(1.018064765923413889e-7) COEFF(1.321544267532982214e-6) \
    COEFF(0.0000152527273851938682) COEFF(0.0001540353044157213033) COEFF(0.001333355815343996475) \
    COEFF(0.00961812910760700238) COEFF(0.05550410866479039455) COEFF(0.2402265069591009801) \
    COEFF(0.6931471805599456968)
/* clang-format on */

#define ATTN_EXP2_MAGIC_F32 0x1.8p23f
#define ATTN_EXP2_MAGIC_F64 0x1.8p52

#define ATTN_EXP2_MIN_F32 (-125.0f)
#define ATTN_EXP2_MIN_F64 (-1021.0)

#endif
