/*
 * clean.h: panels without numbers that are not finite: X here, V in values_tiles.h, values_dots.h.
 * Of an element, one of whose parts is not finite, such parts become 0.
 */

#include "cpu/ukernel/table_grad.h"

static bool all_finite(const uint16_t *x, int64_t n)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        finite &= (x[i] & 0x7f80) != 0x7f80;
    }
    return finite;
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
        bool finite = true;
        for (int part = 0; part < PARTS; part++) {
            finite &= all_finite(x + part * x_part, cols * 2);
        }
        for (int64_t i = 0; !finite && i < cols * 2; i++) {
            const int64_t first = (row + i % 2 * GROUP) * words;
            note(found->plus + first, found->minus + first, i / 2, whole(x + i, x_part));
        }
        for (int part = 0; !finite && part < PARTS; part++) {
            copy_finite(x + part * x_part, x + part * x_part, cols * 2);
        }
        any |= !finite;
    }
    return any;
}
