/*
 * words.h: the words of CUDA C that the kernels of src/cuda use, for a C++ compiler: included
 * before each of them. A thread of a block is a fibre (machine.h); shared memory is thread-local
 * memory of the block's operating system thread.
 */
#pragma once
#define __CUDACC__ 1 /* core/compiler.h: C++ from here on */
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ thread_local
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))

#include "machine.h"
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

/* ---- vectors --------------------------------------------------------------------------------- */

struct int2 {
    int x, y;
};
struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline float2 make_float2(float x, float y)
{
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
inline int2 make_int2(int x, int y)
{
    return {x, y};
}

/* ---- places ---------------------------------------------------------------------------------- */

#define threadIdx (emulated::now().place)
#define blockIdx (emulated::block().place)
#define gridDim (emulated::block().grid)
#define blockDim (emulated::block().threads)

inline size_t __cvta_generic_to_shared(const void *p)
{
    return emulated::shared_offset(p);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

template <class A, class B> constexpr auto min(A a, B b)
{
    using Both = std::common_type_t<A, B>;
    return (Both)b < (Both)a ? (Both)b : (Both)a;
}
template <class A, class B> constexpr auto max(A a, B b)
{
    using Both = std::common_type_t<A, B>;
    return (Both)a < (Both)b ? (Both)b : (Both)a;
}

template <class To, class From> inline To emulated_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned x)
{
    return emulated_bits<float>(x);
}
inline unsigned __float_as_uint(float x)
{
    return emulated_bits<unsigned>(x);
}
inline float __fmul_rn(float x, float y)
{
    return x * y;
}
inline double __dmul_rn(double x, double y)
{
    return x * y;
}
inline double __dadd_rn(double x, double y)
{
    return x + y;
}
inline double __dsub_rn(double x, double y)
{
    return x - y;
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

/* ---- a warp's and a block's common operations -------------------------------------------------*/

inline void __syncwarp(unsigned = ~0u)
{
    emulated::warp_wait();
}

inline void __syncthreads()
{
    emulated::barrier(0, 0, false, true);
}

inline int __syncthreads_or(int yes)
{
    return emulated::barrier(0, 0, yes, true);
}

template <class T> inline T __shfl_sync(unsigned, T x, int lane)
{
    return emulated::exchange(x)[lane & 31];
}

template <class T> inline T __shfl_down_sync(unsigned, T x, int lanes)
{
    const int lane = threadIdx.x % 32, from = lane + lanes;
    return emulated::exchange(x)[from < 32 ? from : lane];
}

template <class T> inline T __shfl_xor_sync(unsigned, T x, int lanes)
{
    const int lane = threadIdx.x % 32;
    return emulated::exchange(x)[lane ^ lanes];
}

inline unsigned __ballot_sync(unsigned, int yes)
{
    const auto all = emulated::exchange(yes);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++) {
        bits |= (unsigned)(all[lane] != 0) << lane;
    }
    return bits;
}

inline int __any_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) != 0;
}

inline int __all_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) == ~0u;
}

inline unsigned __reduce_and_sync(unsigned, unsigned bits)
{
    const auto all = emulated::exchange(bits);
    for (int lane = 0; lane < 32; lane++) {
        bits &= all[lane];
    }
    return bits;
}

inline unsigned atomicOr(unsigned *at, unsigned bits)
{
    return __atomic_fetch_or(at, bits, __ATOMIC_SEQ_CST);
}
