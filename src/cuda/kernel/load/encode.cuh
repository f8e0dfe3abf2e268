/*
 * encode.cuh: elements into codes (core/codes.h): the range of a group, its scale and shift, and
 * the bits of codes, with the arithmetic of cpu/encode.c. Codes into values are keys.cuh.
 */
#pragma once
#include "core/codes.h"
#include "cuda/kernel/rows/score.cuh"

/* The range of the elements of all lanes. */
__device__ __forceinline__ attn_code_range warp_range(attn_code_range range)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const attn_code_range other = {__shfl_xor_sync(~0u, range.low, lanes),
                                       __shfl_xor_sync(~0u, range.high, lanes),
                                       __shfl_xor_sync(~0u, (int)range.finite, lanes) != 0};
        range = attn_code_join(range, other);
    }
    return range;
}

/* A row of a tensor, of all heads, and its codes; a scale or a shift may be absent. */
struct CodedRow {
    const attn_tensor &x, &codes, &scale, &shift;
    attn_kv_place from, to; /* of x; of codes, scale and shift */

    __device__ __forceinline__ double element(int64_t head, int64_t column) const
    {
        return load_real<double>(attn_at(&x, from.tensor, from.row, head, column), x.dtype);
    }
    __device__ __forceinline__ char *factor(const attn_tensor &t, int64_t head, int64_t group) const
    {
        return attn_at_broadcast(&t, to.tensor, to.row, head, group);
    }
    __device__ __forceinline__ double factor_at(const attn_tensor &t, int64_t head, int64_t group,
                                                double absent) const
    {
        return attn_tensor_present(&t) ? load_real<double>(factor(t, head, group), t.dtype)
                                       : absent;
    }
    /* Columns that share a scale. */
    __device__ __forceinline__ int64_t group_columns() const
    {
        return attn_tensor_present(&scale) ? x.shape[3] / scale.shape[3] : x.shape[3];
    }

    __device__ __forceinline__ void write_factors(const attn_code_range &range, int64_t head,
                                                  int64_t group) const
    {
        attn_code_store_factors(&range, codes.dtype, scale.dtype, factor(scale, head, group),
                                attn_tensor_present(&shift) ? factor(shift, head, group) : NULL);
    }
    /* Writes the codes of a byte; columns: group_columns(). */
    __device__ __forceinline__ void write_codes(int64_t head, int64_t byte, int64_t columns) const
    {
        const int64_t each = attn_code_columns(codes.dtype), first = byte * each;
        const bool shifted = attn_tensor_present(&shift);
        uint8_t bits = 0;
        for (int64_t c = first; c < first + each; c++) {
            const int64_t group = c / columns;
            bits |= attn_code_nearest(element(head, c), factor_at(scale, head, group, 1),
                                      factor_at(shift, head, group, 0), codes.dtype, shifted)
                    << 4 * (c - first);
        }
        *(uint8_t *)attn_at(&codes, to.tensor, to.row, head, byte) = bits;
    }
};
