/*
 * keys.cuh: elements of K and V one at a time, in any layout: those of Q's type, and quantised ones
 * (core/codes.h). Tiles of many elements are load.cuh.
 */
#pragma once
#include "core/codes.h"
#include "cuda/kernel/rows/score.cuh"

template <int DTYPE, class Real> struct PlainKeys {
    const attn_problem &p;

    __device__ __forceinline__ Real k(const attn_sequence &s, int kv_head, int64_t key,
                                      int column) const
    {
        return load_real<Real>(attn_kv_find(&p, &p.k, &s, kv_head, key, column), DTYPE);
    }
    __device__ __forceinline__ Real v(const attn_sequence &s, int kv_head, int64_t key,
                                      int column) const
    {
        return load_real<Real>(attn_kv_find(&p, &p.v, &s, kv_head, key, column), DTYPE);
    }
};

/* The factor of a group of a row's columns; it lies as the row does, but for shared axes. */
__device__ __forceinline__ float load_factor(const attn_tensor &t, const attn_kv_place &at,
                                             int64_t head, int64_t group)
{
    return load_real<float>(attn_at_broadcast(&t, at.tensor, at.row, head, group), t.dtype);
}

/* The value of a row's column, of `columns` in all; scale and shift may be absent. */
__device__ __forceinline__ float load_coded(const attn_tensor &t, const attn_tensor &scale,
                                            const attn_tensor &shift, const attn_kv_place &at,
                                            int64_t head, int64_t column, int64_t columns)
{
    if (!attn_is_code(t.dtype)) {
        return load_real<float>(attn_at(&t, at.tensor, at.row, head, column), t.dtype);
    }
    const int64_t each = attn_code_columns(t.dtype);
    const float code =
        attn_code_at(attn_at(&t, at.tensor, at.row, head, column / each), t.dtype, column % each);
    if (!attn_tensor_present(&scale)) {
        return code;
    }
    const int64_t group = column / (columns / scale.shape[3]);
    const float by = load_factor(scale, at, head, group),
                from = attn_tensor_present(&shift) ? load_factor(shift, at, head, group) : 0;
    return attn_code_value(code, by, attn_tensor_present(&shift) ? &from : NULL);
}

/* K and V of which at least one has codes. */
struct CodedKeys {
    const attn_problem &p;
    const attn_tensor &k_scale, &k_shift, &v_scale, &v_shift;

    __device__ __forceinline__ float k(const attn_sequence &s, int kv_head, int64_t key,
                                       int column) const
    {
        return load_coded(p.k, k_scale, k_shift, attn_kv_locate(&p, &s, key), kv_head, column, p.d);
    }
    __device__ __forceinline__ float v(const attn_sequence &s, int kv_head, int64_t key,
                                       int column) const
    {
        return load_coded(p.v, v_scale, v_shift, attn_kv_locate(&p, &s, key), kv_head, column,
                          p.dv);
    }
};
