/*
 * tma.cuh: in place of src/cuda/kernel/ptx/tma.cuh, on the emulated GPU. The tensor maps are those
 * of driver.cpp.
 */
#pragma once
#include "cuda/params.h"
#include "cuda/kernel/ptx/ptx.cuh"
#include "tensor_map.h"

namespace tma
{

constexpr uint64_t EVICT_FIRST = 0, EVICT_LAST = 0;

inline void prefetch_map(const attn_tensor_map *)
{
}

inline void load(uint32_t to, const attn_tensor_map *map, uint32_t barrier, int column, int row,
                 int head, int batch, uint64_t)
{
    emulated::later([=] {
        emulated::mbarrier_bytes(barrier,
                                 emulated::load_box(to, map, {column, row, head, batch, 0}));
    });
}

inline void load_for_both(uint32_t to, const attn_tensor_map *map, uint32_t barrier, int column,
                          int row, int head, int batch, uint64_t)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        emulated::in_block(rank, [=] {
            emulated::mbarrier_bytes(barrier,
                                     emulated::load_box(to, map, {column, row, head, batch, 0}));
        });
    }
}

inline void load_folded(uint32_t to, const attn_tensor_map *map, uint32_t barrier, int column,
                        int row, int head, int batch, uint64_t)
{
    emulated::later([=] {
        emulated::mbarrier_bytes(barrier,
                                 emulated::load_box(to, map, {column, 0, row, head, batch}));
    });
}

inline void load_joined(uint32_t to, const attn_tensor_map *map, uint32_t barrier, int row,
                        int head, int batch, uint64_t)
{
    emulated::later([=] {
        emulated::mbarrier_bytes(barrier, emulated::load_box(to, map, {0, row, 0, head, batch}));
    });
}

inline void load_eights(uint32_t to, const attn_tensor_map *map, uint32_t barrier, int eight,
                        int head, uint64_t)
{
    emulated::later([=] {
        emulated::mbarrier_bytes(barrier, emulated::load_box(to, map, {0, 0, 0, eight, head}));
    });
}

inline void store(const attn_tensor_map *map, uint32_t from, int column, int row, int head,
                  int batch)
{
    emulated::store_box(map, from, {column, row, head, batch, 0});
}

inline void store_joined(const attn_tensor_map *map, uint32_t from, int row, int head, int batch)
{
    emulated::store_box(map, from, {0, row, 0, head, batch});
}

inline void store_words(float *to, uint32_t from, uint32_t bytes)
{
    memcpy(to, emulated::shared_at(from), bytes);
}

inline void add_floats(float *to, uint32_t from, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes / 4; i++) {
        to[i] += ptx::load_shared<float>(from + 4 * i);
    }
}

inline void commit_stores()
{
}
inline void wait_stores_read()
{
}
inline void wait_stores()
{
}

} // namespace tma

namespace ptx
{

inline void add_floats_4(float *to, const float *x)
{
    for (int i = 0; i < 4; i++) {
        to[i] += x[i];
    }
}

template <int BYTES> inline void copy_async_or_zero(uint32_t to, const void *from, bool there)
{
    emulated::copy_own(to, from, there ? BYTES : 0, BYTES);
}

inline uint32_t max_halves(uint32_t x, uint32_t y)
{
    return max(x >> 16, y >> 16) << 16 | max(x & 0xffff, y & 0xffff);
}
} // namespace ptx
