/*
 * tensor_map.h: tensor maps of the emulated GPU, and the boxes that the tensor memory accelerator
 * copies by them. Elements have 16 bits, rows of a box 128 bytes at most, swizzled.
 */
#pragma once
#include "cuda/params.h"

namespace emulated
{

enum { MAP_AXES = 5 };

struct tensor_map {
    unsigned char *address;
    uint64_t stride[MAP_AXES - 1]; /* bytes, from axis 1 on */
    uint32_t extent[MAP_AXES], box[MAP_AXES];
    uint32_t axes, swizzled;
};
static_assert(sizeof(tensor_map) <= sizeof(attn_tensor_map), "CUtensorMap's size");

struct box_place {
    int64_t at[MAP_AXES];
};

/* Copies a box to shared memory, or from it; places outside the tensor are zero, or left alone.
 * Returns the box's bytes. */
uint32_t load_box(uint32_t to, const attn_tensor_map *map, const box_place &from);
uint32_t store_box(const attn_tensor_map *map, uint32_t from, const box_place &to);

} // namespace emulated
