/*
 * dwords_neon.h: the operations of dwords_avx512.h, which lists them, for AArch64 Advanced SIMD: 16
 * dwords are four registers, as the vectors of vec_neon16.h.
 */
typedef struct dwords {
    uint32x4_t a, b, c, d;
} dwords;

typedef uint32_t lane_mask;

#define OF_TWO(name, type, of)                                                          \
    ATTN_INLINE dwords name(type x, type y)                                             \
    {                                                                                   \
        return (dwords){of(x.a, y.a), of(x.b, y.b), of(x.c, y.c), of(x.d, y.d)};        \
    }
#define OF_ONE(name, type, from, of)                                                    \
    ATTN_INLINE type name(from x) { return (type){of(x.a), of(x.b), of(x.c), of(x.d)}; }

/* ---- pairs ----------------------------------------------------------------------------------- */

/* Of four dwords. */
#define HALVES(x) vreinterpretq_u16_u32(x)
#define BITS(x) vreinterpretq_u32_f32(x)
#define FLOATS(x) vreinterpretq_f32_u32(x)
#define LOW_HALVES(x, y) vreinterpretq_u32_u16(vtrn1q_u16(HALVES(x), HALVES(y)))
#define HIGH_HALVES(x, y) vreinterpretq_u32_u16(vtrn2q_u16(HALVES(x), HALVES(y)))
#define ZIP_LOW(x, y) vreinterpretq_u32_u16(vzip1q_u16(HALVES(x), HALVES(y)))
#define ZIP_HIGH(x, y) vreinterpretq_u32_u16(vzip2q_u16(HALVES(x), HALVES(y)))
#define FLOAT_PAIRS(x, y) HIGH_HALVES(BITS(x), BITS(y))
#define EVEN_FLOATS(x) FLOATS(vshlq_n_u32(x, 16))
#define ODD_FLOATS(x) FLOATS(vandq_u32(x, vdupq_n_u32(0xffff0000)))
#define ROUNDED(x) vaddq_u32(BITS(x), vdupq_n_u32(0x8000))
#define ROUNDED_NUMBER(x) vbslq_u32(vceqq_f32(x, x), ROUNDED(x), BITS(x))

OF_TWO(d_or, dwords, vorrq_u32)
OF_TWO(d_low_halves, dwords, LOW_HALVES)
OF_TWO(d_high_halves, dwords, HIGH_HALVES)
OF_TWO(d_zip_low, dwords, ZIP_LOW)
OF_TWO(d_zip_high, dwords, ZIP_HIGH)
OF_TWO(d_upper_halves, dwords, HIGH_HALVES)
OF_TWO(d_pairs, vec16, FLOAT_PAIRS)
OF_ONE(d_as_floats, vec16, dwords, FLOATS)
OF_ONE(d_floats, vec16, dwords, EVEN_FLOATS)
OF_ONE(d_odd_floats, vec16, dwords, ODD_FLOATS)
OF_ONE(d_rounded, dwords, vec16, ROUNDED)
OF_ONE(d_rounded_number, dwords, vec16, ROUNDED_NUMBER)

/* Panels are dwords or 16-bit numbers. */
ATTN_INLINE dwords d_load(const void *p)
{
    const uint16_t *from = p;
    return (dwords){
        vreinterpretq_u32_u16(vld1q_u16(from)), vreinterpretq_u32_u16(vld1q_u16(from + 8)),
        vreinterpretq_u32_u16(vld1q_u16(from + 16)), vreinterpretq_u32_u16(vld1q_u16(from + 24))};
}

ATTN_INLINE dwords d_load4(const uint16_t *p)
{
    const uint32x4_t none = vdupq_n_u32(0);
    return (dwords){vreinterpretq_u32_u16(vld1q_u16(p)), none, none, none};
}

ATTN_INLINE void d_store(void *p, dwords x)
{
    uint16_t *to = p;
    vst1q_u16(to, HALVES(x.a)), vst1q_u16(to + 8, HALVES(x.b));
    vst1q_u16(to + 16, HALVES(x.c)), vst1q_u16(to + 24, HALVES(x.d));
}

ATTN_INLINE dwords d_all(uint32_t x)
{
    const uint32x4_t all = vdupq_n_u32(x);
    return (dwords){all, all, all, all};
}

ATTN_INLINE dwords d_zero(void)
{
    return d_all(0);
}

ATTN_INLINE bool d_even(const char *const *row, int64_t step)
{
    bool even = true;
    for (int i = 0; i < 15; i++) {
        even &= row[i + 1] - row[i] == step;
    }
    return even;
}

ATTN_INLINE dwords d_pair(const uint16_t *p)
{
    uint32_t pair;
    memcpy(&pair, p, sizeof pair);
    return d_all(pair);
}

ATTN_INLINE dwords d_load_some(const uint16_t *p, int64_t n)
{
    uint16_t some[32] = {0};
    if (n > 0) {
        memcpy(some, p, (size_t)(n < 32 ? n : 32) * sizeof *p);
    }
    return d_load(some);
}

/* Of four dwords. */
ATTN_INLINE void store_zip(uint16_t *p, uint32x4_t x, uint32x4_t y)
{
    vst1q_u16(p, vzip1q_u16(HALVES(x), HALVES(y)));
    vst1q_u16(p + 8, vzip2q_u16(HALVES(x), HALVES(y)));
}

ATTN_INLINE void d_store_zip(uint16_t *p, dwords x, dwords y)
{
    store_zip(p, x.a, y.a), store_zip(p + 16, x.b, y.b);
    store_zip(p + 32, x.c, y.c), store_zip(p + 48, x.d, y.d);
}

/* Rows become columns, 4 x 4 dwords. */
ATTN_INLINE void transpose4(uint32_t *to, int64_t stride, uint32x4_t w, uint32x4_t x, uint32x4_t y,
                            uint32x4_t z)
{
    const uint64x2_t low = vreinterpretq_u64_u32(vtrn1q_u32(w, x)),
                     low_next = vreinterpretq_u64_u32(vtrn1q_u32(y, z)),
                     high = vreinterpretq_u64_u32(vtrn2q_u32(w, x)),
                     high_next = vreinterpretq_u64_u32(vtrn2q_u32(y, z));
    vst1q_u32(to, vreinterpretq_u32_u64(vtrn1q_u64(low, low_next)));
    vst1q_u32(to + stride, vreinterpretq_u32_u64(vtrn1q_u64(high, high_next)));
    vst1q_u32(to + 2 * stride, vreinterpretq_u32_u64(vtrn2q_u64(low, low_next)));
    vst1q_u32(to + 3 * stride, vreinterpretq_u32_u64(vtrn2q_u64(high, high_next)));
}

/* Rows become columns: to[c * stride + r] = from[r][c], 16 x 16 dwords. */
static void transpose16(uint32_t *to, int64_t stride, const dwords *from)
{
    for (int r = 0; r < 16; r += 4, from += 4, to += 4) {
        transpose4(to, stride, from[0].a, from[1].a, from[2].a, from[3].a);
        transpose4(to + 4 * stride, stride, from[0].b, from[1].b, from[2].b, from[3].b);
        transpose4(to + 8 * stride, stride, from[0].c, from[1].c, from[2].c, from[3].c);
        transpose4(to + 12 * stride, stride, from[0].d, from[1].d, from[2].d, from[3].d);
    }
}

ATTN_INLINE void d_columns(dwords *x, const uint16_t *row, int64_t apart)
{
    uint32_t to[8 * 16];
    for (int r = 0; r < 16; r += 4) {
        for (int c = 0; c < 8; c += 4) {
            uint32x4_t of[4];
            for (int i = 0; i < 4; i++) {
                of[i] = vreinterpretq_u32_u16(vld1q_u16(row + (r + i) * apart + 2 * c));
            }
            transpose4(to + c * 16 + r, 16, of[0], of[1], of[2], of[3]);
        }
    }
    for (int c = 0; c < 8; c++) {
        x[c] = d_load(to + c * 16);
    }
}

ATTN_INLINE vec v_load_quads(const float (*p)[4], int64_t step)
{
    return (vec){vld1q_f32(p[0]), vld1q_f32(p[step]), vld1q_f32(p[2 * step]),
                 vld1q_f32(p[3 * step])};
}

ATTN_INLINE void d_store_quads(uint16_t *p, int64_t step, dwords x)
{
    vst1q_u16(p, HALVES(x.a)), vst1q_u16(p + step, HALVES(x.b));
    vst1q_u16(p + 2 * step, HALVES(x.c)), vst1q_u16(p + 3 * step, HALVES(x.d));
}

#define v_repeat_quad(x) ((vec){(x).a, (x).a, (x).a, (x).a})

#define ADD_QUADS(to, x, y) vaddq_f32(vaddq_f32(to, x), y)
ATTN_INLINE vec v_add_two_quads(vec to, vec x, vec y)
{
    const float32x4_t none = vdupq_n_f32(0), first = ADD_QUADS(to.a, x.a, y.a),
                      second = ADD_QUADS(first, x.b, y.b), third = ADD_QUADS(second, x.c, y.c);
    return (vec){ADD_QUADS(third, x.d, y.d), none, none, none};
}
#undef ADD_QUADS

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Bits of lanes whose dwords are all ones; dwords of the lanes of a mask. */
ATTN_INLINE lane_mask mask_of(dwords x)
{
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(x.a, bit)) | vaddvq_u32(vandq_u32(x.b, bit)) << 4 |
           vaddvq_u32(vandq_u32(x.c, bit)) << 8 | vaddvq_u32(vandq_u32(x.d, bit)) << 12;
}

ATTN_INLINE dwords lanes_of(lane_mask mask)
{
    const uint32x4_t all = vdupq_n_u32(mask), bit = {1, 2, 4, 8};
    return (dwords){vtstq_u32(all, bit), vtstq_u32(all, vshlq_n_u32(bit, 4)),
                    vtstq_u32(all, vshlq_n_u32(bit, 8)), vtstq_u32(all, vshlq_n_u32(bit, 12))};
}

#define NOT_LT(x, y) vmvnq_u32(vcltq_f32(x, y))
OF_TWO(lanes_eq, vec16, vceqq_f32)
OF_TWO(lanes_gt, vec16, vcgtq_f32)
OF_TWO(lanes_not_lt, vec16, NOT_LT)
#define v_eq(x, y) mask_of(lanes_eq(x, y))
#define v_gt(x, y) mask_of(lanes_gt(x, y))
#define v_not_lt(x, y) mask_of(lanes_not_lt(x, y))

ATTN_INLINE void d_keep_lanes(uint16_t *p, dwords x, lane_mask mask)
{
    const dwords now = d_load(p), in = lanes_of(mask);
    d_store(p, (dwords){vbslq_u32(in.a, now.a, x.a), vbslq_u32(in.b, now.b, x.b),
                        vbslq_u32(in.c, now.c, x.c), vbslq_u32(in.d, now.d, x.d)});
}

ATTN_INLINE vec v_pick(lane_mask mask, vec x, vec y)
{
    const dwords in = lanes_of(mask);
    return (vec){vbslq_f32(in.a, x.a, y.a), vbslq_f32(in.b, x.b, y.b), vbslq_f32(in.c, x.c, y.c),
                 vbslq_f32(in.d, x.d, y.d)};
}

/* ---- floats ---------------------------------------------------------------------------------- */

/* z where 2^floor(z) is 0, infinite or normal; a NaN stays one. */
#define WITHIN(z) vminq_f32(vmaxq_f32(z, vdupq_n_f32(-127)), vdupq_n_f32(128))
#define FRACTION(z) vsubq_f32(WITHIN(z), vrndmq_f32(WITHIN(z)))
#define POWER(y, z)                                                                     \
    vmulq_f32(y, FLOATS(vshlq_n_u32(                                                    \
                     vreinterpretq_u32_s32(                                             \
                         vaddq_s32(vcvtmq_s32_f32(WITHIN(z)), vdupq_n_s32(127))), 23)))
#define AT_MOST_0(x) vminq_f32(x, vdupq_n_f32(0))

#define V_ONE(name, of) \
    ATTN_INLINE vec name(vec x) { return (vec){of(x.a), of(x.b), of(x.c), of(x.d)}; }
V_ONE(v_fraction, FRACTION)
V_ONE(v_at_most_0, AT_MOST_0)
TWO(v_power, POWER)
#define v_power_flushed v_power
#define v_mul_unless_lt(d, least, x, y) v_zero_lt(d, least, v_mul(x, y))

enum { VECTOR_BITS = 128, CAN_FLUSH = 0 };
