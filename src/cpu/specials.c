/*
 * specials.c: see specials.h. A sum of products is a set of bits here: which of its terms are there
 * and special.
 */
#include "cpu/specials.h"
#include "cpu/real.h"
#include "cpu/ukernel/table_grad.h"
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

/* Adds x to the elements of a set of n. Others get -0, which changes no sum. */
static void add_to_some(float *to, int64_t n, uint32_t set, float x)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] += set & attn_bit[i] ? x : -0.0F;
    }
}

static void add_to_set(const attn_ukernel *table, void *to, int64_t n, uint64_t set, double x)
{
    if (table->real_size == 4) {
        for (int64_t i = 0; i < n && set != 0; i += 32) {
            add_to_some((float *)to + i, min64(n - i, 32), (uint32_t)(set >> i), (float)x);
        }
        return;
    }
    for (uint64_t left = set; left != 0; left &= left - 1) {
        ((double *)to)[__builtin_ctzll(left)] += x;
    }
}

void attn_specials_add(const attn_ukernel *table, void *to, int64_t n, uint64_t plus,
                       uint64_t minus)
{
    const uint64_t both = plus & minus;
    if (both == first_bits(n)) {
        fill_reals(table, to, n, (double)NAN);
        return;
    }
    add_to_set(table, to, n, both, (double)NAN);
    add_to_set(table, to, n, plus & ~both, (double)INFINITY);
    add_to_set(table, to, n, minus & ~both, -(double)INFINITY);
}

/* The union of the lanes, `all` at most, that see some of a set of keys. */
static uint64_t lanes_of(const uint64_t *keys, int64_t words, const uint64_t *seen, uint64_t all)
{
    uint64_t lanes = 0;
    for (int64_t w = 0; w < words; w++) {
        for (uint64_t left = keys[w]; left != 0 && lanes != all; left &= left - 1) {
            lanes |= seen[64 * w + __builtin_ctzll(left)];
        }
    }
    return lanes;
}

void attn_specials_add_keys(const attn_ukernel *table, void *ot, const attn_specials *v,
                            int64_t dv_pad, const uint64_t *seen, int lanes)
{
    const int64_t words = attn_special_words(table->key_block);
    const uint64_t all = first_bits(lanes);
    for (int64_t c = 0; c < dv_pad; c++) {
        attn_specials_add(table, (char *)ot + c * table->strip * table->real_size, lanes,
                          lanes_of(v->plus + c * words, words, seen, all),
                          lanes_of(v->minus + c * words, words, seen, all));
    }
}

/* Rows of X with special numbers in 64 of its columns. */
typedef struct special_rows {
    int n, strip[ATTN_MAX_ROW_BLOCK], lane[ATTN_MAX_ROW_BLOCK];
    uint64_t plus[ATTN_MAX_ROW_BLOCK], minus[ATTN_MAX_ROW_BLOCK];
} special_rows;

/* x: of the rows' first ones of the 64 columns, rows `words` apart. */
static void find_rows(special_rows *found, const attn_specials *x, int64_t words, int strips,
                      int strip)
{
    found->n = 0;
    for (int row = 0; row < strips * strip; row++) {
        const uint64_t plus = x->plus[row * words], minus = x->minus[row * words];
        if ((plus | minus) != 0) {
            found->strip[found->n] = row / strip, found->lane[found->n] = row % strip;
            found->plus[found->n] = plus, found->minus[found->n++] = minus;
        }
    }
}

void attn_specials_add_rows(const attn_ukernel *table, void *g, const attn_specials *x,
                            int64_t cols, const uint64_t *seen, int64_t n, int strips)
{
    const int64_t words = attn_special_words(cols);
    special_rows rows;
    for (int64_t c = 0; c < cols; c += 64) {
        find_rows(&rows, &(attn_specials){x->plus + c / 64, x->minus + c / 64}, words, strips,
                  table->strip);
        for (int64_t key = 0; key < n; key++) {
            uint64_t plus = 0, minus = 0;
            for (int i = 0; i < rows.n; i++) {
                const uint64_t lanes = seen[rows.strip[i] * (int64_t)table->key_block + key];
                const uint64_t sees = 0 - (lanes >> rows.lane[i] & 1); /* all bits, or none */
                plus |= rows.plus[i] & sees, minus |= rows.minus[i] & sees;
            }
            attn_specials_add(table, (char *)g + (key * cols + c) * table->real_size,
                              min64(cols - c, 64), plus, minus);
        }
    }
}
