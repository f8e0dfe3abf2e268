/*
 * tiles.h: AMX tiles in software, under the names of src/cpu/ukernel/amx/instructions.h, which
 * it stands in for. Products are summed as Intel's manual defines TDPBF16PS: even and odd elements
 * in a chain each, their sum added once; subnormal numbers are zero. Not emulated: configurations
 * other than the one that the kernels use. Tiles that are used outside of tiles_begin() ..
 * tiles_end() abort.
 */
#define ATTN_CPU_UKERNEL_AMX_INSTRUCTIONS_H

#include "tile_state.h"
#include <stdlib.h>

static __attribute__((unused)) void *emulated_tile(int t)
{
    if (!emulated.configured) {
        abort();
    }
    return emulated.tile[t];
}

static __attribute__((unused)) void emulated_load(int t, const void *from, int64_t stride)
{
    uint32_t(*to)[16] = emulated_tile(t);
    for (int i = 0; i < 16; i++) {
        memcpy(to[i], (const char *)from + i * stride, sizeof to[i]);
    }
}

static __attribute__((unused)) void emulated_store(int t, void *to, int64_t stride)
{
    uint32_t(*from)[16] = emulated_tile(t);
    for (int i = 0; i < 16; i++) {
        memcpy((char *)to + i * stride, from[i], sizeof from[i]);
    }
}

/* c[16] += a row of A times B. */
static inline void emulated_row(uint32_t *c, const uint32_t *a, const uint32_t (*b)[16])
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    for (int n = 0; n < 16; n += 8) {
        __m256 even = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
        for (int k = 0; k < 16; k++) {
            const __m256i x = _mm256_set1_epi32((int)a[k]),
                          y = _mm256_loadu_si256((const __m256i *)(b[k] + n));
            even = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                                   _mm256_castsi256_ps(_mm256_slli_epi32(y, 16)), even);
            odd = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(x, high)),
                                  _mm256_castsi256_ps(_mm256_and_si256(y, high)), odd);
        }
        float *sum = (float *)(c + n);
        _mm256_storeu_ps(sum, _mm256_add_ps(_mm256_loadu_ps(sum), _mm256_add_ps(even, odd)));
    }
}

static __attribute__((unused)) void emulated_product(int tc, int ta, int tb)
{
    const unsigned flush_and_zero = 0x8040, masked = 0x1f80, state = _mm_getcsr();
    uint32_t(*c)[16] = emulated_tile(tc), (*a)[16] = emulated_tile(ta);
    _mm_setcsr(masked | flush_and_zero);
    for (int i = 0; i < 16; i++) {
        emulated_row(c[i], a[i], emulated_tile(tb));
    }
    _mm_setcsr(state);
}

#define TILE_ZERO(t) memset(emulated_tile(t), 0, sizeof emulated.tile[0])
#define TILE_LOAD(t, p, stride) emulated_load(t, p, stride)
#define TILE_STORE(t, p, stride) emulated_store(t, p, stride)
#define TILE_DP(c, a, b) emulated_product(c, a, b)

static __attribute__((unused)) void tiles_begin(void)
{
    emulated.configured = 1;
    memset(emulated.tile, 0, sizeof emulated.tile);
}

static __attribute__((unused)) void tiles_end(void)
{
    emulated.configured = 0;
}
