/*
 * body_softmax.h: the part of body.h that takes one step of the softmax over a tile of scores, in
 * place. Also for tables with products of their own (avx512bf16/codes.c).
 */

/* ---- softmax of at most four lanes ----------------------------------------------------------- */

#if defined v_repeat_quad && REAL_BITS == 32
#define FOURS(s) ((real (*)[4])(uintptr_t)(s)) /* rows of four lanes */
enum { FN(EACH_QUAD) = VL / 4 }; /* keys of a vector */

/* max(top, S) of four lanes. */
ATTN_INLINE vec FN(quads_maximum)(vec top, const real *s, int64_t n)
{
    real quads[VL];
    vec of[2] = {v_repeat_quad(top), v_repeat_quad(top)};
    int64_t key = 0;
    for (; key + 2 * FN(EACH_QUAD) <= n; key += 2 * FN(EACH_QUAD), s += 2 * FN(EACH_QUAD) * STRIP) {
        of[0] = v_max(of[0], v_load_quads(FOURS(s), STRIP / 4));
        of[1] = v_max(of[1], v_load_quads(FOURS(s + FN(EACH_QUAD) * STRIP), STRIP / 4));
    }
    v_store(quads, v_max(of[0], of[1]));
    for (int i = 0; i < VL; i += 4) top = v_max(top, v_load4(quads + i));
    for (; key < n; key++, s += STRIP) top = v_max(top, v_load4(s));
    return top;
}

/* P of the keys of `count` vectors in place of their scores; returns sum + P, in their order. */
ATTN_INLINE vec FN(quads_exponentials)(real *s, vec sum, vec used, vec c, vec least,
                                       const int count)
{
    const int step = FN(EACH_QUAD) * STRIP;
    vec d[SIDE], p[SIDE];
    EACH d[k] = v_sub(v_load_quads(FOURS(s + k * step), STRIP / 4), used);
    FN(exp2_each)(p, d, c, least, count);
    EACH v_store_quads(FOURS(s + k * step), STRIP / 4, p[k]);
    EACH sum = v_add_quads(sum, p[k]);
    return sum;
}

/* softmax() with several keys to a vector; false for other numbers of lanes. */
static bool FN(quads_softmax)(real *s, int64_t n, double c_, const attn_running *state, int lanes)
{
    const vec c = v_set1((real)c_), least = v_set1((real)(EXP2_MIN / c_));
    real *m = state->m, *l = state->l;
    if (lanes > 4) {
        return false;
    }
    const vec old = v_load4(m), top = FN(quads_maximum)(old, s, n);
    const vec used = v_zero_lt(top, v_set1(-REAL_MAX), top), four = v_repeat_quad(used);
    const int64_t many = SIDE * FN(EACH_QUAD);
    vec sum = v_set1(0);
    int64_t key = 0;
    for (; key + many <= n; key += many, s += many * STRIP) {
        sum = FN(quads_exponentials)(s, sum, four, c, least, SIDE);
    }
    for (; key + FN(EACH_QUAD) <= n; key += FN(EACH_QUAD), s += FN(EACH_QUAD) * STRIP) {
        sum = FN(quads_exponentials)(s, sum, four, c, least, 1);
    }
    for (; key < n; key++, s += STRIP) {
        const vec p = FN(exp2)(v_sub(v_load4(s), used), c, least);
        v_store4(s, p);
        sum = v_add(sum, p);
    }
    const vec a = FN(exp2)(v_sub(old, used), c, least);
    v_store4(m, top);
    v_store4(l, v_fma(v_load4(l), a, sum));
    v_store4((real *)state->alpha, a);
    return true;
}
#undef FOURS
#else
static bool FN(quads_softmax)(real *s, int64_t n, double c, const attn_running *state, int lanes)
{
    (void)s, (void)n, (void)c, (void)state, (void)lanes;
    return false;
}
#endif

/* ---- softmax --------------------------------------------------------------------------------- */

/* The maximum of top and n scores, in chains side by side: one alone would wait for itself. */
ATTN_INLINE vec FN(maximum)(vec top, const real *s, int64_t n)
{
    vec of[SIDE];
    int64_t key = 0;
    ATTN_UNROLL for (int k = 0; k < SIDE; k++) of[k] = top;
    for (; key <= n - SIDE; key += SIDE) {
        ATTN_UNROLL for (int k = 0; k < SIDE; k++) of[k] =
            v_max(of[k], v_load(s + (key + k) * STRIP));
    }
    for (; key < n; key++) of[0] = v_max(of[0], v_load(s + key * STRIP));
    ATTN_UNROLL for (int k = 1; k < SIDE; k++) of[0] = v_max(of[0], of[k]);
    return of[0];
}

/* P of `count` keys in place of their scores; returns sum + P, in their order. */
ATTN_INLINE vec FN(exponentials)(real *s, vec sum, vec used, vec c, vec least, const int count)
{
    vec d[SIDE], p[SIDE];
    EACH d[k] = v_sub(v_load(s + k * STRIP), used);
    FN(exp2_each)(p, d, c, least, count);
    EACH v_store(s + k * STRIP, p[k]);
    EACH sum = v_add(sum, p[k]);
    return sum;
}

/* One vector of lanes at a time: the constants of exp2, one reference and one sum fill the 16
 * registers of AVX2. */
static void FN(softmax)(void *p_, int64_t done, void *s_, int64_t n, double c_,
                        const attn_running *state, int lanes)
{
    const vec c = v_set1((real)c_), least = v_set1((real)(EXP2_MIN / c_));
    (void)p_, (void)done; /* in place */
    if (FN(quads_softmax)(s_, n, c_, state, lanes)) {
        return;
    }
    for (int lane = 0; lane < lanes; lane += VL) {
        real *s = (real *)s_ + lane, *m = (real *)state->m + lane, *l = (real *)state->l + lane;
        const vec old = v_load(m), top = FN(maximum)(old, s, n);
        /* nothing seen yet: any finite reference */
        const vec used = v_zero_lt(top, v_set1(-REAL_MAX), top);
        vec sum = v_set1(0);
        int64_t key = 0;
        for (; key <= n - SIDE; key += SIDE, s += SIDE * STRIP) {
            sum = FN(exponentials)(s, sum, used, c, least, SIDE);
        }
        for (; key < n; key++, s += STRIP) sum = FN(exponentials)(s, sum, used, c, least, 1);
        const vec a = FN(exp2)(v_sub(old, used), c, least);
        v_store(m, top);
        v_store(l, v_fma(v_load(l), a, sum));
        v_store((real *)state->alpha + lane, a);
    }
}
