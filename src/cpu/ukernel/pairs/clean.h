/*
 * clean.h: panels without numbers that are not finite: X here, V in values_tiles.h, values_dots.h.
 * Of an element, one of whose parts is not finite, such parts become 0.
 */

#include "cpu/specials.h"
#include "cpu/ukernel/table_grad.h"

enum { NOTED = 32 }; /* numbers that are looked at together */

/* Those of NOTED numbers that are not finite, as bits. */
static uint32_t special_bits(const uint16_t *x)
{
    uint32_t bits = 0;
    for (int i = 0; i < NOTED; i++) {
        bits |= (x[i] & 0x7f80) == 0x7f80 ? attn_bit[i] : 0;
    }
    return bits;
}

/* Copies n numbers; `to` may be `from`. */
static void copy_finite(uint16_t *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = (from[i] & 0x7f80) == 0x7f80 ? 0 : from[i];
    }
}

/* Notes an element as bit `bit` of words, if it is special. */
static void note(uint64_t *plus, uint64_t *minus, int64_t bit, float x)
{
    if (x - x != 0) {
        plus[bit / 64] |= (uint64_t)!(x < 0) << bit % 64;
        minus[bit / 64] |= (uint64_t)!(x > 0) << bit % 64;
    }
}

/* Rows i and 16 + i of a strip lie side by side. */
static bool clean_x(void *x_, int64_t cols, const attn_specials *found)
{
    const int64_t words = attn_special_words(cols), x_part = GROUP * cols * 2;
    bool any = false;
    memset(found->plus, 0, (size_t)(STRIP * words) * sizeof *found->plus);
    memset(found->minus, 0, (size_t)(STRIP * words) * sizeof *found->minus);
    for (int64_t row = 0; row < GROUP; row++) {
        uint16_t *x = (uint16_t *)x_ + row * cols * 2;
        uint32_t all = 0;
        for (int64_t some = 0; some < cols * 2; some += NOTED) {
            uint32_t left = 0;
            for (int part = 0; part < PARTS; part++) {
                left |= special_bits(x + some + part * x_part);
            }
            for (all |= left; left != 0; left &= left - 1) {
                const int64_t i = some + __builtin_ctz(left),
                              first = (row + i % 2 * GROUP) * words;
                note(found->plus + first, found->minus + first, i / 2, whole(x + i, x_part));
            }
        }
        for (int part = 0; all != 0 && part < PARTS; part++) {
            copy_finite(x + part * x_part, x + part * x_part, cols * 2);
        }
        any |= all != 0;
    }
    return any;
}
