/*
 * pairs.h: shapes of the tables on pairs of bf16 numbers: every 32-bit lane holds two of them, that
 * of two keys or two columns side by side, as the dot products of AMX, AVX512_BF16 and Arm take
 * them. Elements are the sum of PARTS bf16 parts. Included by a table's file after NAME and PARTS;
 * everything is static. pairs/body.h includes most headers of this folder after it, in their order.
 * Panels, once per part:
 *
 *     K   [key][k_pad(d)]           rows, padding zero
 *     QT  [d_pad / 2][32][2]        d_pad = d rounded up to 32; dword (i, query) holds the columns
 *                                   of dword i of a row of K
 *     V                             values_tiles.h or values_dots.h
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

#ifndef ASIDE
#define ASIDE 1 /* vectors of probabilities side by side: 1, 2 or 4 */
#endif

#ifndef K_GRANULE
#define K_GRANULE 32 /* columns of the K panel are padded to a multiple of it, at most 32 */
#endif

#ifndef Q_QUADS
#define Q_QUADS 0 /* 1: products of at most four rows of Q read no other lanes */
#endif

#ifndef VEC_HEADER /* vectors of 16 lanes */
#define VEC_HEADER "cpu/ukernel/body/vec_avx512.h"
#define DWORDS_HEADER "cpu/ukernel/pairs/dwords_avx512.h"
#endif
#define REAL_BITS 32
#include "cpu/ukernel/body/body_rows.h"
#include DWORDS_HEADER

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

static int64_t k_pad(int64_t d)
{
    return (d + K_GRANULE - 1) / K_GRANULE * K_GRANULE;
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
