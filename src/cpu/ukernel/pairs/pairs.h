/*
 * pairs.h: shapes of the tables on pairs of bf16 numbers: every 32-bit lane holds two of them, that
 * of two keys or two columns side by side, as the dot products of AMX and of AVX512_BF16 take them.
 * Elements are the sum of PARTS bf16 parts. Included by a table's file after NAME and PARTS;
 * everything is static. The other headers of this folder follow it, in the order of body.h of
 * amx/. Panels, once per part:
 *
 *     K   [key][d_pad]              bf16, d_pad = d rounded up to 32, padding zero
 *     QT  [d_pad / 2][32][2]        dword (i, query) holds the columns of dword i of a row of K
 *     V   [dv_pad][KEY_BLOCK + 32]  transposed; keys from the last packed one to a multiple of 32
 *                                   are zero
 *     P   [key / 2][32][2]          dword (key/2, query) holds keys key and key + 1
 *
 * and of the backward pass:
 *
 *     P, dS  [key][16][2]       left factors: dword (key, i) has queries i and 16 + i of a strip
 *     dS     [key / 2][32][2]   for pv, as P of the forward pass
 *     X      [16][cols][2]      dword (i, column) holds queries i and 16 + i
 */
#include "core/half.h"
#include "cpu/prefetch.h"

#ifndef STAY_AWAKE
#define STAY_AWAKE() ((void)0) /* of a table whose unit of products falls asleep */
#endif

#define VEC_HEADER "cpu/ukernel/body/vec_avx512.h"
#define REAL_BITS 32
#include "cpu/ukernel/body/body_rows.h"

enum {
    /* K, V, S and P of one block and its sums should stay in L1 and L2 */
    KEY_BLOCK = PARTS == 1 ? 256 : 128,
    KEY_TILE = 32,
    KEY_STEP = 32,
    PANEL_KEYS = KEY_BLOCK + KEY_STEP, /* an odd number of cache lines from row to row */
    P_PART = KEY_BLOCK * STRIP,
    GROUP = 16 /* lanes side by side in a vector; a strip is two groups */
};

_Static_assert(STRIP == 2 * GROUP && VL == GROUP, "two groups of lanes");

static int64_t pad32(int64_t n)
{
    return (n + 31) / 32 * 32;
}

/* The sum of an element's parts. */
static float whole(const uint16_t *x, int64_t part)
{
    float sum = 0;
    for (int i = 0; i < PARTS; i++) {
        sum += attn_bf16_to_f32(x[i * part]);
    }
    return sum;
}

/* Rows become columns: to[c * stride + r] = from[r][c], 16 x 16 dwords. */
static void transpose16(uint32_t *to, int64_t stride, const __m512i *from)
{
    __m512i a[16], b[16];
    ATTN_UNROLL for (int i = 0; i < 16; i += 2)
    {
        a[i] = _mm512_unpacklo_epi32(from[i], from[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(from[i], from[i + 1]);
    }
    ATTN_UNROLL for (int i = 0; i < 16; i += 4)
    {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
        a[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
        a[i + 12] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
    }
    ATTN_UNROLL for (int i = 0; i < 4; i++)
    {
        _mm512_storeu_si512(to + i * stride, _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88));
        _mm512_storeu_si512(to + (i + 8) * stride, _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd));
        _mm512_storeu_si512(to + (i + 4) * stride, _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88));
        _mm512_storeu_si512(to + (i + 12) * stride,
                            _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd));
    }
}
