/*
 * tma.cuh: the tensor memory accelerator: boxes of a tensor into shared memory. Coordinates are
 * (column, row, head, batch) in elements; places outside the tensor arrive as zero.
 */
#pragma once
#include "cuda/params.h"
#include "cuda/kernel/ptx/ptx.cuh"

namespace tma
{

/* Hints for the L2 cache. */
constexpr uint64_t EVICT_FIRST = 0x12F0000000000000, EVICT_LAST = 0x14F0000000000000;

__device__ __forceinline__ void prefetch_map(const attn_tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Loads a box; the barrier counts the bytes that have come. */
__device__ __forceinline__ void load(uint32_t to, const attn_tensor_map *map, uint32_t barrier,
                                     int column, int row, int head, int batch, uint64_t hint)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(hint)
                 : "memory");
}

/* The same for both CTAs of a pair (cluster.cuh): the box arrives in each at the place of that
 * address, and is counted by the barrier there. */
__device__ __forceinline__ void load_for_both(uint32_t to, const attn_tensor_map *map,
                                              uint32_t barrier, int column, int row, int head,
                                              int batch, uint64_t hint)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes."
                 "multicast::cluster.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch),
                 "h"((uint16_t)3), "l"(hint)
                 : "memory");
}

/* The same of a tensor of rank 5, (column, folded head, row, head, batch). */
__device__ __forceinline__ void load_folded(uint32_t to, const attn_tensor_map *map,
                                            uint32_t barrier, int column, int row, int head,
                                            int batch, uint64_t hint)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint "
                 "[%0], [%1, {%3, 0, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(hint)
                 : "memory");
}

/* The same of a tensor of rank 5, (column of a chunk, row, chunk, head, batch): all chunks. */
__device__ __forceinline__ void load_joined(uint32_t to, const attn_tensor_map *map,
                                            uint32_t barrier, int row, int head, int batch,
                                            uint64_t hint)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint "
                 "[%0], [%1, {0, %3, 0, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(row), "r"(head), "r"(batch), "l"(hint)
                 : "memory");
}

/* The same of a tensor of rank 5, (column of a chunk, row of eight, chunk, eight, head): all chunks
 * of some eights of rows. */
__device__ __forceinline__ void load_eights(uint32_t to, const attn_tensor_map *map,
                                            uint32_t barrier, int eight, int head, uint64_t hint)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint "
                 "[%0], [%1, {0, 0, 0, %3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(eight), "r"(head), "l"(hint)
                 : "memory");
}

/* Stores a box from shared memory, in the thread's next group of stores. */
__device__ __forceinline__ void store(const attn_tensor_map *map, uint32_t from, int column,
                                      int row, int head, int batch)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
            map),
        "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

/* The same of such a tensor of rank 5. */
__device__ __forceinline__ void store_joined(const attn_tensor_map *map, uint32_t from, int row,
                                             int head, int batch)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
                 "[%0, {0, %2, 0, %3, %4}], [%1];" ::"l"(map),
                 "r"(from), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

/* Stores bytes from shared memory, or adds them as floats to those there, in the thread's next
 * group of stores. A multiple of 16 bytes. */
__device__ __forceinline__ void store_words(float *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void add_floats(float *to, uint32_t from, uint32_t bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}

__device__ __forceinline__ void commit_stores()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until the thread's stores no longer need shared memory. */
__device__ __forceinline__ void wait_stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Waits until the thread's stores are done. */
__device__ __forceinline__ void wait_stores()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

} // namespace tma

/* ---- not by the TMA -------------------------------------------------------------------------- */

namespace ptx
{

/* Adds to four floats in global memory. */
__device__ __forceinline__ void add_floats_4(float *to, const float *x)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]),
                 "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

/* Copies BYTES, 8 or 16, or zeros; not waited for (copy_async_commit). */
template <int BYTES>
__device__ __forceinline__ void copy_async_or_zero(uint32_t to, const void *from, bool there)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %2, 0;\n"
                 "cp.async.ca.shared.global [%0], [%1], %3, p;\n}" ::"r"(to),
                 "l"(from), "r"((uint32_t)there), "n"(BYTES)
                 : "memory");
}

/* The larger of both halves, as numbers without a sign. */
__device__ __forceinline__ uint32_t max_halves(uint32_t x, uint32_t y)
{
    uint32_t r;
    asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
    return r;
}

} // namespace ptx
