/*
 * ptx.cuh: in place of src/cuda/kernel/ptx/ptx.cuh, on the emulated GPU. Copies by cp.async are
 * done when they are asked for, which is one of their legal orders.
 */
#pragma once
#include "halves.h"

namespace ptx
{

inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers -------------------------------------------------------------------------------- */

inline void mbarrier_init(uint32_t at, uint32_t arrivals)
{
    emulated::mbarrier_init(at, arrivals);
}
inline void fence_mbarrier_init()
{
}
inline void mbarrier_arrive(uint32_t at)
{
    emulated::mbarrier_arrive(at, 0);
}
inline void mbarrier_arrive_expect(uint32_t at, uint32_t bytes)
{
    emulated::mbarrier_arrive(at, bytes);
}
inline void mbarrier_wait(uint32_t at, uint32_t parity)
{
    emulated::wait_while([=] { return !emulated::mbarrier_done(at, parity); });
}
inline void barrier_sync(int id, int threads)
{
    emulated::barrier(id, threads, false, true);
}
inline void barrier_arrive(int id, int threads)
{
    emulated::barrier(id, threads, false, false);
}
inline bool barrier_any(int id, int threads, bool yes)
{
    return emulated::barrier(id, threads, yes, true);
}
inline bool group_any(int id, bool yes)
{
    return emulated::barrier(id, 128, yes, true);
}
template <int N> inline void registers_raise()
{
}
template <int N> inline void registers_lower()
{
}

/* ---- shared memory --------------------------------------------------------------------------- */

inline void copy_async_16(uint32_t to, const void *from, uint32_t bytes)
{
    emulated::copy_own(to, from, bytes, 16);
}
inline void copy_async_16(uint32_t to, const void *from)
{
    emulated::copy_own(to, from, 16, 16);
}
inline void copy_async_4(uint32_t to, const void *from)
{
    emulated::copy_own(to, from, 4, 4);
}
inline void copy_async_commit()
{
    emulated::close_own();
}
template <int LEFT> inline void copy_async_wait()
{
    emulated::wait_own(LEFT);
}

inline void begin_next_launch()
{
}
inline void wait_for_last_launch()
{
}

template <class T> inline void store_shared(uint32_t to, T x)
{
    memcpy(emulated::shared_at(to), &x, sizeof x);
}
template <class T> inline T load_shared(uint32_t from)
{
    T x;
    memcpy(&x, emulated::shared_at(from), sizeof x);
    return x;
}
inline void store_shared_16(uint32_t to, uint4 x)
{
    store_shared(to, x);
}
inline void store_shared_8(uint32_t to, uint32_t x, uint32_t y)
{
    store_shared(to, uint2{x, y});
}
inline void store_shared_4(uint32_t to, float x)
{
    store_shared(to, x);
}
inline uint32_t load_shared_4(uint32_t from)
{
    return load_shared<uint32_t>(from);
}
inline float2 load_shared_8(uint32_t from)
{
    return load_shared<float2>(from);
}
inline uint4 load_shared_16(uint32_t from)
{
    return load_shared<uint4>(from);
}

/* Lane l holds elements 2 (l % 4) + {0, 1} of row l / 4 of each matrix. */
inline void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    const auto places = emulated::exchange(to);
    const uint32_t word[4] = {a, b, c, d};
    const int lane = threadIdx.x % 32;
    for (int matrix = 0; matrix < 4; matrix++) {
        store_shared(places[8 * matrix + lane / 4] + 4 * (lane % 4), word[matrix]);
    }
}
inline void fence_proxy_async()
{
}
inline void fence_proxies()
{
}

/* ---- words that blocks share ----------------------------------------------------------------- */

inline uint32_t atomic_add(uint32_t *word, uint32_t n)
{
    return __atomic_fetch_add(word, n, __ATOMIC_SEQ_CST);
}
inline void atomic_max(uint32_t *word, uint32_t n)
{
    uint32_t before = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (before < n && !__atomic_compare_exchange_n(word, &before, n, false, __ATOMIC_SEQ_CST,
                                                      __ATOMIC_SEQ_CST)) {
    }
}
inline uint32_t load_acquire(const uint32_t *word)
{
    const uint32_t x = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    emulated::yield();
    return x;
}
inline void store_release(uint32_t *word, uint32_t x)
{
    __atomic_store_n(word, x, __ATOMIC_RELEASE);
}

/* ---- registers and arithmetic ---------------------------------------------------------------- */

inline int uniform(int x)
{
    return __shfl_sync(~0u, x, 0);
}
inline int thread()
{
    return threadIdx.x;
}
inline int opaque(int x)
{
    return x;
}
inline int64_t opaque_wide(int64_t x)
{
    return x;
}
/* As wrong as PTX allows, 2 ulp either way; exact for whole x. */
inline float exp2(float x)
{
    const float y = exp2f(x);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int ulps = x == rintf(x) ? 0 : (bits * 2654435761u >> 31) ? 1 : -1;
    return y < 0x1p-126f ? 0 : y * (1 + (float)ulps * 0x1p-22f);
}
inline float select(bool first, float x, float y)
{
    return first ? x : y;
}
inline float reciprocal(float x)
{
    return 1 / x;
}
inline float reciprocal_rough(float x)
{
    return 1 / x;
}
template <bool BF16> inline float2 unpack_half(uint32_t x)
{
    return {emulated::half_of<BF16>(x, 0), emulated::half_of<BF16>(x, 1)};
}
template <bool BF16> inline uint32_t pack_half(float lo, float hi)
{
    return emulated::float_to_half<BF16>(lo) | (uint32_t)emulated::float_to_half<BF16>(hi) << 16;
}
inline void prefetch(const void *at)
{
    (void)*(const volatile char *)at;
}
template <bool BF16> inline uint32_t pack_positive(float lo, float hi)
{
    return pack_half<BF16>(lo <= 0 ? 0 : lo, hi <= 0 ? 0 : hi);
}
template <bool BF16> inline uint32_t times_zero(uint32_t x, uint32_t before)
{
    const float2 a = unpack_half<BF16>(x), b = unpack_half<BF16>(before);
    return pack_half<BF16>(0 * a.x + b.x, 0 * a.y + b.y);
}
inline uint32_t absolute_halves(uint32_t x)
{
    return x & 0x7fff7fff;
}
template <bool BF16> inline uint32_t add_halves(uint32_t x, uint32_t y)
{
    const float2 a = unpack_half<BF16>(x), b = unpack_half<BF16>(y);
    return pack_half<BF16>(a.x + b.x, a.y + b.y);
}
template <bool BF16> inline uint32_t fma_halves(uint32_t x, uint32_t y, uint32_t z)
{
    const float2 a = unpack_half<BF16>(x), b = unpack_half<BF16>(y), c = unpack_half<BF16>(z);
    return pack_half<BF16>(a.x * b.x + c.x, a.y * b.y + c.y);
}
inline uint32_t permute(uint32_t a, uint32_t b, uint32_t which)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = (uint32_t)(both >> 8 * (which >> 4 * i & 7) & 255);
        const bool sign = which >> 4 * i & 8;
        r |= (!sign ? byte : byte >> 7 ? 255u : 0u) << 8 * i;
    }
    return r;
}

} // namespace ptx
