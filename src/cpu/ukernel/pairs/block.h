/*
 * block.h: products and softmax of a block's tiles in turn.
 */

/* The data read after the tile of `left` keys that begins at key `at`. */
ATTN_INLINE fetch fetch_after(const attn_keys *keys, int64_t at, int64_t left,
                              const attn_running *state)
{
    const int64_t n = left - KEY_TILE;
    const attn_ahead next = {
        .k = keys->k, .at = at + KEY_TILE, .n = n < KEY_TILE ? n : KEY_TILE, .cols = keys->d,
        .soon = state->ahead.soon};
    return fetch_of(n > 0 ? &next : &state->ahead);
}

/* The factors of scores from key `at` on, from the panel or from rows of K where they are. */
ATTN_INLINE factors tile_factors(const attn_keys *keys, int64_t at)
{
    factors f = score_factors(keys->k, at, keys->qt, keys->d);
    if (keys->stride > 0) {
        f.a = (const uint16_t *)keys->k + at * keys->stride;
        f.a_stride = keys->stride * 2, f.a_rows = GROUP * keys->stride;
    }
    return f;
}

ATTN_INLINE void tiles_in_turn(uint16_t *p, int64_t done, float *s, const attn_keys *keys, vec c,
                               const attn_running *state, const int lanes,
                               const int groups)
{
    references r;
    start_block(&r, done, state, c, groups);
    for (int64_t key = 0; key < keys->n; key += KEY_TILE) {
        const int64_t left = keys->n - key, at = keys->at + key;
        const score_tile tile = {p, done + key, s, left < KEY_TILE ? left : KEY_TILE};
        factors f = tile_factors(keys, at);
        f.soon = groups == 1 ? state->ahead.soon : NULL;
        store_product(s, &f, tile.n, true, lanes);
        softmax_tile(&tile, c, state, &r, fetch_after(keys, at, left, state), groups);
    }
}
