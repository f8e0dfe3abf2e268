/*
 * exp2_f32.h: the exp2 of the other f32 tables, for probabilities of three parts.
 */

/* rounding m c would err as much as all the rest */
enum { FUSED_EXPONENT = 0, FLUSHES = 0 };

/* 2^(d c) of `count` vectors. */
ATTN_INLINE void probabilities(vec *to, const vec *d, vec c, vec least, const int count,
                               const bool flushes)
{
    (void)flushes;
    exp2_each_f32(to, d, c, least, count);
}
