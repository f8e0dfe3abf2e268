/*
 * vec_neon.h: the vector operations of body.h for AArch64 Advanced SIMD, in f32 or f64 (REAL_BITS).
 * No include guard, see vec_avx2.h.
 */
#include <arm_neon.h>

#define ivec uint64x2_t
#define IVL 2
#define i_load vld1q_u64
#define i_store vst1q_u64
#define i_set1(x) vdupq_n_u64(x)
#define i_xor3(a, b, c) veorq_u64(veorq_u64(a, b), c)
#define i_mul(a, b) vmull_u32(vmovn_u64(a), vmovn_u64(b))
#define i_high(a) vshrq_n_u64(a, 32)

#if REAL_BITS == 32

#define vec float32x4_t
#define VL 4
#define MR 8
#define NV 2
#define AHEAD 0
#define v_load vld1q_f32
#define v_store vst1q_f32
#define v_set1 vdupq_n_f32
#define v_add vaddq_f32
#define v_sub vsubq_f32
#define v_mul vmulq_f32
#define v_div vdivq_f32
#define v_fma(a, b, c) vfmaq_f32(c, a, b)
#define v_fms(a, b, c) vfmaq_f32(vnegq_f32(c), a, b)
#define v_max(m, s) v_select_lt(m, s, s, m)
#define v_abs vabsq_f32
#define v_select_lt(a, b, x, y) vbslq_f32(vcltq_f32(a, b), x, y)
#define v_zero_lt(a, b, y) v_select_lt(a, b, v_set1(0), y)
#define v_ldexp(a, t, n) \
    vmulq_f32(a, vreinterpretq_f32_s32( \
                     vaddq_s32(vshlq_n_s32(vreinterpretq_s32_f32(t), 23), vdupq_n_s32(127 << 23))))
#define v_zip_low vzip1q_f32
#define v_zip_high vzip2q_f32
#define v_load_f16(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define v_load_bf16(p) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))
#define v_store_f16(p, a) vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)))
ATTN_INLINE void v_store_bf16(uint16_t *p, vec a)
{
    uint32x4_t u = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t up = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))),
               quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), up, quiet), 16));
}

#else

#define vec float64x2_t
#define VL 2
#define MR 8
#define NV 2
#define AHEAD 0
#define v_load vld1q_f64
#define v_store vst1q_f64
#define v_set1 vdupq_n_f64
#define v_add vaddq_f64
#define v_sub vsubq_f64
#define v_mul vmulq_f64
#define v_div vdivq_f64
#define v_fma(a, b, c) vfmaq_f64(c, a, b)
#define v_fms(a, b, c) vfmaq_f64(vnegq_f64(c), a, b)
#define v_max(m, s) v_select_lt(m, s, s, m)
#define v_abs vabsq_f64
#define v_select_lt(a, b, x, y) vbslq_f64(vcltq_f64(a, b), x, y)
#define v_zero_lt(a, b, y) v_select_lt(a, b, v_set1(0), y)
#define v_ldexp(a, t, n)                                                                    \
    vmulq_f64(a, vreinterpretq_f64_s64(vaddq_s64(vshlq_n_s64(vreinterpretq_s64_f64(t), 52), \
                                                 vdupq_n_s64(INT64_C(1023) << 52))))
#define v_zip_low vzip1q_f64
#define v_zip_high vzip2q_f64

#endif
