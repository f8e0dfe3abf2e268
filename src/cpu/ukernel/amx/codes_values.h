/*
 * codes_values.h: OT = V^T W from codes on AMX tiles. W is P times the scale of a key, rounded to
 * bf16 once for each group of columns; codes are exact in bf16.
 *
 *     V   [dv_pad][V_KEYS] numbers of codes, transposed, zero from the last packed key to a
 *         multiple of 32, then [group][key] scales, then the columns of a group
 *     W   [key / 2][32][2]            P times a scale: dword (key / 2, lane)
 *
 * For at most 16 rows O = W^T V, whose sums are the same: V then is squares of 32 keys, pairs of
 * which lie side by side without a transposition.
 */
enum { V_KEYS = ATTN_KEY_BLOCK + KEY_STEP, W_GROUP = ATTN_KEY_BLOCK * STRIP };

#include "cpu/ukernel/codes/panel.h"

static int64_t value_place(int64_t c, int64_t key)
{
    return c * V_KEYS + key;
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* 32 keys x 32 columns: pairs of keys interleaved to dwords, even and odd columns apart,
 * transposed. */
static void transpose_values(uint16_t *to, dwords (*row)[2], int half)
{
    dwords even[TILE], odd[TILE];
    for (int pair = 0; pair < TILE; pair++) {
        const dwords a = row[2 * pair][half], b = row[2 * pair + 1][half];
        even[pair] = d_low_halves(a, b), odd[pair] = d_high_halves(a, b);
    }
    transpose16((uint32_t *)(void *)to, V_KEYS, even);
    transpose16((uint32_t *)(void *)(to + V_KEYS), V_KEYS, odd);
}

/* Goes up to the next multiple of 32 keys of the panel, from any first key. */
ATTN_INLINE void pack_values(uint16_t *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv,
                             int64_t dv_pad, uint64_t values, const int32_t dtype)
{
    const int64_t end = (at + n + KEY_STEP - 1) / KEY_STEP * KEY_STEP - at;
    const numbers of = numbers_of(dtype);
    for (int64_t key = 0; key < end; key += KEY_STEP) {
        for (int64_t c = 0; c < dv_pad; c += 64) {
            dwords row[KEY_STEP][2];
            for (int64_t i = 0; i < KEY_STEP; i++) {
                attn_fetch_soon(src->soon, 64);
                row[i][0] = row[i][1] = d_zero();
                if (key + i < n) {
                    row_columns(row[i], src, key + i, c, dv, values >> (key + i) & 1, &of, dtype);
                }
            }
            transpose_values(v + c * V_KEYS + at + key, row, 0);
            if (c + 32 < dv_pad) {
                transpose_values(v + (c + 32) * V_KEYS + at + key, row, 1);
            }
        }
    }
}

static void pack_v(void *v, int64_t at, const attn_rows *src, int64_t n, int64_t dv, int64_t dv_pad)
{
    const int64_t group = src->codes.group < dv ? src->codes.group : dv_pad;
    uint64_t values = 0; /* a bit for each row whose scale is not finite */
    *v_group(v, dv_pad) = group;
    for (int64_t row = 0; row < n; row++) {
        float *scale = v_scales(v, dv_pad) + at + row;
        const bool finite = row_scales(scale, ATTN_KEY_BLOCK, src, row, dv, src->codes.group);
        values |= (uint64_t)!finite << row;
    }
    OF_CODES(src->dtype, pack_values, v, at, src, n, dv, dv_pad, values);
}

/* ---- products -------------------------------------------------------------------------------- */

/* `columns` of OT = OT alpha + V^T W; without alpha (NULL) OT = V^T W. 16 columns are added while
 * the products of the next ones run. */
ATTN_INLINE void value_columns(float *ot, const uint16_t *v, const uint16_t *w, int64_t columns,
                               int64_t steps, const float *alpha, const bool wide)
{
    float sum[2 * TILE * STRIP] __attribute__((aligned(64)));
    const float *low = sum, *high = sum + TILE * STRIP;
    for (int64_t c = 0; c < columns; c += 2 * TILE, ot += 2 * TILE * STRIP) {
        sum_products(v + c * V_KEYS, V_KEYS * 2, w, steps, LOW, wide);
        if (c > 0) {
            store_sums(sum, HIGH, wide);
            add_rows(ot - TILE * STRIP, STRIP, high, alpha, wide);
        }
        sum_products(v + (c + TILE) * V_KEYS, V_KEYS * 2, w, steps, HIGH, wide);
        store_sums(sum, LOW, wide);
        add_rows(ot, STRIP, low, alpha, wide);
    }
    store_sums(sum, HIGH, wide);
    add_rows(ot - TILE * STRIP, STRIP, high, alpha, wide);
}

static void pv(void *ot, const void *v_, int64_t at, const void *p, int64_t dv_pad, int64_t n,
               const void *alpha, int lanes)
{
    void *v = (void *)(uintptr_t)v_;
    const int64_t group = *v_group(v, dv_pad), steps = (n + KEY_STEP - 1) / KEY_STEP,
                  pairs = (n + 1) / 2;
    uint16_t w[W_GROUP] __attribute__((aligned(64)));
    memset(w + pairs * 2 * STRIP, 0,
           (size_t)((steps * KEY_STEP / 2 - pairs) * 2 * STRIP) * sizeof *w);
    for (int64_t c = 0; c < dv_pad; c += group) {
        const float *scale = v_scales(v, dv_pad) + c / group * ATTN_KEY_BLOCK + at;
        const uint16_t *columns = (const uint16_t *)v_ + c * V_KEYS + at;
        float *to = (float *)ot + c * STRIP;
        if (lanes > TILE) {
            scale_weights(w, p, scale, 1, n, 2);
            value_columns(to, columns, w, group, steps, alpha, true);
        } else {
            scale_weights(w, p, scale, 1, n, 1);
            value_columns(to, columns, w, group, steps, alpha, false);
        }
    }
}

/* ---- few rows -------------------------------------------------------------------------------- */

/* Lays the scales of n keys group by group: to[group][64 keys]. */
ATTN_INLINE void turn_scales(float *to, const float *from, int64_t n, int64_t groups)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    int64_t key = 0;
    for (; groups == 4 && key + 4 <= n; key += 4) {
        const vec x = _mm512_permutexvar_ps(order, v_load(from + 4 * key));
        v_store_quads((float(*)[4])(to + key), ATTN_KEY_BLOCK / 4, x);
    }
    for (; key < n; key++) {
        for (int64_t group = 0; group < groups; group++) {
            to[group * ATTN_KEY_BLOCK + key] = from[key * groups + group];
        }
    }
}

/* W of four lanes and four keys, of which n have P, before they are packed. */
ATTN_INLINE dwords weights_of_four(const float *p, const float *scale, int64_t n)
{
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const int64_t keys = n < 4 ? n > 0 ? n : 0 : 4;
    const __mmask16 some = (__mmask16)((1 << 4 * keys) - 1), each = (__mmask16)((1 << keys) - 1);
    const vec by = _mm512_permutexvar_ps(first, _mm512_maskz_loadu_ps(each, scale));
    return d_rounded_number(
        _mm512_maskz_mul_ps(some, v_load_quads((const float(*)[4])p, STRIP / 4), by));
}

/* Stores W of four lanes and 32 keys, of which n have P, as rows of W^T, 64 keys apart. */
ATTN_INLINE void four_weights(uint16_t *w, const float *p, const float *scale, int64_t n)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    dwords x[4];
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        const int64_t key = 8 * i;
        const dwords a = weights_of_four(p + key * STRIP, scale + key, n - key),
                     b = weights_of_four(p + (key + 4) * STRIP, scale + key + 4, n - key - 4);
        /* pairs 4 i .. 4 i + 3 in quarters */
        x[i] = d_upper_halves(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    }
    d_shuffle(x, 4); /* quarter q of x[lane]: pairs q, 4 + q, 8 + q, 12 + q */
    ATTN_UNROLL for (int lane = 0; lane < 4; lane++)
        d_store(w + lane * 2 * KEY_STEP, _mm512_permutexvar_epi32(order, x[lane]));
}

/* The same of 16 lanes. */
ATTN_INLINE void all_weights(uint16_t *w, const float *p, const float *scale, int64_t n)
{
    uint16_t pairs[KEY_STEP * STRIP] __attribute__((aligned(64)));
    dwords x[TILE];
    scale_weights(pairs, p, scale, 1, n < KEY_STEP ? n : KEY_STEP, 1);
    ATTN_UNROLL for (int i = 0; i < TILE; i++) x[i] =
        2 * i < n ? d_load(pairs + i * 2 * STRIP) : d_zero();
    transpose16((uint32_t *)(void *)w, KEY_STEP, x);
}

/* W^T of n keys for a group: [lane][64 keys]. */
static void few_weights(uint16_t *w, const float *p, const float *scale, int64_t n, int lanes)
{
    for (int64_t key = 0; key < n; key += KEY_STEP) {
        if (lanes <= 4) {
            four_weights(w + key, p + key * STRIP, scale + key, n - key);
        } else {
            all_weights(w + key, p + key * STRIP, scale + key, n - key);
        }
    }
}

enum { SQUARE = TILE * 2 * TILE };

/* Stores pairs of two keys of the first n of 64 columns, a multiple of 32, in four squares: dword j
 * of square i is column 32 (i / 2) + i % 2 + 2 j of i4x2, else 32 (i / 2) + 4 (i % 2) + 8 (j / 4) +
 * j % 4. */
ATTN_INLINE void pack_pair(uint16_t *to, const char *x, const char *y, int64_t n, const numbers *of,
                           const int32_t dtype)
{
    if (dtype == ATTN_I4X2) {
        ATTN_UNROLL for (int i = 0; i < 2; i++)
        {
            const int64_t left = n / 2 - 16 * i;
            const dwords a = _mm512_cvtepu8_epi32(load_few_bytes(x + 16 * i, left)),
                         b = _mm512_cvtepu8_epi32(load_few_bytes(y + 16 * i, left)),
                         both = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
            d_store(to + 2 * i * SQUARE, nibble_numbers(both, of));
            d_store(to + (2 * i + 1) * SQUARE, nibble_numbers(_mm512_srli_epi32(both, 4), of));
        }
        return;
    }
    const dwords order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7),
                 a = _mm512_permutexvar_epi64(order, load_bytes(x, n)),
                 b = _mm512_permutexvar_epi64(order, load_bytes(y, n)),
                 zip[2] = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
    ATTN_UNROLL for (int i = 0; i < 2; i++)
    {
        dwords low, high;
        number_halves(&low, &high, zip[i], of, dtype);
        d_store(to + 2 * i * SQUARE, _mm512_unpacklo_epi8(low, high));
        d_store(to + (2 * i + 1) * SQUARE, _mm512_unpackhi_epi8(low, high));
    }
}

static const char no_codes[64]; /* a row beyond the last key: zeros */

/* Packs squares of keys key .. key+31 below n, and 64 columns from c on. */
ATTN_INLINE void pack_squares(uint16_t *to, const attn_values *v, int64_t key, int64_t n, int64_t c,
                              const numbers *of, const int32_t dtype)
{
    const int64_t left = v->dv - c, byte = c / attn_code_columns(dtype);
    const char *const *row = v->rows + key;
    if (left >= 64 && n - key >= KEY_STEP) {
        for (int i = 0; i < KEY_STEP; i += 2, to += 2 * TILE) {
            attn_fetch_soon(v->soon, 4 * 64); /* twice: in attn_values of rows, see pack.c */
            pack_pair(to, row[i] + byte, row[i + 1] + byte, 64, of, dtype);
        }
        return;
    }
    for (int i = 0; i < KEY_STEP; i += 2, to += 2 * TILE) {
        const char *x = key + i < n ? row[i] + byte : no_codes,
                   *y = key + i + 1 < n ? row[i + 1] + byte : no_codes;
        attn_fetch_soon(v->soon, 4 * 64);
        pack_pair(to, x, y, left < 64 ? left : 64, of, dtype);
    }
}

/* Adds the sums of a square's columns, which lie [row][16], to OT. */
ATTN_INLINE void add_square(float *ot, const float *sum, int64_t first, int64_t step,
                            int64_t dv_pad, const float *alpha, int lanes)
{
    for (int lane = 0; lane < lanes; lane += 4) {
        float column[VL][4];
        vec x[4];
        ATTN_UNROLL for (int r = 0; r < 4; r++) x[r] = v_load(sum + (lane + r) * TILE);
        quads_f32(column, 1, x);
        for (int64_t j = 0; j < VL; j++) {
            const int64_t c = first + j / 4 * 8 + j % 4 * step;
            float *to = ot + c * STRIP + lane;
            const vec y = v_load4(column[j]);
            if (c < dv_pad) {
                v_store4(to, alpha ? v_fma(v_load4(to), v_load4(alpha + lane), y) : y);
            }
        }
    }
}

/* Adds the products of 32 keys: W^T from w on for 32 columns, from `upper` on for the next. */
ATTN_INLINE void add_squares(const uint16_t *w, const uint16_t *upper, const uint16_t *square)
{
    TILE_LOAD(4, w, 2 * KEY_STEP * 2);
    TILE_LOAD(6, square, TILE * 4);
    TILE_LOAD(7, square + SQUARE, TILE * 4);
    TILE_DP(0, 4, 6);
    TILE_DP(1, 4, 7);
    TILE_LOAD(5, upper, 2 * KEY_STEP * 2);
    TILE_LOAD(6, square + 2 * SQUARE, TILE * 4);
    TILE_LOAD(7, square + 3 * SQUARE, TILE * 4);
    TILE_DP(2, 5, 6);
    TILE_DP(3, 5, 7);
}

/* Adds the sums on tiles to 64 columns of OT from c on. */
ATTN_INLINE void end_columns(float *ot, int64_t c, int64_t dv_pad, const float *alpha, int lanes,
                             const int32_t dtype)
{
    float sum[4][TILE * TILE] __attribute__((aligned(64)));
    TILE_STORE(0, sum[0], TILE * 4);
    TILE_STORE(1, sum[1], TILE * 4);
    TILE_STORE(2, sum[2], TILE * 4);
    TILE_STORE(3, sum[3], TILE * 4);
    for (int i = 0; i < 4; i++) {
        const int64_t first = c + i / 2 * 32;
        if (dtype == ATTN_I4X2) {
            add_square(ot, sum[i], first + i % 2, 2, dv_pad, alpha, lanes);
        } else {
            add_square(ot, sum[i], first + i % 2 * 4, 1, dv_pad, alpha, lanes);
        }
    }
}

/* Sums of 64 columns end when the first squares of the next ones are packed. */
ATTN_INLINE void few_values(float *ot, const attn_values *v, const float *p, int64_t n,
                            const float *alpha, int lanes, const int32_t dtype)
{
    uint16_t w[2][TILE * 2 * KEY_STEP] __attribute__((aligned(64))); /* of groups in turn */
    uint16_t square[4 * SQUARE] __attribute__((aligned(64)));
    const numbers of = numbers_of(dtype);
    float turned[MOST_GROUPS * ATTN_KEY_BLOCK];
    const float *scale = v->scale;
    int64_t made = 0; /* groups whose W is made */
    if (v->groups > 1) {
        turn_scales(turned, scale, n, v->groups);
        scale = turned;
    }
    for (int64_t c = 0; c < v->dv_pad; c += 64) {
        const int64_t group = c / v->group, next = (c + 32) / v->group,
                      upper = next < v->groups ? next : group;
        for (; made <= upper; made++) {
            few_weights(w[made % 2], p, scale + made * ATTN_KEY_BLOCK, n, lanes);
        }
        for (int64_t key = 0; key < n; key += KEY_STEP) {
            pack_squares(square, v, key, n, c, &of, dtype);
            if (key == 0 && c > 0) {
                end_columns(ot, c - 64, v->dv_pad, alpha, lanes, dtype);
            }
            if (key == 0) {
                zero_sums(BOTH, true);
            }
            add_squares(w[group % 2] + key, w[upper % 2] + key, square);
        }
    }
    end_columns(ot, (v->dv_pad - 1) / 64 * 64, v->dv_pad, alpha, lanes, dtype);
}

static void pv_few(void *ot, const attn_values *v, const void *p, int64_t n, const void *alpha,
                   int lanes)
{
    OF_CODES(v->dtype, few_values, ot, v, p, n, alpha, lanes);
}
