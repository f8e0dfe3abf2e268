/*
 * features.c: features of the processor of a build with ATTN_EMULATE: its own, and AVX-512,
 * AVX512_BF16, AVX512_VBMI and AMX in software.
 */
#include "cpu/machine/features.h"
#include "tile_state.h"

__thread struct emulated_tiles emulated;

uint32_t attn_own_cpu_features(void); /* of src/cpu/machine/features.c */

uint32_t attn_cpu_features(void)
{
    const uint32_t more =
                       ATTN_CPU_AVX512 | ATTN_CPU_AVX512BF16 | ATTN_CPU_AVX512VBMI | ATTN_CPU_AMX,
                   own = attn_own_cpu_features();
    return own & ATTN_CPU_AVX2 ? own | more : own;
}
