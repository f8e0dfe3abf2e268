/*
 * compiler.h: the only place for compiler extensions. C and CUDA.
 */
#ifndef ATTN_CORE_COMPILER_H
#define ATTN_CORE_COMPILER_H

#define ATTN_CAT_(a, b) a##b
#define ATTN_CAT(a, b) ATTN_CAT_(a, b) /* after expansion of both */
#define ATTN_STRING_(a) #a
#define ATTN_STRING(a) ATTN_STRING_(a)

/* ATTN_COMPILE_FAST: sanitized and emulated builds, where a file of kernels, all inlined by force,
 * takes minutes. */
#if defined(ATTN_COMPILE_FAST)
#define ATTN_UNROLL
#define ATTN_UNROLL_4
#elif defined(__clang__)
#define ATTN_UNROLL _Pragma("clang loop unroll(full)")
#define ATTN_UNROLL_4 _Pragma("clang loop unroll_count(4)")
#elif defined(__GNUC__)
#define ATTN_UNROLL _Pragma("GCC unroll 64")
#define ATTN_UNROLL_4 _Pragma("GCC unroll 4")
#else
#define ATTN_UNROLL
#define ATTN_UNROLL_4
#endif

/* Prefetch to the L2 cache. The empty statement keeps it: gcc 12 leaves out calls of functions that
 * do nothing else. */
#if defined(__GNUC__)
#define ATTN_PREFETCH(p)             \
    do {                             \
        __builtin_prefetch(p, 0, 2); \
        __asm__ volatile("");        \
    } while (0)
/* Prefetch to the L1 cache, in loops that do more. */
#define ATTN_PREFETCH_NEAR(p) __builtin_prefetch(p, 0, 3)
#else
#define ATTN_PREFETCH(p) ((void)0)
#define ATTN_PREFETCH_NEAR(p) ((void)0)
#endif

#if defined(__GNUC__) && !defined(ATTN_COMPILE_FAST)
#define ATTN_INLINE static inline __attribute__((always_inline))
#else
#define ATTN_INLINE static inline
#endif

#if defined(__GNUC__)
#define ATTN_NOINLINE __attribute__((noinline))
#define ATTN_PRINTF(string, first) __attribute__((format(printf, string, first)))
#else
#define ATTN_NOINLINE
#define ATTN_PRINTF(string, first)
#endif

/* ATTN_CORE: a function of core/ for the CPU and for kernels on a GPU. */
#if defined(__CUDACC__)
#define ATTN_CORE static inline __host__ __device__
#define ATTN_RESTRICT __restrict__
#else
#define ATTN_CORE static inline
#define ATTN_RESTRICT restrict
#endif

#endif
