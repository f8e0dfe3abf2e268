/*
 * softmax_tile.h: the softmax of a tile of scores in steps: before its exponentials, the
 * exponentials (softmax.h), after them. A table may do something else between the steps.
 */

/* The first maximum of lanes that have no reference yet. */
ATTN_INLINE void first_reference(uint16_t *p, int64_t done, const float *s, int64_t n, vec c,
                                 const attn_running *state, const int groups)
{
    lane_mask unseen[2];
    for (int g = 0; g < groups; g++) {
        unseen[g] = v_eq(v_load((const float *)state->m + g * VL), v_set1(-INFINITY));
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

/* The step before its exponentials ... */
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

/* ... and the step after some exponentials. */
ATTN_INLINE void end_tile(const score_tile *t, exponentials *e, vec c, const attn_running *state,
                          references *r, const int groups)
{
    float *l = state->l;
    uint16_t *to = t->p + t->done * STRIP;
    lane_mask raised[2];
    if (last_pairs(e, groups, r->far, raised)) {
        raise_reference(t->p, t->done, t->s, t->n, c, state, raised, groups);
        load_references(r, state, c, groups);
        *e = exponentials_of(to, t->s, even_keys(t), r, no_lines(t->s, NULL, 0));
        last_pairs(e, groups, r->far, raised);
    }
    const vec sum[2] = {e->sum[0], e->sum[1]};
    for (int g = 0; g < groups; g++) {
        const int64_t end = (t->n + P_STEP - 1) / P_STEP * P_STEP;
        for (int64_t key = even_keys(t); key < end; key += 2) {
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

/* The softmax of a whole tile of at most 4 lanes, four keys to a vector. False, and P alone
 * written, if the reference of a lane is too low. */
ATTN_INLINE bool quads_softmax(const score_tile *t, const attn_running *state,
                               const references *r, fetch *ahead)
{
    const reference of = {.m = v_repeat_quad(r->of[0].m), .mc = v_repeat_quad(r->of[0].mc),
                          .c = r->of[0].c, .least = r->of[0].least};
    const vec c = FUSED_EXPONENT ? v_set1(1) : of.c;
    const float *s = t->s;
    uint16_t *p = t->p + t->done * STRIP;
    vec sum = v_set1(0);
    for (int64_t key = 0; key < KEY_TILE; key += 16, s += 16 * STRIP) {
        const float (*fours)[4] = (const float (*)[4])s;
        vec d[4], of_key[4]; /* keys 0, 2, 4, 6 and 1, 3, 5, 7 of eight */
        fetch_some(ahead, 4);
        fetch_some(ahead, 4);
        ATTN_UNROLL for (int i = 0; i < 4; i++) d[i] =
            distance(v_load_quads(fours + (i / 2 * 8 + i % 2) * STRIP / 4, STRIP / 2), &of, false);
        probabilities(of_key, d, c, of.least, 4, FLUSHES);
        ATTN_UNROLL for (int i = 0; i < 4; i += 2, p += 8 * STRIP)
        {
            dwords even[PARTS], odd[PARTS];
            split_probability(even, of_key[i]);
            split_probability(odd, of_key[i + 1]);
            sum = v_add_two_quads(sum, of_key[i], of_key[i + 1]);
            for (int part = 0; part < PARTS; part++) {
                d_store_quads(p + part * P_PART, 2 * STRIP, d_upper_halves(even[part], odd[part]));
            }
        }
    }
    if (v_gt(sum, v_set1(1 << SLACK)) != 0) {
        return false;
    }
    v_store((float *)state->l, v_add(v_load((float *)state->l), sum));
    return true;
}

/* softmax_tile() of a strip with so many lanes. */
ATTN_INLINE void lanes_softmax(const score_tile *t, vec c, const attn_running *state,
                               references *r, fetch ahead, const int groups, const int lanes)
{
    const bool plain = t->n == KEY_TILE && !r->unseen && !r->far && !state->top;
    if (lanes > 4 || !plain || !quads_softmax(t, state, r, &ahead)) {
        softmax_tile(t, c, state, r, ahead, groups);
    }
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
    if (lanes > GROUP) {
        softmax_groups(p, done, s, n, v_set1((float)c), state, 2);
    } else {
        softmax_groups(p, done, s, n, v_set1((float)c), state, 1);
    }
}
