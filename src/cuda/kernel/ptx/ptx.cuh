/*
 * ptx.cuh: one instruction per wrapper, for operations without a word in CUDA C: barriers,
 * registers, conversions, asynchronous copies. Not here: the tensor memory accelerator (tma.cuh)
 * and the tensor cores (wgmma.cuh).
 */
#pragma once
#include <stdint.h>

namespace ptx
{

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- mbarriers: addresses in shared memory --------------------------------------------------- */

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Makes initialised barriers visible to the asynchronous proxy. */
__device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Returns when the phase of that parity is complete. */
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- named barriers 1 .. 15 ------------------------------------------------------------------ */

__device__ __forceinline__ void barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Waits for all threads of the barrier and returns true if one of them says yes. */
__device__ __forceinline__ bool barrier_any(int id, int threads, bool yes)
{
    int any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\n"
                 "barrier.cta.red.or.pred q, %2, %3, p;\nselp.s32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"((int)yes), "r"(id), "r"(threads)
                 : "memory");
    return any != 0;
}

/* The same of a warpgroup's 128 threads. */
__device__ __forceinline__ bool group_any(int id, bool yes)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.or.pred q, %2, 128, p;\n"
                 "selp.u32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"((uint32_t)yes), "r"(id)
                 : "memory");
    return any != 0;
}

/* ---- registers per thread of a warpgroup ----------------------------------------------------- */

template <int N> __device__ __forceinline__ void registers_raise()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void registers_lower()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- asynchronous copies by ordinary threads ------------------------------------------------- */

/* Copies the first `bytes` of 16 bytes to shared memory; the rest becomes zero. */
__device__ __forceinline__ void copy_async_16(uint32_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* Copies 16 bytes. */
__device__ __forceinline__ void copy_async_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Copies 4 bytes. */
__device__ __forceinline__ void copy_async_4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> __device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* ---- launches that begin before the end of the one ahead (attn_cuda_launch_early) ------------ */

/* Lets the launch behind begin once all CTAs have come here. */
__device__ __forceinline__ void begin_next_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until the launch ahead has ended, and its writes are there. */
__device__ __forceinline__ void wait_for_last_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void store_shared_16(uint32_t to, uint4 x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

__device__ __forceinline__ void store_shared_8(uint32_t to, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void store_shared_4(uint32_t to, float x)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

__device__ __forceinline__ uint32_t load_shared_4(uint32_t from)
{
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}

__device__ __forceinline__ float2 load_shared_8(uint32_t from)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
    return x;
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t from)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

/* Stores four 8 x 8 matrices of 16-bit elements, held as products hold them (wgmma.cuh), in shared
 * memory. Lane l gives the place of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* Orders this thread's writes to shared memory before reads by the tensor cores or the TMA. */
__device__ __forceinline__ void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Orders this thread's accesses to any memory and those of the TMA. */
__device__ __forceinline__ void fence_proxies()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* Adds to a word in global memory and returns its old value. */
__device__ __forceinline__ uint32_t atomic_add(uint32_t *word, uint32_t n)
{
    uint32_t before;
    asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(n) : "memory");
    return before;
}

/* Makes a word in global memory at least n. */
__device__ __forceinline__ void atomic_max(uint32_t *word, uint32_t n)
{
    asm volatile("red.global.max.u32 [%0], %1;" ::"l"(word), "r"(n) : "memory");
}

/* A word by which CTAs order their accesses to global memory. */
__device__ __forceinline__ uint32_t load_acquire(const uint32_t *word)
{
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(word) : "memory");
    return x;
}

__device__ __forceinline__ void store_release(uint32_t *word, uint32_t x)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(x) : "memory");
}

/* Returns the first lane's x, which is equal in all lanes, in a uniform register: addresses and
 * descriptors that follow from it then cost the warp hardly an instruction. */
__device__ __forceinline__ int uniform(int x)
{
    return __shfl_sync(~0u, x, 0);
}

/* Reads threadIdx.x anew: values that follow from it are not kept in registers. */
__device__ __forceinline__ int thread()
{
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

/* Hides x from the compiler, which else keeps addresses in registers that the tile loop needs. */
__device__ __forceinline__ int opaque(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

__device__ __forceinline__ int64_t opaque_wide(int64_t x)
{
    asm volatile("" : "+l"(x));
    return x;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* 2^x to 2 ulp; subnormal results are 0. */
__device__ __forceinline__ float exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Selects x or y without a branch. */
__device__ __forceinline__ float select(bool first, float x, float y)
{
    float z;
    asm("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
        : "=f"(z)
        : "f"(x), "f"(y), "r"((int)first));
    return z;
}

/* 1 / x to 1 ulp; 0 for a subnormal result. */
__device__ __forceinline__ float reciprocal_rough(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x for x far from the ends of the range: the compiler's sequence without its branch. */
__device__ __forceinline__ float reciprocal(float x)
{
    const float y = reciprocal_rough(x);
    return fmaf(y, -fmaf(x, y, -1), y);
}

/* The two 16-bit elements of a word, the low one first. */
template <bool BF16> __device__ __forceinline__ float2 unpack_half(uint32_t x)
{
    if (BF16) {
        return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000));
    }
    float2 y;
    asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %2;\ncvt.f32.f16 %0, lo;\n"
        "cvt.f32.f16 %1, hi;\n}"
        : "=f"(y.x), "=f"(y.y)
        : "r"(x));
    return y;
}

/* Adds the halves of 0 x to those of `before`: NaN where x is not finite. A NaN stays. */
template <bool BF16> __device__ __forceinline__ uint32_t times_zero(uint32_t x, uint32_t before)
{
    uint32_t y;
    if (BF16) {
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0), "r"(before));
    } else {
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0), "r"(before));
    }
    return y;
}

/* x + y of both halves. */
template <bool BF16> __device__ __forceinline__ uint32_t add_halves(uint32_t x, uint32_t y)
{
    uint32_t r;
    if (BF16) {
        asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
    } else {
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
    }
    return r;
}

/* |x| of both halves. */
__device__ __forceinline__ uint32_t absolute_halves(uint32_t x)
{
    return x & 0x7fff7fff;
}

/* x y + z of both halves. */
template <bool BF16>
__device__ __forceinline__ uint32_t fma_halves(uint32_t x, uint32_t y, uint32_t z)
{
    uint32_t r;
    if (BF16) {
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    } else {
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    }
    return r;
}

/* Four of the eight bytes of a and b, by the digits of `which`. */
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t which)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
    return r;
}

/* Asks for a line of memory, so that it is in the L1 cache when it is read. */
__device__ __forceinline__ void prefetch(const void *at)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

/* Rounds two floats to nearest even; lo goes to the low half. */
template <bool BF16> __device__ __forceinline__ uint32_t pack_half(float lo, float hi)
{
    uint32_t y;
    if (BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    }
    return y;
}

/* The same of max(lo, 0) and max(hi, 0); a NaN stays. */
template <bool BF16> __device__ __forceinline__ uint32_t pack_positive(float lo, float hi)
{
    uint32_t y;
    if (BF16) {
        asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    } else {
        asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    }
    return y;
}

} // namespace ptx
