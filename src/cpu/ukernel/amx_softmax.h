/*
 * amx_softmax.h: the softmax of a tile, its probabilities in the form that pv of amx_body.h reads. Included by
 * amx_body.h, with its parameters.
 *
 * The reference m of a lane is not its maximum but the maximum at the time of its last raise, and it is raised only
 * when the sum of a tile's probabilities exceeds 2^SLACK: so the first pass over a tile is nearly always the only one,
 * and takes no maxima. What a lane does depends on its own scores alone. Probabilities of up to 2^SLACK cost no
 * accuracy: their parts are floating-point numbers. (Flash attention 4 rescales as lazily, for another reason.)
 */
enum { SLACK = 8 };

/* ---- references ------------------------------------------------------------------------------------------------ */

/* What the probabilities of 16 lanes are relative to: 2^((x - m) c). With FUSED_EXPONENT it is 2^(x c - mc), an
 * operation less. The rounding of mc is then a factor of all that is relative to m, O and l alike, and for LSE no more
 * than half an ulp; lanes whose mc is so large that it would not be near 1 are `far` and subtract first. */
typedef struct reference {
    vec m, mc, c, least;
} reference;

/* m = -inf, nothing seen yet, stands for any finite reference. */
ATTN_INLINE reference reference_of(vec m, vec c)
{
    const vec finite = v_zero_lt(m, v_set1(-REAL_MAX), m);
    return (reference){finite, v_mul(finite, c), c, FUSED_EXPONENT ? c : v_div(v_set1(EXP2_MIN), c)};
}

ATTN_INLINE __mmask16 far_lanes(const reference *r)
{
    return FUSED_EXPONENT ? _mm512_cmp_ps_mask(v_abs(r->mc), v_set1(1024), _CMP_NLT_UQ) : 0;
}

/* The probability of a score; `far` is false if no lane is. */
ATTN_INLINE vec relative(vec x, const reference *r, const bool far)
{
    if (!FUSED_EXPONENT) {
        return probability(v_sub(x, r->m), r->c, r->least, FLUSHES);
    }
    vec z = v_fms(x, r->c, r->mc);
    if (far) {
        z = _mm512_mask_mul_ps(z, far_lanes(r), v_sub(x, r->m), r->c);
    }
    return probability(z, v_set1(1), r->least, FLUSHES);
}

/* The factor of what was relative to `old`: exactly 1 if that is the new one. */
ATTN_INLINE vec rescale(vec old, const reference *r)
{
    if (!FUSED_EXPONENT) {
        return probability(v_sub(old, r->m), r->c, r->least, false);
    }
    const vec z = v_sub(v_mul(old, r->c), r->mc);
    return probability(_mm512_mask_mul_ps(z, far_lanes(r), v_sub(old, r->m), r->c), v_set1(1), r->least, false);
}

/* ---- P --------------------------------------------------------------------------------------------------------- */

/* Dwords of 16 lanes, each a in the lower half and b in the upper one; a and b as split() gives them. */
ATTN_INLINE void store_parts(uint16_t *p, const __m512i *a, const __m512i *b)
{
    const __m512i upper = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    for (int i = 0; i < PARTS; i++) {
        _mm512_storeu_si512(p + i * P_PART, _mm512_mask_shuffle_epi8(b[i], 0x3333333333333333u, a[i], upper));
    }
}

ATTN_INLINE void store_pair(uint16_t *p, vec a, vec b)
{
    __m512i a_part[PARTS], b_part[PARTS];
    split_probability(a_part, a);
    split_probability(b_part, b);
    store_parts(p, a_part, b_part);
}

/* P of two keys, 16 lanes, times a and b. */
ATTN_INLINE void scale_pair(uint16_t *p, vec a, vec b)
{
    vec first = v_set1(0), second = v_set1(0);
    for (int part = PARTS - 1; part >= 0; part--) { /* exact: these are the parts of a float */
        __m512i x = _mm512_loadu_si512(p + part * P_PART);
        first = v_add(first, _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)));
        second = v_add(second, _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000))));
    }
    store_pair(p, v_mul(first, a), v_mul(second, b));
}

/* max(top, S) of 16 lanes; a NaN counts as nothing. */
ATTN_INLINE vec maximum(vec top, const float *s, int64_t n)
{
    for (int64_t key = 0; key < n; key++) {
        top = v_max(top, v_load(s + key * STRIP));
    }
    return top;
}

/* Lanes of `raised`, a mask per group of 16, get the maximum for m. */
ATTN_INLINE void raise_reference(uint16_t *p, int64_t done, const float *s, int64_t n, vec c, const attn_running *state,
                                 const __mmask16 *raised, const int groups)
{
    for (int g = 0; g < groups; g++) {
        float *m = (float *)state->m + g * VL, *l = (float *)state->l + g * VL, *alpha = (float *)state->alpha + g * VL;
        const vec old = v_load(m), new = _mm512_mask_mov_ps(old, raised[g], maximum(old, s + g * VL, n));
        const reference r = reference_of(new, c);
        const vec a = rescale(old, &r);
        v_store(m, new);
        v_store(l, v_mul(v_load(l), a));
        v_store(alpha, v_mul(v_load(alpha), a));
        for (int64_t key = 0; key < done; key += 2) {
            scale_pair(p + key * STRIP + 2 * g * VL, a, a);
        }
    }
}

/* What is fetched into the first-level cache during a softmax: its load ports are free, those of tile products are
 * not. The latter mostly wait for K and V to come from the second level. */
typedef struct fetch {
    const char *from, *end;
    int64_t step; /* for two keys of a tile */
} fetch;

/* The next rows of K, or the first of V. Not in tables of several parts: theirs wait for products. */
ATTN_INLINE fetch fetch_of(const attn_ahead *ahead)
{
    if (PARTS > 1 || ahead->n == 0) {
        return (fetch){NULL, NULL, 0};
    }
    const int64_t row = 2 * (ahead->k ? pad32(ahead->cols) : PANEL_KEYS), rows = ahead->k ? ahead->n : TILE;
    const char *from = ahead->k ? (const char *)ahead->k + ahead->at * row : (const char *)ahead->v + ahead->at * 2;
    return (fetch){from, from + rows * row, 2 * rows * row / KEY_TILE};
}

ATTN_INLINE void fetch_some(fetch *f)
{
    const char *next = f->from + f->step, *end = next < f->end ? next : f->end;
    for (; f->from < end; f->from += 64) {
        _mm_prefetch(f->from, _MM_HINT_T0);
    }
}

/* P of n keys (n even) and their sums. */
ATTN_INLINE void exponentials(uint16_t *p, const float *s, int64_t n, const reference *r, fetch ahead, vec *sum,
                              const int groups, const bool far)
{
    vec total[2];
    for (int g = 0; g < groups; g++) {
        total[g] = v_set1(0);
    }
    for (int64_t key = 0; key < n; key += 2, s += 2 * STRIP, p += 2 * STRIP) {
        fetch_some(&ahead);
        for (int g = 0; g < groups; g++) {
            const vec a = relative(v_load(s + g * VL), &r[g], far);
            const vec b = relative(v_load(s + STRIP + g * VL), &r[g], far);
            total[g] = v_add(v_add(total[g], a), b);
            store_pair(p + 2 * g * VL, a, b);
        }
    }
    for (int g = 0; g < groups; g++) {
        sum[g] = total[g];
    }
}

/* ---- a tile ---------------------------------------------------------------------------------------------------- */

/* The references of a strip's lanes, in registers from tile to tile. */
typedef struct references {
    reference of[2];
    __mmask16 unseen, far; /* 0 if no lane is */
} references;

ATTN_INLINE void load_references(references *r, const attn_running *state, vec c, const int groups)
{
    r->unseen = r->far = 0;
    for (int g = 0; g < groups; g++) {
        const vec m = v_load((const float *)state->m + g * VL);
        r->unseen |= _mm512_cmp_ps_mask(m, v_set1(-INFINITY), _CMP_EQ_OQ);
        r->of[g] = reference_of(m, c);
        r->far |= far_lanes(&r->of[g]);
    }
}

ATTN_INLINE void tile_probabilities(uint16_t *p, const float *s, int64_t n, const references *r, fetch ahead, vec *sum,
                                    const int groups)
{
    if (r->far) {
        exponentials(p, s, n, r->of, ahead, sum, groups, true);
    } else {
        exponentials(p, s, n, r->of, ahead, sum, groups, false);
    }
}

/* The first maximum of lanes that have no reference yet. */
ATTN_INLINE void first_reference(uint16_t *p, int64_t done, const float *s, int64_t n, vec c, const attn_running *state,
                                 const int groups)
{
    __mmask16 unseen[2];
    for (int g = 0; g < groups; g++) {
        unseen[g] = _mm512_cmp_ps_mask(v_load((const float *)state->m + g * VL), v_set1(-INFINITY), _CMP_EQ_OQ);
    }
    raise_reference(p, done, s, n, c, state, unseen, groups);
}

ATTN_INLINE void softmax_tile(uint16_t *p, int64_t done, float *s, int64_t n, vec c, const attn_running *state,
                              references *r, fetch ahead, const int groups)
{
    const int64_t even = n + n % 2;
    float *l = state->l, *top = state->top;
    uint16_t *to = p + done * STRIP;
    __mmask16 raised[2] = {0, 0};
    vec sum[2];
    for (int g = 0; g < groups; g++) {
        if (n % 2) {
            v_store(s + n * STRIP + g * VL, v_set1(-INFINITY));
        }
        if (top) {
            v_store(top + g * VL, maximum(v_load(top + g * VL), s + g * VL, n));
        }
    }
    if (r->unseen) {
        first_reference(p, done, s, n, c, state, groups);
        load_references(r, state, c, groups);
    }
    tile_probabilities(to, s, even, r, ahead, sum, groups);
    for (int g = 0; g < groups; g++) {
        raised[g] = _mm512_cmp_ps_mask(sum[g], v_set1(1 << SLACK), _CMP_GT_OQ);
    }
    if (raised[0] | raised[1]) {
        raise_reference(p, done, s, n, c, state, raised, groups);
        load_references(r, state, c, groups);
        tile_probabilities(to, s, even, r, (fetch){NULL, NULL, 0}, sum, groups);
    }
    for (int g = 0; g < groups; g++) {
        for (int64_t key = even; key < pad32(n); key += 2) {
            store_pair(to + key * STRIP + 2 * g * VL, v_set1(0), v_set1(0));
        }
        v_store(l + g * VL, v_add(v_load(l + g * VL), sum[g]));
    }
}

/* Before the first tile of a block. */
ATTN_INLINE void start_block(references *r, int64_t done, const attn_running *state, vec c, const int groups)
{
    for (int g = 0; done == 0 && g < groups; g++) {
        v_store((float *)state->alpha + g * VL, v_set1(1));
    }
    load_references(r, state, c, groups);
}

ATTN_INLINE void softmax_groups(uint16_t *p, int64_t done, float *s, int64_t n, vec c, const attn_running *state,
                                const int groups)
{
    references r;
    start_block(&r, done, state, c, groups);
    softmax_tile(p, done, s, n, c, state, &r, fetch_of(&state->ahead), groups);
}

static void softmax(void *p, int64_t done, void *s, int64_t n, double c, const attn_running *state, int lanes)
{
    if (lanes > TILE) {
        softmax_groups(p, done, s, n, v_set1((float)c), state, 2);
    } else {
        softmax_groups(p, done, s, n, v_set1((float)c), state, 1);
    }
}

/* ---- the tiles of a block -------------------------------------------------------------------------------------- */

ATTN_INLINE void qk_softmax_groups(uint16_t *p, int64_t done, float *s, const attn_keys *keys, vec c,
                                   const attn_running *state, const int groups)
{
    references r;
    start_block(&r, done, state, c, groups);
    for (int64_t key = 0, n; key < keys->n; key += n) {
        const int64_t left = keys->n - key, at = keys->at + key;
        n = left < KEY_TILE ? left : KEY_TILE;
        attn_ahead next = {.k = keys->k, .at = at + n, .n = left - n < KEY_TILE ? left - n : KEY_TILE, .cols = keys->d};
        const fetch ahead = fetch_of(left > n ? &next : &state->ahead);
        store_product(s, keys->k, at, keys->qt, keys->d, n, true, groups == 2);
        softmax_tile(p, done + key, s, n, c, state, &r, ahead, groups);
    }
}

static void qk_softmax(void *p, int64_t done, void *s, const attn_keys *keys, double c, const attn_running *state,
                       int lanes)
{
    if (lanes > TILE) {
        qk_softmax_groups(p, done, s, keys, v_set1((float)c), state, 2);
    } else {
        qk_softmax_groups(p, done, s, keys, v_set1((float)c), state, 1);
    }
}
