/*
 * amx_grad.h: the members of ukernel_grad.h on AMX tiles, for elements that are the sum of PARTS bf16 parts. Included
 * by amx_body.h, with its parameters. P and dS are rounded to PARTS parts for the products. Once per part:
 *
 *     P, dS  [key][16][2]       left factors: dword (key, i) holds queries i and 16 + i of the strip
 *     dS     [key / 2][32][2]   for pv, as P of the forward pass
 *     X      [16][cols][2]      dword (i, column) holds queries i and 16 + i
 */
#include "body_grad.h"

enum { ROW_BLOCK = ATTN_MAX_ROW_BLOCK };

static uint64_t x_bytes(int64_t cols)
{
    return PARTS * (uint64_t)STRIP * (uint64_t)cols * 2;
}

/* Dwords of x and y, 32 columns of two rows. */
ATTN_INLINE void store_dwords(uint16_t *to, __m512i x, __m512i y)
{
    const __m512i low = _mm512_unpacklo_epi16(x, y), high = _mm512_unpackhi_epi16(x, y);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi64(low, first, high));
    _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi64(low, second, high));
}

static void pack_x(void *x, const void *const *row, int64_t stride, int32_t dtype, int64_t n, int64_t cols)
{
    (void)dtype;
    for (int i = 0; i < TILE; i++) {
        for (int64_t c = 0; c < cols; c += 32) {
            __m512i low[PARTS], high[PARTS];
            split_columns(low, row[i], stride, c, n, 1);
            split_columns(high, row[TILE + i], stride, c, n, 1);
            for (int part = 0; part < PARTS; part++) {
                store_dwords((uint16_t *)x + ((part * TILE + i) * cols + c) * 2, low[part], high[part]);
            }
        }
    }
}

/* The parts of two keys' rows of a tile, 16 lanes at a time: [key][lanes]. */
typedef struct two_keys {
    __m512i part[2][2][PARTS];
} two_keys;

/* The second row is zero if there is none. */
ATTN_INLINE void split_keys(two_keys *k, const float *tile, bool second)
{
    for (int g = 0; g < 2; g++) {
        split(k->part[0][g], v_load(tile + g * VL));
        split(k->part[1][g], second ? v_load(tile + STRIP + g * VL) : v_set1(0));
    }
}

ATTN_INLINE void store_left(uint16_t *to, const two_keys *k)
{
    store_parts(to, k->part[0][0], k->part[0][1]);
    store_parts(to + STRIP, k->part[1][0], k->part[1][1]);
}

static void grad_split(void *p_, void *ds_, int64_t at, void *right_, int64_t done, const void *p_tile,
                       const void *ds_tile, int64_t n)
{
    const float *p_row = p_tile, *ds_row = ds_tile;
    uint16_t *p = (uint16_t *)p_ + at * STRIP, *ds = (uint16_t *)ds_ + at * STRIP;
    uint16_t *right = (uint16_t *)right_ + done * STRIP;
    for (int64_t key = 0; key < n; key += 2) {
        two_keys k;
        split_keys(&k, p_row + key * STRIP, key + 1 < n);
        store_left(p + key * STRIP, &k);
        split_keys(&k, ds_row + key * STRIP, key + 1 < n);
        store_left(ds + key * STRIP, &k);
        store_parts(right + key * STRIP, k.part[0][0], k.part[1][0]);
        store_parts(right + (key + 1) * STRIP, k.part[0][1], k.part[1][1]);
    }
    for (int64_t key = n + n % 2; key < pad32(n); key++) {
        store_pair(p + key * STRIP, v_set1(0), v_set1(0));
        store_pair(ds + key * STRIP, v_set1(0), v_set1(0));
        store_pair(right + key * STRIP, v_set1(0), v_set1(0));
    }
}

/* Products of parts step by step: what enters dS linearly can stand more roundings than a score. */
static void grad_dp(void *dp, const void *v, int64_t at, const void *dot, int64_t dv, int64_t n)
{
    store_product(dp, v, at, dot, dv, n, false);
}

static void grad_clear(void *p, int64_t first, int64_t last)
{
    for (int part = 0; part < PARTS; part++) {
        memset((uint16_t *)p + part * P_PART + first * STRIP, 0, (size_t)((last - first) * STRIP) * sizeof(uint16_t));
    }
}

static void grad_rows(void *g, const void *p, int64_t at, const void *x, int64_t cols, int64_t n, int strips)
{
    const vec one = v_set1(1);
    for (int64_t c = 0; c < cols; c += 2 * TILE) {
        const factors f = {
            .a = (const uint16_t *)p + at * STRIP,
            .b = (const uint16_t *)x + c * 2,
            .a_stride = STRIP * 2,
            .a_part = P_PART,
            .a_step = PARTS * P_PART,
            .a_rows = TILE * STRIP,
            .b_stride = cols * 4,
            .b_part = TILE * cols * 2,
            .b_step = PARTS * TILE * cols * 2,
            .steps = strips,
        };
        add_product((float *)g + c, cols, pad32(n), one, one, &f);
    }
}

static void grad_rows_careful(void *g, const void *p_, int64_t at, const void *x_, int64_t cols, int64_t n, int strips,
                              const unsigned char *visible)
{
    const int64_t x_part = TILE * cols * 2;
    for (int64_t i = 0; i < n * cols; i++) {
        const int64_t key = i / cols, c = i % cols;
        float sum = 0;
        for (int row = 0; row < strips * STRIP; row++) {
            const int64_t strip = row / STRIP, pair = row % TILE, half = row % STRIP / TILE;
            const uint16_t *p = (const uint16_t *)p_ + strip * PARTS * P_PART + (at + key) * STRIP + 2 * pair + half;
            const uint16_t *x = (const uint16_t *)x_ + strip * PARTS * x_part + (pair * cols + c) * 2 + half;
            if (visible[(strip * KEY_BLOCK + at + key) * STRIP + row % STRIP]) {
                sum = fmaf(whole(p, P_PART), whole(x, x_part), sum);
            }
        }
        ((float *)g)[i] += sum;
    }
}

static const attn_ukernel_grad grad = {
    .vector = 2 * TILE,
    .row_block = ROW_BLOCK,
    .key_step = KEY_STEP,
    .x_bytes = x_bytes,
    .pack_x = pack_x,
    .dp = grad_dp,
    .softmax = grad_softmax_f32,
    .softcap = grad_softcap_f32,
    .split = grad_split,
    .clear = grad_clear,
    .rows = grad_rows,
    .rows_careful = grad_rows_careful,
    .put = grad_put_f32,
    .drop = grad_drop_f32,
};
