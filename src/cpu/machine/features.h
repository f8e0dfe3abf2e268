/*
 * features.h: features of this CPU, as bundles that match the kernel tables, and the sizes of its
 * caches.
 */
#ifndef ATTN_CPU_FEATURES_H
#define ATTN_CPU_FEATURES_H

#include <stdbool.h>
#include <stdint.h>

enum {
    ATTN_CPU_AVX2 = 1 << 0, /* AVX2, FMA, F16C, and an operating system that saves ymm */
    /* the above and AVX-512 F, BW, DQ, VL, and an operating system that saves zmm */
    ATTN_CPU_AVX512 = 1 << 1,
    ATTN_CPU_NEON = 1 << 2,
    /* AMX tiles with bf16, and an operating system that lets this process use them */
    ATTN_CPU_AMX = 1 << 3,
    ATTN_CPU_WASM128 = 1 << 4,    /* WebAssembly with 128-bit vectors */
    ATTN_CPU_AVX512BF16 = 1 << 5, /* dot products of pairs of bf16 (AVX512_BF16) */
    ATTN_CPU_FAST_PAIRS = 1 << 6, /* and as many of them in a cycle as multiply-adds */
    ATTN_CPU_NEONBF16 = 1 << 7,   /* dot products of pairs of bf16 on Arm (FEAT_BF16) */
    ATTN_CPU_AVX512VBMI = 1 << 8, /* lookups of bytes (AVX512_VBMI), beside AVX512_BF16 */
    ATTN_CPU_MANY_RUNS = 1 << 9   /* reads rows best from many runs, fetched far ahead: Zen 5 */
};

uint32_t attn_cpu_features(void);

/* Tries tile products on this machine, which must have them (ukernel/amx/works.c). */
bool attn_amx_works(void);

/* The bundles of a feature mask, "avx2 avx512" and so on, static. */
const char *attn_cpu_feature_names(uint32_t features);

typedef struct attn_caches {
    int64_t l1d, l2, l3; /* bytes; 0 = unknown */
} attn_caches;

attn_caches attn_cpu_caches(void);

#endif
