/*
 * vec_wasm128.h: the vector operations of body.h for WebAssembly's 128-bit vectors, in f32. They
 * have no fused multiply-add: v_fma rounds the product, too (UNFUSED), and v_fms, on which exp2
 * rests, computes the product exactly. No include guard, see vec_avx2.h.
 */
#include <wasm_simd128.h>

#define UNFUSED
#define vec v128_t
#define v_load wasm_v128_load
#define v_store wasm_v128_store

#define ivec v128_t
#define IVL 2
#define i_load wasm_v128_load
#define i_store wasm_v128_store
#define i_set1(x) wasm_i64x2_splat((int64_t)(x))
#define i_xor3(a, b, c) wasm_v128_xor(wasm_v128_xor(a, b), c)
#define i_mul(a, b)                                              \
    wasm_u64x2_extmul_low_u32x4(wasm_i32x4_shuffle(a, a, 0, 2, 0, 2), \
                                wasm_i32x4_shuffle(b, b, 0, 2, 0, 2))
#define i_high(a) wasm_u64x2_shr(a, 32)

#define VL 4
#define MR 4
#define NV 2
#define AHEAD 0
#define v_set1 wasm_f32x4_splat
#define v_add wasm_f32x4_add
#define v_sub wasm_f32x4_sub
#define v_mul wasm_f32x4_mul
#define v_div wasm_f32x4_div
#define v_fma(a, b, c) v_add(v_mul(a, b), c)
#define v_max wasm_f32x4_pmax
#define v_abs wasm_f32x4_abs
#define v_select_lt(a, b, x, y) wasm_v128_bitselect(x, y, wasm_f32x4_lt(a, b))
#define v_zero_lt(a, b, y) wasm_v128_andnot(y, wasm_f32x4_lt(a, b))
#define v_ldexp(a, t, n) \
    v_mul(a, wasm_i32x4_add(wasm_i32x4_shl(t, 23), wasm_i32x4_splat(127 << 23)))
#define v_zip_low(a, b) wasm_i32x4_shuffle(a, b, 0, 4, 1, 5)
#define v_zip_high(a, b) wasm_i32x4_shuffle(a, b, 2, 6, 3, 7)
#define v_upper(a) wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(a, a, 1, 0))
#define v_lower wasm_f64x2_promote_low_f32x4
#define v_load_f16(p)                                                                 \
    wasm_f32x4_make(attn_f16_to_f32((p)[0]), attn_f16_to_f32((p)[1]), attn_f16_to_f32((p)[2]), \
                    attn_f16_to_f32((p)[3]))
#define v_load_bf16(p) wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16)

/* In f64, where products of f32 are exact. */
ATTN_INLINE vec v_fms(vec a, vec b, vec c)
{
    vec low = wasm_f64x2_sub(wasm_f64x2_mul(v_lower(a), v_lower(b)), v_lower(c)),
        high = wasm_f64x2_sub(wasm_f64x2_mul(v_upper(a), v_upper(b)), v_upper(c));
    return wasm_i64x2_shuffle(wasm_f32x4_demote_f64x2_zero(low),
                              wasm_f32x4_demote_f64x2_zero(high), 0, 2);
}

ATTN_INLINE void v_store_f16(uint16_t *p, vec a)
{
    float x[4];
    v_store(x, a);
    for (int i = 0; i < 4; i++) {
        p[i] = attn_f32_to_f16(x[i]);
    }
}

ATTN_INLINE void v_store_bf16(uint16_t *p, vec a)
{
    float x[4];
    v_store(x, a);
    for (int i = 0; i < 4; i++) {
        p[i] = attn_f32_to_bf16(x[i]);
    }
}
