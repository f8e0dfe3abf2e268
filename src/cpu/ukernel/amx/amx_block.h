/*
 * amx_block.h: the softmax of a tile, and products and softmax of a block's tiles. Included by
 * amx_body.h after its products, with its parameters.
 *
 * Tables of several parts do the softmax of a tile between the products of the next one. While
 * products run, one of the processor's two ports of 512-bit multiply-adds is closed, but the other
 * is free, and three to six products of parts leave it time for most of a softmax. With one part
 * there are so few that what the port costs is more (docs/cpu.md).
 */

/* The first maximum of lanes that have no reference yet. */
ATTN_INLINE void first_reference(uint16_t *p, int64_t done, const float *s, int64_t n, vec c,
                                 const attn_running *state, const int groups)
{
    __mmask16 unseen[2];
    for (int g = 0; g < groups; g++) {
        unseen[g] = _mm512_cmp_ps_mask(v_load((const float *)state->m + g * VL), v_set1(-INFINITY),
                                       _CMP_EQ_OQ);
    }
    raise_reference(p, done, s, n, c, state, unseen, groups);
}

/* A tile of scores: keys done .. done+n-1 of P. */
typedef struct score_tile {
    uint16_t *p;
    int64_t done;
    float *s;
    int64_t n;
} score_tile;

ATTN_INLINE int64_t even_keys(const score_tile *t)
{
    return t->n + t->n % 2;
}

/* What is done before its exponentials ... */
ATTN_INLINE exponentials begin_tile(const score_tile *t, vec c, const attn_running *state,
                                    references *r, fetch ahead, const int groups)
{
    float *top = state->top;
    for (int g = 0; g < groups; g++) {
        if (t->n % 2) {
            v_store(t->s + t->n * STRIP + g * VL, v_set1(-INFINITY));
        }
        if (top) {
            v_store(top + g * VL, maximum(v_load(top + g * VL), t->s + g * VL, t->n));
        }
    }
    if (r->unseen) {
        first_reference(t->p, t->done, t->s, t->n, c, state, groups);
        load_references(r, state, c, groups);
    }
    return exponentials_of(t->p + t->done * STRIP, t->s, even_keys(t), r, ahead);
}

/* ... and after some of them. */
ATTN_INLINE void end_tile(const score_tile *t, exponentials *e, vec c, const attn_running *state,
                          references *r, const int groups)
{
    float *l = state->l;
    uint16_t *to = t->p + t->done * STRIP;
    __mmask16 raised[2];
    if (last_pairs(e, groups, r->far, raised)) {
        raise_reference(t->p, t->done, t->s, t->n, c, state, raised, groups);
        load_references(r, state, c, groups);
        *e = exponentials_of(to, t->s, even_keys(t), r, (fetch){NULL, NULL, 0});
        last_pairs(e, groups, r->far, raised);
    }
    const vec sum[2] = {e->sum[0], e->sum[1]};
    for (int g = 0; g < groups; g++) {
        for (int64_t key = even_keys(t); key < pad32(t->n); key += 2) {
            store_pair(to + key * STRIP + 2 * g * VL, v_set1(0), v_set1(0));
        }
        v_store(l + g * VL, v_add(v_load(l + g * VL), sum[g]));
    }
}

ATTN_INLINE void softmax_tile(const score_tile *t, vec c, const attn_running *state, references *r,
                              fetch ahead, const int groups)
{
    exponentials e = begin_tile(t, c, state, r, ahead, groups);
    end_tile(t, &e, c, state, r, groups);
}

/* Before the first tile of a block. */
ATTN_INLINE void start_block(references *r, int64_t done, const attn_running *state, vec c,
                             const int groups)
{
    for (int g = 0; done == 0 && g < groups; g++) {
        v_store((float *)state->alpha + g * VL, v_set1(1));
    }
    load_references(r, state, c, groups);
}

ATTN_INLINE void softmax_groups(uint16_t *p, int64_t done, float *s, int64_t n, vec c,
                                const attn_running *state, const int groups)
{
    references r;
    start_block(&r, done, state, c, groups);
    const score_tile tile = {p, done, s, n};
    softmax_tile(&tile, c, state, &r, fetch_of(&state->ahead), groups);
}

static void softmax(void *p, int64_t done, void *s, int64_t n, double c, const attn_running *state,
                    int lanes)
{
    if (lanes > TILE) {
        softmax_groups(p, done, s, n, v_set1((float)c), state, 2);
    } else {
        softmax_groups(p, done, s, n, v_set1((float)c), state, 1);
    }
}

/* ---- the tiles of a block -------------------------------------------------------------------- */

/* What is read after the tile of `left` keys that begins at key `at`. */
ATTN_INLINE fetch fetch_after(const attn_keys *keys, int64_t at, int64_t left,
                              const attn_running *state)
{
    const int64_t n = left - KEY_TILE;
    const attn_ahead next = {
        .k = keys->k, .at = at + KEY_TILE, .n = n < KEY_TILE ? n : KEY_TILE, .cols = keys->d};
    return fetch_of(n > 0 ? &next : &state->ahead);
}

/* One after the other. */
ATTN_INLINE void tiles_in_turn(uint16_t *p, int64_t done, float *s, const attn_keys *keys, vec c,
                               const attn_running *state, const int groups)
{
    references r;
    start_block(&r, done, state, c, groups);
    for (int64_t key = 0; key < keys->n; key += KEY_TILE) {
        const int64_t left = keys->n - key, at = keys->at + key;
        const score_tile tile = {p, done + key, s, left < KEY_TILE ? left : KEY_TILE};
        const factors f = score_factors(keys->k, at, keys->qt, keys->d);
        store_product(s, &f, tile.n, true, groups == 2);
        softmax_tile(&tile, c, state, &r, fetch_after(keys, at, left, state), groups);
    }
}

/* The softmax of a tile during the products of the next, which go to the other tile of S. */
ATTN_INLINE void tiles_overlapped(uint16_t *p, int64_t done, float *s, const attn_keys *keys, vec c,
                                  const attn_running *state)
{
    references r;
    start_block(&r, done, state, c, 2);
    qk(s, keys->k, keys->at, keys->qt, keys->d, keys->n < KEY_TILE ? keys->n : KEY_TILE, STRIP);
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
    if (lanes <= TILE) {
        tiles_in_turn(p, done, s, keys, v_set1((float)c), state, 1);
    } else if (PARTS == 1) {
        tiles_in_turn(p, done, s, keys, v_set1((float)c), state, 2);
    } else {
        tiles_overlapped(p, done, s, keys, v_set1((float)c), state);
    }
}
