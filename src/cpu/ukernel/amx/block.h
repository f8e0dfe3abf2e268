/*
 * block.h: products and softmax of a block's tiles, at the same time where that pays off. Included
 * by products.h.
 *
 * Tables of several parts do the softmax of a tile between the products of the next one. While
 * products run, one of the processor's two ports of 512-bit multiply-adds is closed and the other
 * is free; three to six products of parts leave time for most of a softmax. With one part there are
 * so few products that the closed port costs more (docs/cpu-pairs.md).
 */
#include "cpu/ukernel/pairs/block.h"

/* The softmax of a tile during the products of the next, which go to the other tile of S. */
ATTN_INLINE void tiles_overlapped(uint16_t *p, int64_t done, float *s, const attn_keys *keys, vec c,
                                  const attn_running *state)
{
    references r;
    start_block(&r, done, state, c, 2);
    const factors first = score_factors(keys->k, keys->at, keys->qt, keys->d);
    store_product(s, &first, keys->n < KEY_TILE ? keys->n : KEY_TILE, true, STRIP);
    for (int64_t key = 0; key < keys->n; key += KEY_TILE) {
        const int64_t left = keys->n - key, at = keys->at + key, more = left - KEY_TILE;
        const score_tile tile = {p, done + key, s + key / KEY_TILE % 2 * KEY_TILE * STRIP,
                                 left < KEY_TILE ? left : KEY_TILE};
        float *next = s + (1 - key / KEY_TILE % 2) * KEY_TILE * STRIP;
        exponentials e = begin_tile(&tile, c, state, &r, fetch_after(keys, at, left, state), 2);
        if (more > 0) {
            const int64_t n = more < KEY_TILE ? more : KEY_TILE;
            const factors f = score_factors(keys->k, at + KEY_TILE, keys->qt, keys->d);
            e.share = e.pairs, e.slots = PRODUCTS * f.steps * ((n + TILE - 1) / TILE);
            if (r.far) {
                store_tall_product(next, &f, n, true, true, NULL);
            } else {
                store_tall_product(next, &f, n, true, true, &e);
            }
        }
        end_tile(&tile, &e, c, state, &r, 2);
    }
}

static void qk_softmax(void *p, int64_t done, void *s, const attn_keys *keys, double c,
                       const attn_running *state, int lanes)
{
    if (lanes <= 4) {
        tiles_in_turn(p, done, s, keys, v_set1((float)c), state, 4, 1);
    } else if (lanes <= TILE) {
        tiles_in_turn(p, done, s, keys, v_set1((float)c), state, GROUP, 1);
    } else if (PARTS == 1) {
        tiles_in_turn(p, done, s, keys, v_set1((float)c), state, STRIP, 2);
    } else {
        tiles_overlapped(p, done, s, keys, v_set1((float)c), state);
    }
}
