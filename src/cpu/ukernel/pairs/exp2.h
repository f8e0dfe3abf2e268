/*
 * exp2.h: an exp2 for probabilities of which at most 16 bits are kept, but all of f32's in their
 * sum.
 */

enum { FUSED_EXPONENT = 1, FLUSHES = PARTS == 1 && CAN_FLUSH };

/* 2^(d c), exact at 0, 0 below 2^-126, NaN for NaN. If `flushes`, the processor flushes small
 * results to 0: a comparison would be an operation more, and a subnormal result takes 40 times as
 * long as another. On [0, 1), the polynomial is within 8.2e-8 of 2^f, enough for LSE; for bf16
 * probabilities alone, degree 3 would do. */
ATTN_INLINE vec probability(vec d, vec c, vec least, const bool flushes)
{
    (void)least;
    vec z = v_mul(d, c);
    vec f = v_fraction(z);
    vec y = v_fma(v_set1(0.001867130212f), f, v_set1(0.009017029963f));
    y = v_fma(v_fma(y, f, v_set1(0.05579991343f)), f, v_set1(0.24016445f));
    y = v_fma(v_fma(y, f, v_set1(0.6931513118f)), f, v_set1(1));
    return flushes ? v_power_flushed(y, z) : v_power(y, z);
}
