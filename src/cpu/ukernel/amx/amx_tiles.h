/*
 * amx_tiles.h: AMX tiles for the tables on them: one macro per instruction, configuration,
 * transposes. Included by amx_<type>.c only; everything is static.
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

/* Where the factors of a product lie. Strides between rows in bytes, other distances in
 * elements. */
typedef struct factors {
    const uint16_t *a, *b;
    /* from part to part, from step to step, from 16 rows to the next */
    int64_t a_stride, a_part, a_step, a_rows;
    int64_t b_stride, b_part, b_step;
    int64_t steps;
} factors;

/* 16 rows of A, in tile ta, times 32 columns of B, in tiles 6 and 7, are added to tiles c0, c1;
 * over f->steps steps of
 * 32. Of a strip of at most 16 queries (`wide` is false where the macros are used), 16 columns, in
 *     tile 6, to c0. With
 * `tall`, the next 16 rows too, in tile 5, to tiles 2 and 3: ta, c0, c1 are 4, 0, 1.
 * Between products, some of a softmax is done `meanwhile`, unless that is NULL.
 * Elements of several parts in one of two orders:
 *
 *   passes  the small products of parts step by step, then the large one over all steps: only the
 *   latter rounds at the
 *           size of the sum. For scores, whose errors count most.
 *   steps   all products of a step, then the next step: fewer loads.
 */
#define LOAD_A(ta, part)                                                          \
    do {                                                                          \
        TILE_LOAD(ta, a_at + (part)*f->a_part, f->a_stride);                      \
        if (tall) {                                                               \
            TILE_LOAD(5, a_at + f->a_rows + (part)*f->a_part, f->a_stride);       \
        }                                                                         \
    } while (0)
#define LOAD_B(part)                                                    \
    do {                                                                \
        TILE_LOAD(6, b_at + (part)*f->b_part, f->b_stride);             \
        if (wide) {                                                     \
            TILE_LOAD(7, b_at + (part)*f->b_part + STRIP, f->b_stride); \
        }                                                               \
    } while (0)
#define MULTIPLY(c0, c1, ta)      \
    do {                          \
        TILE_DP(c0, ta, 6);       \
        if (wide) {               \
            TILE_DP(c1, ta, 7);   \
        }                         \
        MEANWHILE;                \
        if (tall) {               \
            TILE_DP(2, 5, 6);     \
            if (wide) {           \
                TILE_DP(3, 5, 7); \
            }                     \
            MEANWHILE;            \
        }                         \
    } while (0)
#define MEANWHILE                  \
    do {                           \
        if (meanwhile) {           \
            some_pairs(meanwhile); \
        }                          \
    } while (0)
#define EACH_STEP(first, ...)                                                          \
    do {                                                                               \
        const uint16_t *a_at = (first), *b_at = f->b;                                  \
        for (int64_t i = 0; i < f->steps; i++, a_at += f->a_step, b_at += f->b_step) { \
            __VA_ARGS__;                                                               \
        }                                                                              \
    } while (0)
#define PASS(c0, c1, ta, first, pa, pb) \
    EACH_STEP(first, LOAD_A(ta, pa); LOAD_B(pb); MULTIPLY(c0, c1, ta))

/* Zero, and tiles c0, c1 to 16 rows of 32 floats. */
#define ROW_ZERO(c0, c1)   \
    do {                   \
        TILE_ZERO(c0);     \
        if (wide) {        \
            TILE_ZERO(c1); \
        }                  \
    } while (0)
#define ROW_STORE(c0, c1, to)                    \
    do {                                         \
        TILE_STORE(c0, to, STRIDE);              \
        if (wide) {                              \
            TILE_STORE(c1, (to) + TILE, STRIDE); \
        }                                        \
    } while (0)
