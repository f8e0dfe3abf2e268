/*
 * exp2_f32.h: the exp2 of the other f32 tables, for probabilities of three parts.
 */

/* rounding m c would err as much as all the rest */
enum { FUSED_EXPONENT = 0, FLUSHES = 0 };

/* 2^(d c). */
ATTN_INLINE vec probability(vec d, vec c, vec least, const bool flushes)
{
    (void)flushes;
    return exp2_f32(d, c, least);
}
