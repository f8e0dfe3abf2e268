/*
 * specials.c: see specials.h. A sum of products is a set of bits here: which of its terms are there
 * and special.
 */
#include "cpu/specials.h"
#include "cpu/real.h"
#include <math.h>

/* The first n bits. */
static uint64_t first_bits(int64_t n)
{
    return n < 64 ? ((uint64_t)1 << n) - 1 : ~(uint64_t)0;
}

/* The lanes, 32 at most, whose score is not -inf. */
static uint32_t some_lanes_seeing(const float *s, int lanes)
{
    uint32_t bits = 0;
    for (int lane = 0; lane < lanes; lane++) {
        bits |= s[lane] != -INFINITY ? attn_bit[lane] : 0;
    }
    return bits;
}

static uint64_t lanes_seeing_f32(const float *s, int lanes)
{
    const uint64_t low = some_lanes_seeing(s, lanes < 32 ? lanes : 32);
    return lanes <= 32 ? low : low | (uint64_t)some_lanes_seeing(s + 32, lanes - 32) << 32;
}

static uint64_t lanes_seeing_f64(const double *s, int lanes)
{
    uint64_t bits = 0;
    for (int lane = 0; lane < lanes; lane++) {
        bits |= (uint64_t)(s[lane] != -(double)INFINITY) << lane;
    }
    return bits;
}

void attn_specials_seen(const attn_ukernel *table, uint64_t *seen, const void *s, int64_t n,
                        int lanes)
{
    for (int64_t key = 0; key < n; key++) {
        seen[key] = table->real_size == 4
                        ? lanes_seeing_f32((const float *)s + key * table->strip, lanes)
                        : lanes_seeing_f64((const double *)s + key * table->strip, lanes);
    }
}

/* Terms of a sum: bit i of word w, at word[w step], is term w width + i. */
typedef struct terms {
    const uint64_t *word;
    int64_t words, step, width;
} terms;

/* The union, `all` at most, of the sets of these terms: of[term step]. */
static uint64_t union_of(const terms *sum, const uint64_t *of, int64_t step, uint64_t all)
{
    uint64_t set = 0;
    for (int64_t w = 0; w < sum->words; w++) {
        const uint64_t bits = sum->word[w * sum->step];
        for (uint64_t left = bits; left != 0 && set != all; left &= left - 1) {
            set |= of[(w * sum->width + __builtin_ctzll(left)) * step];
        }
    }
    return set;
}

void attn_specials_add(const attn_ukernel *table, void *to, int64_t n, uint64_t plus,
                       uint64_t minus)
{
    if ((plus & minus) == first_bits(n)) {
        fill_reals(table, to, n, (double)NAN);
        return;
    }
    for (uint64_t left = plus | minus; left != 0; left &= left - 1) {
        const int i = __builtin_ctzll(left);
        const double special = (plus & minus) >> i & 1 ? (double)NAN
                               : plus >> i & 1         ? (double)INFINITY
                                                       : -(double)INFINITY;
        set_real(table, to, i, get_real(table, to, i) + special);
    }
}

void attn_specials_add_keys(const attn_ukernel *table, void *ot, const attn_specials *v,
                            int64_t dv_pad, const uint64_t *seen, int lanes)
{
    const int64_t words = attn_special_words(table->key_block);
    const uint64_t all = first_bits(lanes);
    for (int64_t c = 0; c < dv_pad; c++) {
        const terms plus = {v->plus + c * words, words, 1, 64},
                    minus = {v->minus + c * words, words, 1, 64};
        attn_specials_add(table, (char *)ot + c * table->strip * table->real_size, lanes,
                          union_of(&plus, seen, 1, all), union_of(&minus, seen, 1, all));
    }
}

/* True if the rows that see a key are those that see the key before. */
static bool as_before(const terms *rows)
{
    bool same = true;
    for (int64_t w = 0; w < rows->words; w++) {
        same &= rows->word[w * rows->step] == rows->word[w * rows->step - 1];
    }
    return same;
}

void attn_specials_add_rows(const attn_ukernel *table, void *g, const attn_specials *x,
                            int64_t cols, const uint64_t *seen, int64_t n, int strips)
{
    const int64_t words = attn_special_words(cols);
    for (int64_t c = 0; c < cols; c += 64) {
        const int64_t width = min64(cols - c, 64);
        uint64_t plus = 0, minus = 0;
        for (int64_t key = 0; key < n; key++) {
            const terms rows = {seen + key, strips, table->key_block, table->strip};
            if (key == 0 || !as_before(&rows)) {
                plus = union_of(&rows, x->plus + c / 64, words, first_bits(width));
                minus = union_of(&rows, x->minus + c / 64, words, first_bits(width));
            }
            attn_specials_add(table, (char *)g + (key * cols + c) * table->real_size, width, plus,
                              minus);
        }
    }
}
