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
    if (keys->rows) {
        return no_lines(keys->k, FETCHES_ALL ? NULL : state->ahead.soon,
                        PARTS == 1 ? 2 * keys->d : keys->d);
    }
    return fetch_of(n > 0 ? &next : &state->ahead);
}

/* The scores of the tile that begins at key number `key`. */
ATTN_INLINE void tile_scores(float *s, const attn_keys *keys, int64_t key,
                             const attn_running *state, const int lanes)
{
    const int64_t left = keys->n - key, n = left < KEY_TILE ? left : KEY_TILE;
    if (keys->rows) {
        const factors f = row_factors(keys, keys->rows + key, n, state->ahead.soon);
        store_product(s, &f, n, true, lanes);
    } else {
        const factors f = score_factors(keys->k, keys->at + key, keys->qt, keys->d);
        store_product(s, &f, n, true, lanes);
    }
}

ATTN_INLINE score_tile tile_at(uint16_t *p, int64_t done, float *s, const attn_keys *keys,
                               int64_t key)
{
    const int64_t left = keys->n - key;
    return (score_tile){p, done + key, s, left < KEY_TILE ? left : KEY_TILE};
}

ATTN_INLINE void tiles_in_turn(uint16_t *p, int64_t done, float *s, const attn_keys *keys, vec c,
                               const attn_running *state, const int lanes, const int groups)
{
    references r;
    start_block(&r, done, state, c, groups);
    for (int64_t key = 0; key < keys->n; key += KEY_TILE) {
        const score_tile tile = tile_at(p, done, s, keys, key);
        tile_scores(s, keys, key, state, lanes);
        lanes_softmax(&tile, c, state, &r, fetch_after(keys, keys->at + key, keys->n - key, state),
                      groups, lanes);
    }
}
