/*
 * clean.cuh: tiles of V in shared memory without values that are not finite. A masked position's
 * probability is 0, but 0 times NaN is not: so where some rows of a tile do not see a key that
 * others see, its values are looked at before products, and those that are not finite become 0. The
 * rows that do see one are done again alone (nonfinite_rows in rows.cuh), and the others keep the
 * bits that they have beside finite values (C4 and C7 of attn.h).
 */
#pragma once
#include "cuda/kernel/ptx/ptx.cuh"

/* Bit 15 of each 16-bit element that is not finite. */
template <bool BF16> __device__ __forceinline__ uint32_t nonfinite_halves(uint32_t x)
{
    return ((x & 0x7fff7fff) + (BF16 ? 0x00800080 : 0x04000400)) & 0x80008000;
}

template <bool BF16> __device__ __forceinline__ uint32_t without_nonfinite(uint32_t x)
{
    return x & ~((nonfinite_halves<BF16>(x) >> 15) * 0xffff);
}

/* Not 0 if one of 16 bytes of elements is not finite. */
template <bool BF16> __device__ __forceinline__ uint32_t nonfinite_halves(const uint4 &x)
{
    return nonfinite_halves<BF16>(x.x) | nonfinite_halves<BF16>(x.y) | nonfinite_halves<BF16>(x.z) |
           nonfinite_halves<BF16>(x.w);
}

/* Cleans 16 bytes in shared memory. Returns true if they held a value that is not finite. */
template <bool BF16> __device__ __forceinline__ bool clean_16(uint32_t at)
{
    const uint4 x = ptx::load_shared_16(at);
    const bool found = nonfinite_halves<BF16>(x) != 0;
    if (__builtin_expect(found, false)) {
        ptx::store_shared_16(
            at, make_uint4(without_nonfinite<BF16>(x.x), without_nonfinite<BF16>(x.y),
                           without_nonfinite<BF16>(x.z), without_nonfinite<BF16>(x.w)));
    }
    return found;
}

/* True for an f32 value that parts of bf16 cannot hold (mma.cuh): not finite, or beyond bf16. */
__device__ __forceinline__ bool is_beyond_parts(float x)
{
    return !(fabsf(x) < __uint_as_float(0x7f7f8000));
}

__device__ __forceinline__ bool clean_floats(uint4 &x)
{
    uint32_t *words[4] = {&x.x, &x.y, &x.z, &x.w};
    bool found = false;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool beyond = is_beyond_parts(__uint_as_float(*words[i]));
        *words[i] = beyond ? 0 : *words[i];
        found |= beyond;
    }
    return found;
}
