/*
 * body_run_few.h: scores and V^T P of RUN_LANES rows of Q for body_run.h. A step fetches as many
 * lines as it reads, of rows that are FEW_DISTANCE ahead and in their order, a few at a time.
 */
enum {
    FN(RUN_VALUES) = 4 * VL, /* keys whose rows of V are read by all groups of columns in turn */
    FN(RUN_NEAR) = 8192      /* bytes of them, if they are copied: a quarter of the L1 cache */
};

/* Fetches the next lines. */
ATTN_INLINE void FN(run_fetch)(FN(run_soon) *soon, int64_t lines)
{
    for (int64_t i = 0; i < lines; i++) {
        ATTN_PREFETCH(soon->at);
        soon->at += 64;
        if (soon->at >= soon->end) {
            soon->row += soon->row < soon->last;
            soon->at = *soon->row, soon->end = soon->at + soon->bytes;
        }
    }
}

/* Columns that are moved to lanes at a time. */
ATTN_INLINE int FN(run_width)(const int32_t dtype)
{
#ifdef v_columns_f16
    if (dtype == ATTN_F16) {
        return 2 * VL;
    }
#endif
    (void)dtype;
    return FN(RUN);
}

/* x[i] = column c + i of VL rows, i < run_width. */
ATTN_INLINE void FN(run_columns_of)(vec *x, const char *const *at, int64_t c, const int32_t dtype)
{
#ifdef v_columns_f16
    if (dtype == ATTN_F16) {
        v_columns_f16(x, at, c * 2);
        return;
    }
#endif
#ifdef RUN_BY_QUADS
    if (RUN_BY_QUADS(dtype)) {
        FN(by_quads)(x, at, c, dtype);
        return;
    }
#endif
    FN(one_run)(x, at, c, dtype);
}

/* x[column][key] = a chunk of columns of RUN_KEYS rows. by: of codes. */
ATTN_INLINE void FN(run_chunk)(real (*x)[FN(RUN_KEYS)], const char *const *at, int64_t c,
                               const FN(run_factors) * by, const int32_t dtype)
{
    const int width = FN(run_width)(dtype);
#ifdef RUN_CODES
    if (attn_is_code(dtype)) {
        FN(run_codes)(x, at, c, by, dtype);
        return;
    }
#endif
    (void)by;
    ATTN_UNROLL for (int side = 0; side < FN(RUN_KEYS); side += VL) {
        ATTN_UNROLL for (int i = 0; i < ATTN_DOT_CHUNK; i += width) {
            vec y[2 * VL];
            FN(run_columns_of)(y, at + side, c + i, dtype);
            ATTN_UNROLL for (int j = 0; j < width; j++) v_store(x[i + j] + side, y[j]);
        }
    }
}

/* Adds products of a chunk of columns of RUN_KEYS keys to their scores, or begins these. A line is
 * fetched for every `line` columns. */
ATTN_INLINE void FN(few_run_products)(real *s, real (*x)[FN(RUN_KEYS)], const real *q, bool first,
                                      FN(run_soon) *soon, const int line)
{
    enum { SIDES = FN(RUN_KEYS) / VL, MANY = RUN_LANES * SIDES };
    FN(run_soon) here = *soon;
    vec sum[MANY];
    ATTN_UNROLL for (int i = 0; i < MANY; i++) sum[i] = v_set1(0);
    for (int c = 0; c < ATTN_DOT_CHUNK; c += line, q += line * RUN_LANES) {
        FN(run_fetch)(&here, 1);
        ATTN_UNROLL for (int j = 0; j < line; j++) {
            ATTN_UNROLL for (int i = 0; i < MANY; i++) sum[i] =
                v_fma(v_load(x[c + j] + i % SIDES * VL), v_set1(q[j * RUN_LANES + i / SIDES]),
                      sum[i]);
        }
    }
    ATTN_UNROLL for (int i = 0; i < MANY; i++) {
        real *to = s + i / SIDES * ATTN_KEY_BLOCK + i % SIDES * VL;
        v_store(to, first ? sum[i] : v_add(v_load(to), sum[i]));
    }
    *soon = here;
}

/* The same as a function of its own: beside all else at hand gcc would keep the place of the next
 * line in memory. */
static ATTN_NOINLINE void FN(few_run_chunk)(real *s, real (*x)[FN(RUN_KEYS)], const real *q,
                                            bool first, FN(run_soon) *soon, int64_t line)
{
    switch (line) {
    case 1: FN(few_run_products)(s, x, q, first, soon, 1); return;
    case 2: FN(few_run_products)(s, x, q, first, soon, 2); return;
    case 4: FN(few_run_products)(s, x, q, first, soon, 4); return;
    default: FN(few_run_products)(s, x, q, first, soon, 8);
    }
}

/* Scores of n keys from `first` on. q: elements of all rows for each column. Columns are moved to
 * lanes before they are multiplied: both at once would take more registers than there are. */
ATTN_INLINE void FN(few_run_keys_of)(FN(run_scores) * s, const attn_key_run *run, int64_t first,
                                     int64_t n, const real *q, FN(run_soon) *soon,
                                     const int32_t dtype)
{
    const int64_t groups = run->k_groups, group = run->d / groups;
    const char *const *k = run->k + first;
    FN(run_factors) factors[ATTN_MAX_KEY_GROUPS];
    real x[ATTN_DOT_CHUNK][FN(RUN_KEYS)];
    for (int64_t key = 0; key < n; key += FN(RUN_KEYS)) {
        const char *last[FN(RUN_KEYS)], *const *at = k + key;
        if (n - key < FN(RUN_KEYS)) { /* those that are missing repeat the last one */
            for (int i = 0; i < FN(RUN_KEYS); i++) last[i] = k[key + i < n ? key + i : n - 1];
            at = last;
        }
        if (attn_is_code(dtype)) {
            const int64_t from = (first + key) * groups;
            FN(run_factors_of)(factors, run->k_scale + from, run->k_shift + from, groups, n - key);
        }
        const FN(run_factors) *by = factors;
        for (int64_t c = 0, next = group; c < run->d; c += ATTN_DOT_CHUNK) {
            if (attn_is_code(dtype) && c == next) {
                next += group, by++;
            }
            FN(run_chunk)(x, at, c, by, dtype);
            FN(few_run_chunk)(s[0] + key, x, q + c * RUN_LANES, c == 0, soon,
                              64 / FN(bytes_of)(FN(RUN_KEYS), dtype));
        }
    }
}

/* Scales and shifts of codes of V for a group of columns, `step` from key to key. */
typedef struct FN(run_by) {
    const float *scale, *shift; /* of the first key */
    int64_t step;
} FN(run_by);

/* Adds V^T P of keys key .. end-1, `width` vectors of columns from column c on. p: of rows of Q,
 * ATTN_KEY_BLOCK apart. by: of codes. */
ATTN_INLINE void FN(few_run_some)(vec (*sum)[FN(RUN_WIDE)], int64_t c, const char *const *v,
                                  const FN(run_by) * by, const real *p, int64_t key, int64_t end,
                                  const int32_t dtype, const int width)
{
    const int64_t byte = FN(bytes_of)(c, dtype);
    for (; key < end; key++) {
        vec y[FN(RUN_WIDE)];
        FN(run_load)(y, v[key] + byte, dtype, width);
        if (attn_is_code(dtype)) {
            const vec scale = v_set1((real)by->scale[key * by->step]),
                      shift = v_set1((real)by->shift[key * by->step]);
            ATTN_UNROLL for (int i = 0; i < width; i++) y[i] = v_fma(scale, y[i], shift);
        }
        ATTN_UNROLL for (int r = 0; r < RUN_LANES; r++) {
            const vec one = v_set1(p[r * ATTN_KEY_BLOCK + key]);
            ATTN_UNROLL for (int i = 0; i < width; i++) sum[r][i] = v_fma(y[i], one, sum[r][i]);
        }
    }
}

/* x += V^T P of n keys for `width` vectors of columns from column c on. Keys go by as many as have
 * whole lines of them. */
ATTN_INLINE void FN(few_run_columns)(FN(run_sums) * x, int64_t c, const char *const *v,
                                     const FN(run_by) * by, const real *p, int64_t n,
                                     FN(run_soon) *soon, const int32_t dtype, const int width)
{
    const int64_t keys = dtype == ATTN_I4X2 ? 8 : 4,
                  lines = keys * FN(bytes_of)(width * VL, dtype) / 64;
    int64_t key = 0;
    vec sum[RUN_LANES][FN(RUN_WIDE)];
    const bool pairs = v_in_pairs(dtype) && width % 2 == 0;
    ATTN_UNROLL for (int r = 0; r < RUN_LANES; r++) {
        ATTN_UNROLL for (int i = 0; i < width; i++) sum[r][i] = v_load(x[r] + c + i * VL);
        ATTN_UNROLL for (int i = 0; i < width && pairs; i += 2) v_to_pairs(sum[r] + i);
    }
    for (; key + keys <= n; key += keys) {
        FN(run_fetch)(soon, lines);
        FN(few_run_some)(sum, c, v, by, p, key, key + keys, dtype, width);
    }
    FN(few_run_some)(sum, c, v, by, p, key, n, dtype, width);
    ATTN_UNROLL for (int r = 0; r < RUN_LANES; r++) {
        ATTN_UNROLL for (int i = 0; i < width && pairs; i += 2) v_from_pairs(sum[r] + i);
        ATTN_UNROLL for (int i = 0; i < width; i++) v_store(x[r] + c + i * VL, sum[r][i]);
    }
}

/* Most vectors of columns of V at a time. Of 32 registers 16 hold sums; of 16, twelve, or eight
 * beside numbers that are widened: gcc keeps some of twelve in memory. */
ATTN_INLINE int FN(run_widest)(const int32_t dtype)
{
    return VL == 16 ? 4 : dtype == FN(OWN) ? 3 : 2;
}

/* x += V^T P of n <= RUN_VALUES rows of V. by: of codes. */
ATTN_INLINE void FN(few_run_values_of)(FN(run_sums) * x, const attn_key_run *run,
                                       const char *const *v, FN(run_by) by, const real *p,
                                       int64_t n, FN(run_soon) *soon, const int32_t dtype)
{
    const int64_t group = run->dv / run->v_groups;
    FN(run_soon) here = *soon;
    int64_t c = 0, next = group;
    ATTN_UNROLL for (int width = FN(run_widest)(dtype); width > 0; width--) {
        const bool fits = !attn_is_code(dtype) || group % (width * VL) == 0;
        for (; fits && c + width * VL <= run->dv; c += width * VL) {
            if (attn_is_code(dtype) && c == next) {
                next += group, by.scale++, by.shift++;
            }
            FN(few_run_columns)(x, c, v, &by, p, n, &here, dtype, width);
        }
    }
    *soon = here;
}

/* Functions of their own, a case for each type: beside all else of a block the registers would be
 * too few. */
static ATTN_NOINLINE void FN(few_run_keys)(FN(run_scores) * s, const attn_key_run *run,
                                           int64_t key, int64_t n, const real *q,
                                           FN(run_soon) *soon)
{
    switch (run->dtype) {
    case ATTN_F16: FN(few_run_keys_of)(s, run, key, n, q, soon, ATTN_F16); return;
    case ATTN_BF16: FN(few_run_keys_of)(s, run, key, n, q, soon, ATTN_BF16); return;
    RUN_CODE_CASES(FN(few_run_keys_of), s, run, key, n, q, soon)
    default: FN(few_run_keys_of)(s, run, key, n, q, soon, FN(OWN));
    }
}

static ATTN_NOINLINE void FN(few_run_values)(FN(run_sums) * x, const attn_key_run *run,
                                             const char *const *v, const FN(run_by) * by,
                                             const real *p, int64_t n, FN(run_soon) *soon)
{
    switch (run->dtype) {
    case ATTN_F16: FN(few_run_values_of)(x, run, v, *by, p, n, soon, ATTN_F16); return;
    case ATTN_BF16: FN(few_run_values_of)(x, run, v, *by, p, n, soon, ATTN_BF16); return;
    RUN_CODE_CASES(FN(few_run_values_of), x, run, v, *by, p, n, soon)
    default: FN(few_run_values_of)(x, run, v, *by, p, n, soon, FN(OWN));
    }
}

/* Copies n rows to `room`; at: their places there. */
ATTN_INLINE void FN(run_near)(const char **at, char *room, const char *const *row, int64_t n,
                              int64_t bytes)
{
    const int64_t step = sizeof(vec);
    for (int64_t key = 0; key < n; key++, room += bytes) {
        int64_t i = 0;
        for (; i + step <= bytes; i += step) {
            v_store((real *)(void *)(room + i), v_load((const real *)(const void *)(row[key] + i)));
        }
        if (i < bytes) {
            memcpy(room + i, row[key] + i, (size_t)(bytes - i));
        }
        at[key] = room;
    }
}

/* x += V^T P of n keys from `key` on. Scattered rows are copied first: each group of columns reads
 * them at a distance of which few fit in the L1 cache, and the processor foresees rows of one
 * distance only. Codes, a row of which has fewer lines, gain nothing. */
ATTN_INLINE void FN(few_run_add)(FN(run_sums) * x, const attn_key_run *run, int64_t key,
                                 FN(run_scores) * p, int64_t n, FN(run_soon) *soon)
{
    const int64_t bytes = FN(bytes_of)(run->dv, run->dtype), room = FN(RUN_NEAR) / bytes;
    const bool copy = run->scattered && !attn_is_code(run->dtype);
    const int64_t most = copy && room < FN(RUN_VALUES) ? room : FN(RUN_VALUES);
    const char *near[FN(RUN_VALUES)];
    vec copies[FN(RUN_NEAR) / sizeof(vec)];
    for (int64_t at = 0; at < n; at += most) {
        const int64_t count = n - at < most ? n - at : most;
        const char *const *v = run->v + key + at;
        FN(run_by) by = {.step = run->v_groups};
        if (attn_is_code(run->dtype)) {
            by.scale = run->v_scale + (key + at) * by.step;
            by.shift = run->v_shift + (key + at) * by.step;
        }
        if (copy) {
            FN(run_near)(near, (char *)copies, v, count, bytes);
            v = near;
        }
        FN(few_run_values)(x, run, v, &by, p[0] + at, count, soon);
    }
}
