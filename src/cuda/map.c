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
        /* the stride of an axis of extent 1 has no effect, but must be legal */
        strides[i] = axes[i].extent > 1 ? (uint64_t)axes[i].stride * 2 : 16;
    }
    return attn_driver_check(cu,
                             cu->tensor_map(map, CU_TENSOR_U16, count + 1, tensor->data, extents,
                                            strides, box, steps, 0, CU_SWIZZLE_128B,
                                            CU_PROMOTION_128B, 0),
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

attn_status attn_cuda_map_chunks(const attn_driver *cu, attn_tensor_map *map,
                                 const attn_tensor *tensor, int32_t rows)
{
    const int64_t chunks = tensor->shape[3] / 64;
    const attn_cuda_axis axes[4] = {{tensor->shape[1], tensor->stride[1], rows},
                                    {chunks, 64, (int32_t)chunks},
                                    {tensor->shape[2], tensor->stride[2], 1},
                                    {tensor->shape[0], tensor->stride[0], 1}};
    attn_tensor chunk = *tensor;
    chunk.shape[3] = 64;
    return attn_cuda_map(cu, map, &chunk, axes, 4);
}

bool attn_cuda_is_aligned(const attn_tensor *tensor)
{
    bool ok =
        (uintptr_t)tensor->data % 16 == 0 && (tensor->stride[3] == 1 || tensor->shape[3] == 1);
    for (int a = 0; a < 3; a++) {
        ok &= tensor->shape[a] == 1 ||
              tensor->stride[a] * (int64_t)attn_dtype_size(tensor->dtype) % 16 == 0;
    }
    return ok;
}

bool attn_cuda_is_boxed(const attn_tensor *tensor)
{
    bool ok = attn_cuda_is_aligned(tensor) && tensor->data != NULL && tensor->shape[3] > 0;
    for (int a = 0; a < 3; a++) {
        ok &= tensor->shape[a] == 1 ||
              (tensor->stride[a] > 0 && tensor->stride[a] < INT64_C(1) << 38);
        ok &= tensor->shape[a] > 0 && tensor->shape[a] <= INT32_MAX;
    }
    return ok;
}
