/*
 * instructions.h: the instruction of Arm's FEAT_BF16.
 */
#ifndef ATTN_CPU_UKERNEL_NEONBF16_INSTRUCTIONS_H
#define ATTN_CPU_UKERNEL_NEONBF16_INSTRUCTIONS_H

#include "core/compiler.h"
#include <arm_neon.h>

#define ADD_PAIRS(sum, x, y) \
    vbfdotq_f32(sum, vreinterpretq_bf16_u32(x), vreinterpretq_bf16_u32(y))

/* Per dword: sum = sum + (low x low y + high x high y), both sums rounded to odd, with subnormal
 * factors, summands and results as 0. FPCR governs nothing of that unless its bit EBF is set
 * (docs/numerics.md). */
ATTN_INLINE vec add_pairs(vec sum, dwords x, dwords y)
{
    return (vec){ADD_PAIRS(sum.a, x.a, y.a), ADD_PAIRS(sum.b, x.b, y.b),
                 ADD_PAIRS(sum.c, x.c, y.c), ADD_PAIRS(sum.d, x.d, y.d)};
}

#endif
