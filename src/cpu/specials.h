/*
 * specials.h: numbers of V, K, Q and dO that are not finite, apart from the products. A masked
 * position has P = dS = 0, and 0 x NaN is NaN. So products read 0 in place of such numbers, which
 * tables find (clean_v, clean_x), and they are added to those sums that see their positions. Not
 * here: which rows are done so (cpu/forward/forward.c, cpu/backward/backward.c).
 */
#ifndef ATTN_CPU_SPECIALS_H
#define ATTN_CPU_SPECIALS_H

#include "cpu/ukernel/table.h"

/* Bits, for loops that collect them: from an array, not by shifts, compilers take vectors. */
static const uint32_t attn_bit[32] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
    1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
    1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
    1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

/* Notes the lanes, as bits, that see each of n keys: whose score in S is not -inf. */
void attn_specials_seen(const attn_ukernel *table, uint64_t *seen, const void *s, int64_t n,
                        int lanes);

/* Adds to the first n elements +inf where the set plus has a bit, -inf where minus has one, NaN
 * where both do. */
void attn_specials_add(const attn_ukernel *table, void *to, int64_t n, uint64_t plus,
                       uint64_t minus);

/* Adds to OT, after pv, the special numbers of a block's V panel. seen [key_block]: lanes that see
 * each key. */
void attn_specials_add_keys(const attn_ukernel *table, void *ot, const attn_specials *v,
                            int64_t dv_pad, const uint64_t *seen, int lanes);

/* Adds to n keys of G, after `rows`, the special numbers of some strips of X. seen: lanes of these
 * strips that see each of the keys, the strips key_block words apart. */
void attn_specials_add_rows(const attn_ukernel *table, void *g, const attn_specials *x,
                            int64_t cols, const uint64_t *seen, int64_t n, int strips);

#endif
