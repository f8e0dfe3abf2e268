/*
 * vec_neon16.h: vectors of 16 floats for pairs/, as four of body/vec_neon.h. Only the
 * operations that body_rows.h, body_grad.h and pairs/ take.
 */
#include "cpu/ukernel/body/vec_neon.h"

typedef struct vec16 {
    float32x4_t a, b, c, d;
} vec16;

#define ONE(name, of) \
    ATTN_INLINE vec16 name(vec16 x) { return (vec16){of(x.a), of(x.b), of(x.c), of(x.d)}; }
#define TWO(name, of)                                                                   \
    ATTN_INLINE vec16 name(vec16 x, vec16 y)                                               \
    {                                                                                   \
        return (vec16){of(x.a, y.a), of(x.b, y.b), of(x.c, y.c), of(x.d, y.d)};          \
    }
#define THREE(name, of)                                                                 \
    ATTN_INLINE vec16 name(vec16 x, vec16 y, vec16 z)                                       \
    {                                                                                   \
        (void)z; /* not all need it */                                                  \
        return (vec16){of(x.a, y.a, z.a), of(x.b, y.b, z.b), of(x.c, y.c, z.c),          \
                      of(x.d, y.d, z.d)};                                               \
    }
#define LOADS(name, of, type)                                                           \
    ATTN_INLINE vec16 name(const type *p)                                                \
    {                                                                                   \
        return (vec16){of(p), of(p + 4), of(p + 8), of(p + 12)};                         \
    }
#define STORES(name, of, type)                                                          \
    ATTN_INLINE void name(type *p, vec16 x)                                              \
    {                                                                                   \
        of(p, x.a), of(p + 4, x.b), of(p + 8, x.c), of(p + 12, x.d);                    \
    }

ONE(v16_abs, v_abs)
TWO(v16_add, v_add)
TWO(v16_sub, v_sub)
TWO(v16_mul, v_mul)
TWO(v16_div, v_div)
TWO(v16_max, v_max)
THREE(v16_fma, v_fma)
THREE(v16_fms, v_fms)
THREE(v16_zero_lt, v_zero_lt)
THREE(v16_ldexp, v_ldexp)
LOADS(v16_load, v_load, float)
LOADS(v16_load_f16, v_load_f16, uint16_t)
LOADS(v16_load_bf16, v_load_bf16, uint16_t)
STORES(v16_store, v_store, float)
STORES(v16_store_f16, v_store_f16, uint16_t)
STORES(v16_store_bf16, v_store_bf16, uint16_t)

ATTN_INLINE vec16 v16_set1(float x)
{
    const float32x4_t all = vdupq_n_f32(x);
    return (vec16){all, all, all, all};
}

ATTN_INLINE vec16 v16_load4(const float *p)
{
    const float32x4_t none = vdupq_n_f32(0);
    return (vec16){vld1q_f32(p), none, none, none};
}

ATTN_INLINE vec16 v16_select_lt(vec16 p, vec16 q, vec16 x, vec16 y)
{
    return (vec16){v_select_lt(p.a, q.a, x.a, y.a), v_select_lt(p.b, q.b, x.b, y.b),
                  v_select_lt(p.c, q.c, x.c, y.c), v_select_lt(p.d, q.d, x.d, y.d)};
}

ATTN_INLINE vec16 v16_zip_low(vec16 x, vec16 y)
{
    return (vec16){vzip1q_f32(x.a, y.a), vzip2q_f32(x.a, y.a), vzip1q_f32(x.b, y.b),
                  vzip2q_f32(x.b, y.b)};
}

ATTN_INLINE vec16 v16_zip_high(vec16 x, vec16 y)
{
    return (vec16){vzip1q_f32(x.c, y.c), vzip2q_f32(x.c, y.c), vzip1q_f32(x.d, y.d),
                  vzip2q_f32(x.d, y.d)};
}

#undef ONE
#undef LOADS
#undef STORES

#include "cpu/ukernel/body/vec_end.h"
#define vec vec16
#define VL 16
#define v_load(p) v16_load((const float *)(p))
#define v_store(p, x) v16_store((float *)(p), x)
#define v_set1 v16_set1
#define v_add v16_add
#define v_sub v16_sub
#define v_mul v16_mul
#define v_div v16_div
#define v_fma v16_fma
#define v_fms v16_fms
#define v_max v16_max
#define v_abs v16_abs
#define v_select_lt v16_select_lt
#define v_zero_lt v16_zero_lt
#define v_ldexp v16_ldexp
#define v_zip_low v16_zip_low
#define v_zip_high v16_zip_high
#define v_load4 v16_load4
#define v_store4(p, x) vst1q_f32(p, (x).a)
#define v_load_f16 v16_load_f16
#define v_load_bf16 v16_load_bf16
#define v_store_f16 v16_store_f16
#define v_store_bf16 v16_store_bf16
