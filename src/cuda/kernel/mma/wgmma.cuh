/*
 * wgmma.cuh: the tensor cores of sm_90a. A warpgroup (128 threads) computes D[64][N] += A[64][16]
 * B[16][N] of one k-step, with f32 accumulators in registers and 16-bit operands in shared memory
 * (A also in registers).
 *
 * Accumulator layout: thread t of the warpgroup, w = t / 32, l = t % 32: d[4j + 0, 1] = row 16w +
 * l/4, columns 8j + 2(l%4) + {0, 1}; d[4j + 2, 3] = the same columns of the row 8 below. Packed to
 * 16 bits, the accumulators of columns 16k .. 16k+15 are the A operand of k-step k: P never leaves
 * the registers.
 *
 * Operands in shared memory are chunks of 64 columns, a row of a chunk 128 bytes, 16-byte pieces
 * swizzled by the low three bits of the row (the TMA's SWIZZLE_128B), chunks aligned to 1024 bytes.
 */
#pragma once
#include <stdint.h>

namespace wgmma
{

/* Descriptor of an operand in shared memory. chunk: bytes from one chunk of 64 columns to the next;
 * counts only for an operand whose rows run along k (V in P V). eight: bytes from 8 rows to the
 * next 8. A k-step of 16 is +2 along the columns, +128 along the rows if they lie side by side. */
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t chunk,
                                               uint32_t eight = 1024)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(chunk >> 4) << 16 |
           (uint64_t)(eight >> 4) << 32 | (uint64_t)1 << 62;
}

/* The operand of a step further on, by 16 bytes. */
__device__ __forceinline__ uint64_t at(uint64_t operand, uint32_t step)
{
    return operand & 0xffffffff00000000 | (uint32_t)operand + step;
}

/* Before the first product that touches registers written by ordinary instructions. */
__device__ __forceinline__ void fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most LEFT committed groups are in flight. */
template <int LEFT> __device__ __forceinline__ void wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Keeps the compiler from moving uses of registers that a product writes or reads across this
 * point. */
template <int N> __device__ __forceinline__ void hold(float (&r)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(r[i])::"memory");
    }
}

template <int PARTS, int N> __device__ __forceinline__ void hold(uint32_t (&r)[PARTS][N])
{
#pragma unroll
    for (int i = 0; i < PARTS * N; i++) {
        asm volatile("" : "+r"(r[i / N][i % N])::"memory");
    }
}

/* Keeps the registers of an A operand until its products are done. ptxas counts them as free when
 * the last product is issued, which is sooner, and hands them out; hold() does not stop it. So they
 * are stored if never == ~0, which is never true. */
template <int N> __device__ __forceinline__ void keep(const uint32_t (&a)[N], uint32_t never)
{
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0xffffffff;\n@p st.shared.v4.b32 [%0], "
                     "{%1, %2, %3, %4};\n}" ::"r"(never),
                     "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3])
                     : "memory");
    }
}

/* The same past one branch. Of several stores ptxas makes as many branches, which a warp takes one
 * after the other, some 30 cycles each. */
#define ATTN_STORE(A, B, C, D) "st.shared.v4.b32 [%0], {%" #A ", %" #B ", %" #C ", %" #D "};\n"
#define ATTN_STORES_8 ATTN_STORE(1, 2, 3, 4) ATTN_STORE(5, 6, 7, 8)
#define ATTN_STORES_16 ATTN_STORES_8 ATTN_STORE(9, 10, 11, 12) ATTN_STORE(13, 14, 15, 16)
#define ATTN_STORES_32                                                   \
    ATTN_STORES_16 ATTN_STORE(17, 18, 19, 20) ATTN_STORE(21, 22, 23, 24) \
        ATTN_STORE(25, 26, 27, 28) ATTN_STORE(29, 30, 31, 32)
#define ATTN_WORDS(i)                                                                     \
    "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3]), "r"(a[i + 4]), "r"(a[i + 5]), \
        "r"(a[i + 6]), "r"(a[i + 7])
#define ATTN_WORDS_8 ATTN_WORDS(0)
#define ATTN_WORDS_16 ATTN_WORDS(0), ATTN_WORDS(8)
#define ATTN_WORDS_32 ATTN_WORDS_16, ATTN_WORDS(16), ATTN_WORDS(24)
#define ATTN_KEEP(N)                                                                           \
    __device__ __forceinline__ void keep(const uint32_t(&a)[N], uint32_t never)                \
    {                                                                                          \
        asm volatile(                                                                          \
            "{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0xffffffff;\n@p bra past;\n" ATTN_STORES_##N \
            "past:\n}" ::"r"(never),                                                           \
            ATTN_WORDS_##N                                                                     \
            : "memory");                                                                       \
    }
ATTN_KEEP(8)
ATTN_KEEP(16)
ATTN_KEEP(32)
#undef ATTN_KEEP

/* Product<BF16, N>::ss<ROWS_ALONG_K>: A and B in shared memory, both with columns along k (Q K^T),
 * or both with rows (dS K of dS^T), or B alone (P V).
 * Product<BF16, N>::rs<ROWS_ALONG_K>: A in registers, B with rows along k (P V), or columns.
 * accumulate = 0: D starts at 0. */
template <bool BF16, int N> struct Product;

// clang-format off
/* The names of the accumulators in the instruction, and their operands, in eights. */
#define ATTN_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define ATTN_NAMES_16 ATTN_NAMES_8 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define ATTN_NAMES_24 ATTN_NAMES_16 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define ATTN_NAMES_32 ATTN_NAMES_24 ", " "%24, %25, %26, %27, %28, %29, %30, %31"
#define ATTN_NAMES_40 ATTN_NAMES_32 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define ATTN_NAMES_48 ATTN_NAMES_40 ", " "%40, %41, %42, %43, %44, %45, %46, %47"
#define ATTN_NAMES_56 ATTN_NAMES_48 ", " "%48, %49, %50, %51, %52, %53, %54, %55"
#define ATTN_NAMES_64 ATTN_NAMES_56 ", " "%56, %57, %58, %59, %60, %61, %62, %63"
#define ATTN_NAMES_72 ATTN_NAMES_64 ", " "%64, %65, %66, %67, %68, %69, %70, %71"
#define ATTN_NAMES_80 ATTN_NAMES_72 ", " "%72, %73, %74, %75, %76, %77, %78, %79"
#define ATTN_NAMES_88 ATTN_NAMES_80 ", " "%80, %81, %82, %83, %84, %85, %86, %87"
#define ATTN_NAMES_96 ATTN_NAMES_88 ", " "%88, %89, %90, %91, %92, %93, %94, %95"
#define ATTN_NAMES_104 ATTN_NAMES_96 ", " "%96, %97, %98, %99, %100, %101, %102, %103"
#define ATTN_NAMES_112 ATTN_NAMES_104 ", " "%104, %105, %106, %107, %108, %109, %110, %111"
#define ATTN_NAMES_120 ATTN_NAMES_112 ", " "%112, %113, %114, %115, %116, %117, %118, %119"
#define ATTN_NAMES_128 ATTN_NAMES_120 ", " "%120, %121, %122, %123, %124, %125, %126, %127"
#define ATTN_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                   "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define ATTN_D_16 ATTN_D8(0), ATTN_D8(8)
#define ATTN_D_32 ATTN_D_16, ATTN_D8(16), ATTN_D8(24)
#define ATTN_D_40 ATTN_D_32, ATTN_D8(32)
#define ATTN_D_48 ATTN_D_40, ATTN_D8(40)
#define ATTN_D_56 ATTN_D_48, ATTN_D8(48)
#define ATTN_D_64 ATTN_D_56, ATTN_D8(56)
#define ATTN_D_96 ATTN_D_64, ATTN_D8(64), ATTN_D8(72), ATTN_D8(80), ATTN_D8(88)
#define ATTN_D_128 ATTN_D_96, ATTN_D8(96), ATTN_D8(104), ATTN_D8(112), ATTN_D8(120)

/* R = N / 2: the number of accumulators. R1 .. R6 = R + 1 .. R + 6. */
#define ATTN_PRODUCT(BF16, NAME, N, R, R1, R2, R3, R4, R5, R6)                                     \
    template <>                                                                                    \
    struct Product<BF16, N> {                                                                      \
        template <int ROWS_ALONG_K = 0, int B_ROWS_ALONG_K = ROWS_ALONG_K>                         \
        static __device__ __forceinline__ void ss(float (&d)[R], uint64_t a, uint64_t b,           \
                                                  int accumulate)                                  \
        {                                                                                          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2 ", 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME           \
                         " {" ATTN_NAMES_##R "}, %" #R ", %" #R1 ", p, 1, 1, %" #R3 ", %" #R4      \
                         ";\n}\n"                                                                \
                         : ATTN_D_##R                                                              \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(ROWS_ALONG_K),                     \
                           "n"(B_ROWS_ALONG_K)                                                     \
                         : "memory");                                                              \
        }                                                                                          \
        template <int ROWS_ALONG_K>                                                                \
        static __device__ __forceinline__ void rs(float (&d)[R], const uint32_t *a, uint64_t b,    \
                                                  int accumulate)                                  \
        {                                                                                          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R5 ", 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME           \
                         " {" ATTN_NAMES_##R "}, {%" #R ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4   \
                         ", p, 1, 1, %" #R6 ";\n}\n"                                               \
                         : ATTN_D_##R                                                              \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),    \
                           "n"(ROWS_ALONG_K)                                                       \
                         : "memory");                                                              \
        }                                                                                          \
    };
#define ATTN_PRODUCTS(N, R, R1, R2, R3, R4, R5, R6)                                                \
    ATTN_PRODUCT(true, "bf16", N, R, R1, R2, R3, R4, R5, R6)                                       \
    ATTN_PRODUCT(false, "f16", N, R, R1, R2, R3, R4, R5, R6)
ATTN_PRODUCTS(32, 16, 17, 18, 19, 20, 21, 22)
ATTN_PRODUCTS(64, 32, 33, 34, 35, 36, 37, 38)
ATTN_PRODUCTS(80, 40, 41, 42, 43, 44, 45, 46)
ATTN_PRODUCTS(96, 48, 49, 50, 51, 52, 53, 54)
ATTN_PRODUCTS(112, 56, 57, 58, 59, 60, 61, 62)
ATTN_PRODUCTS(128, 64, 65, 66, 67, 68, 69, 70)
ATTN_PRODUCTS(192, 96, 97, 98, 99, 100, 101, 102)
ATTN_PRODUCTS(256, 128, 129, 130, 131, 132, 133, 134)
// clang-format on

} // namespace wgmma
