/*
 * features.c: detection by CPUID and XGETBV (x86-64), by the system (AArch64) or by the baseline
 * (WebAssembly). Keeps nothing.
 */
#include "cpu/machine/features.h"
#include "system/system.h"

#if defined(__x86_64__) && defined(ATTN_HAVE_AMX) /* MSan: the scalar table alone */
#include <cpuid.h>

static uint64_t enabled_state(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Cores that begin as many dot products of pairs in a cycle as multiply-adds: AMD's, Cooper Lake
 * (family 6, model 85). Later ones of Intel begin one for four (docs/notebook/cpu-pairs.md). */
static bool fast_pairs(void)
{
    unsigned a, b, c, d;
    const unsigned cooper_lake = 0x50650, family_and_model = 0xfff0ff0;
    if (__get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx &&
        d == signature_AMD_edx) {
        return true;
    }
    return __get_cpuid(1, &a, &b, &c, &d) && (a & family_and_model) == cooper_lake;
}

static uint32_t pair_features(void)
{
    unsigned a, b, c, d;
    const unsigned avx512_vbmi = 1u << 1, avx_vnni = 1u << 4, avx512_bf16 = 1u << 5;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & avx512_bf16) == 0) {
        return 0;
    }
    /* of processors with fast pairs those of AMD from Zen 5 on have AVX-VNNI */
    const uint32_t fast = !fast_pairs()  ? 0
                          : a & avx_vnni ? ATTN_CPU_FAST_PAIRS | ATTN_CPU_MANY_RUNS
                                         : ATTN_CPU_FAST_PAIRS;
    const bool lookups = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & avx512_vbmi) != 0;
    return ATTN_CPU_AVX512BF16 | (lookups ? ATTN_CPU_AVX512VBMI : 0) | fast;
}

uint32_t attn_cpu_features(void)
{
    unsigned a, b, c, d;
    const unsigned amx_bf16_tile = 1u << 22 | 1u << 24;
    const unsigned fma_osxsave_avx_f16c = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
    const unsigned avx2 = 1u << 5, f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & fma_osxsave_avx_f16c) != fma_osxsave_avx_f16c) {
        return 0;
    }
    uint64_t state = enabled_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & avx2) == 0 || (state & 0x6) != 0x6) {
        return 0;
    }
    uint32_t features = ATTN_CPU_AVX2;
    if ((b & f_dq_bw_vl) == f_dq_bw_vl && (state & 0xe6) == 0xe6) {
        features |= ATTN_CPU_AVX512;
    }
    features |= features & ATTN_CPU_AVX512 ? pair_features() : 0;
    const bool tiles = (d & amx_bf16_tile) == amx_bf16_tile && (state & 0x60000) == 0x60000;
    if (tiles && (features & ATTN_CPU_AVX512) && attn_system_tiles() && attn_amx_works()) {
        features |= ATTN_CPU_AMX;
    }
    return features;
}

#elif defined(__aarch64__)

uint32_t attn_cpu_features(void)
{
    return ATTN_CPU_NEON | (attn_system_bf16() ? ATTN_CPU_NEONBF16 : 0);
}

#elif defined(ATTN_HAVE_WASM128)

uint32_t attn_cpu_features(void)
{
    return ATTN_CPU_WASM128;
}

#else

uint32_t attn_cpu_features(void)
{
    return 0;
}

#endif

const char *attn_cpu_feature_names(uint32_t features)
{
    switch (features &
            ~(uint32_t)(ATTN_CPU_FAST_PAIRS | ATTN_CPU_AVX512VBMI | ATTN_CPU_MANY_RUNS)) {
    case ATTN_CPU_AVX2:
        return "avx2";
    case ATTN_CPU_AVX2 | ATTN_CPU_AVX512:
        return "avx2 avx512";
    case ATTN_CPU_AVX2 | ATTN_CPU_AVX512 | ATTN_CPU_AVX512BF16:
        return "avx2 avx512 avx512bf16";
    case ATTN_CPU_AVX2 | ATTN_CPU_AVX512 | ATTN_CPU_AVX512BF16 | ATTN_CPU_AMX:
        return "avx2 avx512 avx512bf16 amx";
    case ATTN_CPU_AVX2 | ATTN_CPU_AVX512 | ATTN_CPU_AMX:
        return "avx2 avx512 amx";
    case ATTN_CPU_NEON:
        return "neon";
    case ATTN_CPU_NEON | ATTN_CPU_NEONBF16:
        return "neon neonbf16";
    case ATTN_CPU_WASM128:
        return "wasm128";
    default:
        return "";
    }
}

attn_caches attn_cpu_caches(void)
{
    return (attn_caches){attn_system_cache(1), attn_system_cache(2), attn_system_cache(3)};
}
