/*
 * exp2.h: an exp2 for probabilities of which at most 16 bits are kept, but all of f32's in their
 * sum.
 */

enum { FUSED_EXPONENT = 1, FLUSHES = PARTS == 1 && CAN_FLUSH };

/* 2^(d c) of `count` vectors, step by step: exact at 0, 0 below 2^-126, NaN for NaN. If `flushes`,
 * the processor flushes small results to 0: a comparison would be an operation more, and a
 * subnormal result takes 40 times as long as another. On [0, 1), the polynomial is within 8.2e-8 of
 * 2^f, enough for LSE; for bf16 probabilities alone, degree 3 would do. */
ATTN_INLINE void probabilities(vec *to, const vec *d, vec c, vec least, const int count,
                               const bool flushes)
{
    (void)least;
    vec z[SIDE], f[SIDE], y[SIDE];
    EACH z[k] = v_mul(d[k], c);
    EACH f[k] = v_fraction(z[k]);
    EACH y[k] = v_fma(v_set1(0.001867130212f), f[k], v_set1(0.009017029963f));
    EACH y[k] = v_fma(y[k], f[k], v_set1(0.05579991343f));
    EACH y[k] = v_fma(y[k], f[k], v_set1(0.24016445f));
    EACH y[k] = v_fma(y[k], f[k], v_set1(0.6931513118f));
    EACH y[k] = v_fma(y[k], f[k], v_set1(1));
    EACH to[k] = flushes ? v_power_flushed(y[k], z[k]) : v_power(y[k], z[k]);
}
