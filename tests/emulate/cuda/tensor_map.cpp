/*
 * tensor_map.cpp: see tensor_map.h.
 */
#include "tensor_map.h"
#include "machine.h"

namespace emulated
{

/* Calls each(place in shared memory, element's address or NULL outside the tensor), for every
 * element of a box. */
template <class Each>
static uint32_t walk_box(uint32_t start, const tensor_map &map, const box_place &corner,
                         const Each &each)
{
    uint32_t count = 1;
    for (uint32_t axis = 0; axis < map.axes; axis++) {
        count *= map.box[axis];
    }
    for (uint32_t n = 0; n < count; n++) {
        uint32_t rest = n;
        unsigned char *address = map.address;
        bool inside = true;
        for (uint32_t axis = 0; axis < map.axes; axis++) {
            const int64_t at = corner.at[axis] + rest % map.box[axis];
            rest /= map.box[axis];
            inside = inside && at >= 0 && at < map.extent[axis];
            address += at * (int64_t)(axis == 0 ? 2 : map.stride[axis - 1]);
        }
        const uint32_t plain = start + 2 * n,
                       at = map.swizzled ? plain ^ (plain >> 7 & 7) << 4 : plain;
        each(shared_at(at), inside ? address : NULL);
    }
    return 2 * count;
}

static tensor_map opened(const attn_tensor_map *opaque)
{
    tensor_map map;
    memcpy(&map, opaque, sizeof map);
    return map;
}

uint32_t load_box(uint32_t to, const attn_tensor_map *map, const box_place &from)
{
    static const unsigned char zero[2] = {0, 0};
    return walk_box(to, opened(map), from, [](unsigned char *here, const unsigned char *there) {
        memcpy(here, there ? there : zero, 2);
    });
}

/* Pieces of 16 bytes are written whole: an H200 was seen to write beyond a row of 2 bytes. */
uint32_t store_box(const attn_tensor_map *opaque, uint32_t from, const box_place &to)
{
    tensor_map map = opened(opaque);
    map.extent[0] = (map.extent[0] + 7) / 8 * 8;
    return walk_box(from, map, to, [](const unsigned char *here, unsigned char *there) {
        if (there) {
            memcpy(there, here, 2);
        }
    });
}

} // namespace emulated
