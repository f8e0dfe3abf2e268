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

ATTN_INLINE void tiles_in_turn(uint16_t *p, int64_t done, float *s, const attn_keys *keys, vec c,
                               const attn_running *state, const int lanes, const int groups)
{
    const int64_t rows = PARTS > 1 ? GROUP : KEY_TILE; /* K at a time, where it is */
    references r;
    start_block(&r, done, state, c, groups);
    for (int64_t key = 0; key < keys->n; key += KEY_TILE) {
        const int64_t left = keys->n - key, at = keys->at + key;
        const score_tile tile = {p, done + key, s, left < KEY_TILE ? left : KEY_TILE};
        for (int64_t i = 0; keys->rows && i < tile.n; i += rows) {
            const int64_t n = tile.n - i < rows ? tile.n - i : rows;
            const factors f = row_factors(keys, keys->rows + key + i, n, state->ahead.soon);
            store_product(s + i * STRIP, &f, n, true, lanes);
        }
        if (!keys->rows) {
            const factors f = score_factors(keys->k, at, keys->qt, keys->d);
            store_product(s, &f, tile.n, true, lanes);
        }
        lanes_softmax(&tile, c, state, &r, fetch_after(keys, at, left, state), groups, lanes);
    }
}
