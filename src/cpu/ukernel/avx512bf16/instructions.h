/*
 * instructions.h: the instruction of AVX512_BF16. tests/emulate/pairs.h has it in software.
 */
#ifndef ATTN_CPU_UKERNEL_AVX512BF16_INSTRUCTIONS_H
#define ATTN_CPU_UKERNEL_AVX512BF16_INSTRUCTIONS_H

#include "core/compiler.h"
#include <immintrin.h>

/* Per dword: sum = fma(low a, low b, fma(high a, high b, sum)), each rounded to nearest even, with
 * subnormal factors, summands and results as 0, whatever the floating-point environment says. */
ATTN_INLINE __m512 add_pairs(__m512 sum, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

#endif
