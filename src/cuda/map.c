/*
 * map.c: tensors as the TMA sees them.
 */
#include "cuda/gpu.h"

attn_status attn_cuda_map(const attn_driver *cu, attn_tensor_map *map, const attn_tensor *tensor,
                          const attn_cuda_axis *axes, uint32_t count)
{
    static const uint32_t steps[5] = {1, 1, 1, 1, 1};
    uint64_t extents[5] = {(uint64_t)tensor->shape[3]}, strides[4];
    uint32_t box[5] = {64};
    for (uint32_t i = 0; i < count; i++) {
        extents[i + 1] = (uint64_t)axes[i].extent;
        box[i + 1] = (uint32_t)axes[i].box;
        /* the stride of an axis of extent 1 does not count, but must be a legal one */
        strides[i] = axes[i].extent > 1 ? (uint64_t)axes[i].stride * 2 : 16;
    }
    return attn_driver_check(cu,
                             cu->tensor_map(map, CU_TENSOR_U16, count + 1, tensor->data, extents,
                                            strides, box, steps, 0, CU_SWIZZLE_128B,
                                            CU_PROMOTION_256B, 0),
                             "making a tensor map");
}

attn_status attn_cuda_map_rows(const attn_driver *cu, attn_tensor_map *map,
                               const attn_tensor *tensor, int32_t rows)
{
    const attn_cuda_axis axes[3] = {{tensor->shape[1], tensor->stride[1], rows},
                                    {tensor->shape[2], tensor->stride[2], 1},
                                    {tensor->shape[0], tensor->stride[0], 1}};
    return attn_cuda_map(cu, map, tensor, axes, 3);
}
