/*
 * pairs.h: the dot product of pairs of AVX512_BF16 in software, under the name of
 * src/cpu/ukernel/avx512bf16/instructions.h, which it stands in for. As Intel's manual defines
 * VDPBF16PS: the product of the upper halves is added first; subnormal numbers are zero.
 */
#define ATTN_CPU_UKERNEL_AVX512BF16_INSTRUCTIONS_H

static inline __attribute__((unused)) __m512 add_pairs(__m512 sum, __m512i a, __m512i b)
{
    const unsigned flush_and_zero = 0x8040, masked = 0x1f80, state = _mm_getcsr();
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    float total[16];
    uint32_t x[16], y[16];
    _mm512_storeu_ps(total, sum);
    _mm512_storeu_si512(x, a);
    _mm512_storeu_si512(y, b);
    _mm_setcsr(masked | flush_and_zero);
    for (int i = 0; i < 16; i += 8) {
        const __m256i u = _mm256_loadu_si256((const __m256i *)(x + i)),
                      v = _mm256_loadu_si256((const __m256i *)(y + i));
        __m256 all = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(u, high)),
                                     _mm256_castsi256_ps(_mm256_and_si256(v, high)),
                                     _mm256_loadu_ps(total + i));
        all = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(u, 16)),
                              _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)), all);
        _mm256_storeu_ps(total + i, all);
    }
    _mm_setcsr(state);
    return _mm512_loadu_ps(total);
}
