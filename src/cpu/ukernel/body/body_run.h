/*
 * body_run.h: the part of body.h for one row of Q over keys whose rows lie side by side: scores,
 * softmax and V^T P, block by block. Scores and sums lie side by side, too, so that little else
 * than the rows goes through the caches, and the processor follows the rows by itself. Bits are
 * those of qk_softmax and pv_few.
 */
enum {
    FN(RUN_WIDE) = VL,                     /* most vectors of columns of V at a time .. */
    FN(RUN_ORDER) = 2,                     /* .. of so many keys, where a row has more */
    FN(RUN_COLUMNS) = 16 * VL,             /* most columns of V: members with fetches do better */
    /* Bytes of V, and of the next block of K, that are fetched before a softmax, which reads
     * nothing */
    FN(RUN_AHEAD) = 2048
};

/* Scores of n keys of a block. q: elements of Q, as one_keys takes them. Its loads are not in the
 * order of lines, which are asked for before. */
ATTN_INLINE void FN(run_scores)(real *s, const attn_key_run *run, const char *k, int64_t n,
                                const real *q, const int32_t dtype, const int across)
{
    const int64_t bytes = FN(bytes_of)(run->d, dtype), rows = VL / across;
    attn_soon none = {0};
    for (int64_t key = 0; key < n; key += rows, k += rows * bytes) {
        const char *row[VL];
        for (int64_t i = 0; i < rows * bytes; i += 64) ATTN_PREFETCH_NEAR(k + i);
        ATTN_UNROLL for (int i = 0; i < VL / across; i++) row[i] = k + i * bytes;
        FN(one_keys)(s + key, 1, row, n - key < rows ? n - key : rows, q,
                     run->d / (across * ATTN_DOT_CHUNK), &none, dtype, across);
    }
}

/* P of n keys in place of their scores. Returns the factor of earlier sums. */
ATTN_INLINE real FN(run_softmax)(real *s, int64_t n, real *m, real *l, vec c, vec least)
{
    enum { MANY = SIDE * VL };
    const int count = SIDE;
    vec top = v_set1(*m), d[SIDE], p[SIDE];
    real lanes[VL], most = *m, sum = 0, factor[VL];
    for (int64_t key = n; key % MANY != 0; key++) s[key] = -INFINITY;
    for (int64_t key = 0; key < n; key += VL) top = v_max(top, v_load(s + key));
    v_store(lanes, top);
    for (int i = 0; i < VL; i++) most = lanes[i] > most ? lanes[i] : most;
    const vec used = v_set1(most < -REAL_MAX ? 0 : most);
    for (int64_t key = 0; key < n; key += MANY) {
        EACH d[k] = v_sub(v_load(s + key + k * VL), used);
        FN(exp2_each)(p, d, c, least, count);
        EACH v_store(s + key + k * VL, p[k]);
    }
    for (int64_t key = 0; key < n; key++) sum += s[key];
    v_store(factor, FN(exp2)(v_sub(v_set1(*m), used), c, least));
    *m = most;
    v_store(lanes, v_fma(v_set1(*l), v_set1(factor[0]), v_set1(sum)));
    *l = lanes[0];
    return factor[0];
}

/* x += V^T P of keys of a block, for `width` vectors of columns from column c on. */
ATTN_INLINE void FN(run_columns)(real *x, const char *v, int64_t bytes, const real *p, int64_t n,
                                 const int32_t dtype, const int width)
{
    vec sum[FN(RUN_WIDE)];
    ATTN_UNROLL for (int i = 0; i < width; i++) sum[i] = v_load(x + i * VL);
    for (int64_t key = 0; key < n; key++, v += bytes) {
        const vec one = v_set1(p[key]);
        ATTN_UNROLL for (int i = 0; i < width; i++) sum[i] =
            v_fma(FN(load_row)(v, i * VL, dtype), one, sum[i]);
    }
    ATTN_UNROLL for (int i = 0; i < width; i++) v_store(x + i * VL, sum[i]);
}

/* run_columns for as many groups of `width` vectors as are left from column c on. Returns the first
 * column left. */
ATTN_INLINE int64_t FN(run_groups)(real *x, int64_t c, const attn_key_run *run, const char *v,
                                   const real *p, int64_t n, const int32_t dtype, const int width)
{
    for (; c + width * VL <= run->dv; c += width * VL) {
        FN(run_columns)(x + c, v + FN(bytes_of)(c, dtype), FN(bytes_of)(run->dv, dtype), p, n,
                        dtype, width);
    }
    return c;
}

/* O = O alpha + V^T P over n keys of a block; O = V^T P if they are the first ones. */
ATTN_INLINE void FN(run_values)(real *o, const attn_key_run *run, const char *v, const real *p,
                                int64_t n, real alpha, bool first, const int32_t dtype)
{
    const int64_t vectors = run->dv / VL;
    const bool one_group = vectors <= FN(RUN_WIDE) && (vectors & (vectors - 1)) == 0;
    const int64_t order = one_group ? n : FN(RUN_ORDER), bytes = FN(bytes_of)(run->dv, dtype);
    real x[FN(RUN_COLUMNS)];
    for (int64_t c = 0; c < run->dv; c += VL) v_store(x + c, v_set1(0));
    for (int64_t key = 0; key < n; key += order, v += order * bytes) {
        const int64_t keys = n - key < order ? n - key : order;
        int64_t c = 0;
        ATTN_UNROLL for (int width = FN(RUN_WIDE); width > 0; width /= 2) c =
            FN(run_groups)(x, c, run, v, p + key, keys, dtype, width);
    }
    for (int64_t c = 0; c < run->dv; c += VL) {
        const vec y = v_load(x + c);
        v_store(o + c, first ? y : v_fma(v_load(o + c), v_set1(alpha), y));
    }
}

/* Blocks of keys in turn, `across` chunks of a row of K at a time. */
ATTN_INLINE void FN(run_blocks)(real *ot, const attn_key_run *run, double c_,
                                const attn_running *state, bool first, const int32_t dtype,
                                const int across)
{
    const vec c = v_set1((real)c_), least = v_set1((real)(EXP2_MIN / c_));
    const char *k = run->k, *v = run->v;
    real s[ATTN_KEY_BLOCK], o[FN(RUN_COLUMNS)], q[FN(TURNS) * ATTN_DOT_CHUNK * VL];
    if (across > 1) {
        FN(one_q)(q, run->qt, run->d, across);
    }
    for (int64_t i = 0; i < run->dv && !first; i++) o[i] = ot[i * STRIP];
    for (int64_t left = run->n; left > 0; left -= ATTN_KEY_BLOCK, first = false) {
        const int64_t n = left < ATTN_KEY_BLOCK ? left : ATTN_KEY_BLOCK;
        FN(run_scores)(s, run, k, n, across > 1 ? q : (const real *)run->qt, dtype, across);
        k += n * FN(bytes_of)(run->d, dtype);
        for (int i = 0; i < FN(RUN_AHEAD); i += 64) {
            ATTN_PREFETCH(v + i);
            ATTN_PREFETCH(k + i);
        }
        const real alpha = FN(run_softmax)(s, n, state->m, state->l, c, least);
        FN(run_values)(o, run, v, s, n, alpha, first, dtype);
        v += n * FN(bytes_of)(run->dv, dtype);
    }
    for (int64_t i = 0; i < run->dv; i++) ot[i * STRIP] = o[i];
}

ATTN_INLINE void FN(run_of)(real *ot, const attn_key_run *run, double c, const attn_running *state,
                            bool first, const int32_t dtype)
{
    switch (FN(chunks_across)(run->d, run->n)) {
    case 1: FN(run_blocks)(ot, run, c, state, first, dtype, 1); break;
    case 2: FN(run_blocks)(ot, run, c, state, first, dtype, 2); break;
    case 4: FN(run_blocks)(ot, run, c, state, first, dtype, 4); break;
    default: FN(run_blocks)(ot, run, c, state, first, dtype, 8);
    }
}

static void FN(run_row)(void *ot, const attn_key_run *run, double c, const attn_running *state,
                        bool first)
{
    switch (REAL_BITS == 32 ? run->dtype : FN(OWN)) {
    case ATTN_F16: FN(run_of)(ot, run, c, state, first, ATTN_F16); return;
    case ATTN_BF16: FN(run_of)(ot, run, c, state, first, ATTN_BF16); return;
    default: FN(run_of)(ot, run, c, state, first, FN(OWN));
    }
}

/* True for rows that run_row takes. */
static bool FN(takes_run)(int32_t dtype, int64_t d, int64_t dv)
{
    return !attn_is_code(dtype) && FN(takes_rows)(dtype, d) && FN(takes_rows)(dtype, dv) &&
           d % ATTN_DOT_CHUNK == 0 && dv <= FN(RUN_COLUMNS);
}
