/*
 * amx_tiles.h: AMX tiles for the tables on them: their shapes, and transposes. Included by amx_<type>.c
 * only; everything is static.
 *
 * A tile is 16 rows of 64 bytes. C (16 x 16 f32) += A (16 x 32 bf16) B (16 pairs x 16 x 2 bf16):
 *
 *     S  = K QT      A = 16 keys x 32 columns of K        B = QT, pairs of columns, 16 queries
 *     OT = V^T P     A = 16 columns of V x 32 keys        B = P, pairs of keys, 16 queries
 *     dV = P dO      A = 16 keys of P x 32 queries        B = dO, pairs of queries, 16 columns
 *
 * Denormal bf16 inputs count as zero (the instruction's definition). Tiles are configured by begin
 * and released by end, on the thread that runs an item: no tile state outlives a call.
 */
#include "cpu/ukernel/amx/amx_instructions.h"
#include "core/half.h"

#define VEC_HEADER "cpu/ukernel/body/vec_avx512.h"
#define REAL_BITS 32
#include "cpu/ukernel/body/body_rows.h"

enum {
    /* with its sums of one block K, V, S and P of it should stay in L1 and L2 */
    KEY_BLOCK = PARTS == 1 ? 256 : 128,
    KEY_TILE = 32,
    KEY_STEP = 32,
    PANEL_KEYS = KEY_BLOCK + KEY_STEP, /* an odd number of cache lines from row to row */
    TILE = 16,
    STRIDE = STRIP * 4, /* bytes from row to row of QT, S, P and OT */
    P_PART = KEY_BLOCK * STRIP
};

_Static_assert(STRIP == 32, "two tiles of queries side by side");

static int64_t pad32(int64_t n)
{
    return (n + 31) / 32 * 32;
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

/* A product of part `a` of A and part `b` of B. */
typedef struct part_product {
    int a, b;
} part_product;
