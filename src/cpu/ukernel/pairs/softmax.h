/*
 * softmax.h: probabilities of scores, as pairs of keys, and their reference. The softmax of a tile
 * is in softmax_tile.h.
 *
 * The reference m of a lane is the maximum at the time of its last raise. It rises only when the
 * sum of a tile's probabilities exceeds 2^SLACK. So the first pass over a tile is nearly always the
 * only one, and takes no maxima. A lane depends on its own scores alone. Probabilities of up to
 * 2^SLACK cost no accuracy: their parts are floating-point numbers.
 */
enum { SLACK = 8 };

/* Probabilities below 2^LEAST_BITS are 0. The last of three parts is 2^-16 of the number or less,
 * and subnormal numbers take many times as long as others. */
#define LEAST_BITS (PARTS == 3 ? -110.0f : EXP2_MIN)

/* ---- references ------------------------------------------------------------------------------ */

/* The reference of the probabilities of 16 lanes: 2^((x - m) c). With FUSED_EXPONENT it is 2^(x c -
 * mc), an operation less. The rounding of mc is then a factor of everything relative to m, O and l
 * alike, and for LSE no more than half an ulp; lanes whose mc is so large that the factor would not
 * be near 1 are `far` and subtract first. */
typedef struct reference {
    vec m, mc, c, least;
} reference;

/* m = -inf, nothing seen yet, stands for any finite reference. */
ATTN_INLINE reference reference_of(vec m, vec c)
{
    const vec finite = v_zero_lt(m, v_set1(-REAL_MAX), m);
    return (reference){finite, v_mul(finite, c), c,
                       FUSED_EXPONENT ? c : v_div(v_set1(LEAST_BITS), c)};
}

ATTN_INLINE lane_mask far_lanes(const reference *r)
{
    return FUSED_EXPONENT ? v_not_lt(v_abs(r->mc), v_set1(1024)) : 0;
}

/* A score's distance from the reference, times c with FUSED_EXPONENT; `far` is false if no lane
 * is. */
ATTN_INLINE vec distance(vec x, const reference *r, const bool far)
{
    if (!FUSED_EXPONENT) {
        return v_sub(x, r->m);
    }
    const vec z = v_fms(x, r->c, r->mc);
    return far ? v_pick(far_lanes(r), v_mul(v_sub(x, r->m), r->c), z) : z;
}

ATTN_INLINE vec probability(vec d, vec c, vec least, const bool flushes)
{
    vec p;
    probabilities(&p, &d, c, least, 1, flushes);
    return p;
}

/* The factor of sums relative to `old`: exactly 1 if the new reference is the old one. */
ATTN_INLINE vec rescale(vec old, const reference *r)
{
    if (!FUSED_EXPONENT) {
        return probability(v_sub(old, r->m), r->c, r->least, false);
    }
    const vec z = v_sub(v_mul(old, r->c), r->mc);
    return probability(v_pick(far_lanes(r), v_mul(v_sub(old, r->m), r->c), z), v_set1(1),
                       r->least, false);
}

/* ---- P --------------------------------------------------------------------------------------- */

/* Dwords of 16 lanes, each a in the lower half and b in the upper one; a and b as split() gives
 * them. */
ATTN_INLINE void store_parts(uint16_t *p, const dwords *a, const dwords *b)
{
    for (int i = 0; i < PARTS; i++) {
        d_store(p + i * P_PART, d_upper_halves(a[i], b[i]));
    }
}

ATTN_INLINE void store_pair(uint16_t *p, vec a, vec b)
{
    dwords a_part[PARTS], b_part[PARTS];
    split_probability(a_part, a);
    split_probability(b_part, b);
    store_parts(p, a_part, b_part);
}

/* x a; of three parts 0 where that is below 2^LEAST_BITS. */
ATTN_INLINE vec scaled(vec x, vec a)
{
    const vec least = v_div(v_set1(0x1p-110f), a);
    return v_mul(PARTS == 3 ? v_zero_lt(x, least, x) : x, a);
}

/* Multiplies P of two keys by a and b in `lanes`. Other lanes keep their parts: a number that is
 * split again may get other parts, and products that leave parts out would have other bits. */
ATTN_INLINE void scale_pair(uint16_t *p, vec a, vec b, lane_mask lanes)
{
    dwords before[PARTS];
    vec first = v_set1(0), second = v_set1(0);
    for (int part = PARTS - 1; part >= 0; part--) { /* exact: these are the parts of a float */
        const dwords x = before[part] = d_load(p + part * P_PART);
        first = v_add(first, d_floats(x));
        second = v_add(second, d_odd_floats(x));
    }
    store_pair(p, scaled(first, a), scaled(second, b));
    for (int part = 0; part < PARTS; part++) {
        d_keep_lanes(p + part * P_PART, before[part], lanes);
    }
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
ATTN_INLINE void raise_reference(uint16_t *p, int64_t done, const float *s, int64_t n, vec c,
                                 const attn_running *state, const lane_mask *raised,
                                 const int groups)
{
    for (int g = 0; g < groups; g++) {
        float *m = (float *)state->m + g * VL, *l = (float *)state->l + g * VL,
              *alpha = (float *)state->alpha + g * VL;
        const vec old = v_load(m),
                  new = v_pick(raised[g], maximum(old, s + g * VL, n), old);
        const reference r = reference_of(new, c);
        const vec a = rescale(old, &r);
        v_store(m, new);
        v_store(l, v_mul(v_load(l), a));
        v_store(alpha, v_mul(v_load(alpha), a));
        for (int64_t key = 0; key < done; key += 2) {
            scale_pair(p + key * STRIP + 2 * g * VL, a, a, raised[g]);
        }
    }
}

/* Lines to fetch into the first-level cache during a softmax: its load ports are free, those of
 * tile products are not. Tile products mostly wait for K and V from the second level. */
typedef struct fetch {
    const char *from, *end;
    int64_t step; /* for two keys of a tile */
    attn_soon *soon;
    int64_t elements; /* likewise */
} fetch;

/* No lines of panels, at any address. */
ATTN_INLINE fetch no_lines(const void *at, attn_soon *soon, int64_t elements)
{
    return (fetch){at, at, 0, soon, elements};
}

/* The next rows of K, or the first of V. Not in tables of several parts: theirs wait for
 * products. */
ATTN_INLINE fetch fetch_of(const attn_ahead *ahead)
{
    if (PARTS > 1 || ahead->n == 0) {
        return no_lines(ahead, ahead->soon, ahead->cols);
    }
    const int64_t row = ahead->k ? 2 * k_pad(ahead->cols) : V_COLUMN_BYTES,
                  rows = ahead->k ? ahead->n : GROUP;
    const char *from = ahead->k ? (const char *)ahead->k + ahead->at * row
                                : (const char *)ahead->v + v_key_bytes(ahead->at);
    return (fetch){from, from + rows * row, 2 * rows * row / KEY_TILE, ahead->soon,
                   ahead->cols};
}

/* Fetches the lines that are due for so many pairs of keys. */
ATTN_INLINE void fetch_some(fetch *f, int64_t pairs)
{
    attn_fetch_soon(f->soon, pairs * f->elements);
    const char *next = f->from + pairs * f->step, *end = next < f->end ? next : f->end;
    for (; f->from < end; f->from += 64) {
        __builtin_prefetch(f->from);
    }
}

/* The references of a strip's lanes, in registers from tile to tile. */
typedef struct references {
    reference of[2];
    lane_mask unseen, far; /* 0 if no lane is */
} references;

ATTN_INLINE void load_references(references *r, const attn_running *state, vec c, const int groups)
{
    r->unseen = r->far = 0;
    for (int g = 0; g < groups; g++) {
        const vec m = v_load((const float *)state->m + g * VL);
        r->unseen |= v_eq(m, v_set1(-INFINITY));
        r->of[g] = reference_of(m, c);
        r->far |= far_lanes(&r->of[g]);
    }
}

/* ---- exponentials ---------------------------------------------------------------------------- */

/* P of a tile, two keys at a time, and their sums. */
typedef struct exponentials {
    uint16_t *p;
    const float *s;
    int64_t pairs; /* of keys that are left */
    reference of[2];
    vec sum[2]; /* constant indices: or else the compiler keeps all of it in memory */
    fetch ahead;
    int64_t due, share, slots; /* some_pairs() has `slots` turns for `share` pairs */
} exponentials;

/* For n keys (n even). */
ATTN_INLINE exponentials exponentials_of(uint16_t *p, const float *s, int64_t n,
                                         const references *r, fetch ahead)
{
    return (exponentials){
        .p = p,
        .s = s,
        .pairs = n / 2,
        .of = {r->of[0], r->of[1]},
        .sum = {v_set1(0), v_set1(0)},
        .ahead = ahead,
    };
}

/* Two keys: ASIDE of their vectors at a time. */
ATTN_INLINE void next_pair(exponentials *e, const int groups, const bool far)
{
    const int all = 2 * groups, count = all < ASIDE ? all : ASIDE;
    const vec c = FUSED_EXPONENT ? v_set1(1) : e->of[0].c;
    vec d[4], p[4];
    fetch_some(&e->ahead, 1);
    ATTN_UNROLL for (int i = 0; i < all; i += count)
    {
        EACH d[i + k] = distance(v_load(e->s + (i + k) % 2 * STRIP + (i + k) / 2 * VL),
                                 &e->of[(i + k) / 2], far);
        probabilities(p + i, d + i, c, e->of[0].least, count, FLUSHES);
    }
    ATTN_UNROLL for (int g = 0; g < groups; g++)
    {
        e->sum[g] = v_add(v_add(e->sum[g], p[2 * g]), p[2 * g + 1]);
        store_pair(e->p + 2 * g * VL, p[2 * g], p[2 * g + 1]);
    }
    e->s += 2 * STRIP, e->p += 2 * STRIP, e->pairs--;
}

/* Does all remaining pairs. True if the reference of a lane is too low, `raised`. */
ATTN_INLINE bool last_pairs(exponentials *e, const int groups, bool far, lane_mask *raised)
{
    if (far) {
        while (e->pairs > 0) {
            next_pair(e, groups, true);
        }
    } else {
        while (e->pairs > 0) {
            next_pair(e, groups, false);
        }
    }
    const vec most = v_set1(1 << SLACK);
    raised[0] = v_gt(e->sum[0], most);
    raised[1] = v_gt(e->sum[1], most);
    return raised[0] | raised[1];
}

/* Does some pairs between two products. */
ATTN_INLINE void some_pairs(exponentials *e)
{
    e->due += e->share;
    if (e->due >= e->slots && e->pairs > 0) {
        e->due -= e->slots;
        next_pair(e, 2, false);
    }
}
