/*
 * body_run_few.h: scores and V^T P of RUN_LANES rows of Q for body_run.h. A step fetches as many
 * lines as it reads, RUN_DISTANCE ahead and in their order, a few at a time.
 */
enum {
    FN(RUN_KEYS) = 2 * VL,   /* keys whose scores are computed at a time */
    FN(RUN_VALUES) = 4 * VL  /* keys whose rows of V are read by all groups of columns in turn */
};

/* Fetches lines from `at` on. Returns the end of them. */
ATTN_INLINE const char *FN(run_fetch)(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) ATTN_PREFETCH(at + i);
    return at + bytes;
}

/* x[i] = column c + i of VL rows, i < 2 VL of f16, RUN of others. Returns how many. */
ATTN_INLINE int FN(run_columns_of)(vec *x, const char *const *at, int64_t c, const int32_t dtype)
{
#ifdef v_columns_f16
    if (dtype == ATTN_F16) {
        v_columns_f16(x, at, c * 2);
        return 2 * VL;
    }
#endif
    FN(one_run)(x, at, c, dtype);
    return FN(RUN);
}

/* x[column][key] = a chunk of columns of RUN_KEYS rows. Fetches lines from `ahead` on; returns
 * their end. */
ATTN_INLINE const char *FN(run_chunk)(real (*x)[FN(RUN_KEYS)], const char *const *at, int64_t c,
                                      const char *ahead, const int32_t dtype)
{
    ATTN_UNROLL for (int side = 0; side < FN(RUN_KEYS); side += VL) {
        for (int i = 0, n; i < ATTN_DOT_CHUNK; i += n) {
            vec y[2 * VL];
            n = FN(run_columns_of)(y, at + side, c + i, dtype);
            ahead = FN(run_fetch)(ahead, FN(bytes_of)(n * VL, dtype));
            ATTN_UNROLL for (int j = 0; j < n; j++) v_store(x[i + j] + side, y[j]);
        }
    }
    return ahead;
}

/* Scores of n keys of a block. q: elements of all rows for each column. Columns are moved to lanes
 * before they are multiplied: both at once would take more registers than there are. */
ATTN_INLINE void FN(few_run_keys)(FN(run_scores) * s, const attn_key_run *run, const char *k,
                                  int64_t n, const real *q, const int32_t dtype)
{
    enum { SIDES = FN(RUN_KEYS) / VL, MANY = RUN_LANES * SIDES };
    const int64_t bytes = FN(bytes_of)(run->d, dtype);
    const char *ahead = k + RUN_DISTANCE;
    real x[ATTN_DOT_CHUNK][FN(RUN_KEYS)];
    for (int64_t key = 0; key < n; key += FN(RUN_KEYS)) {
        const char *at[FN(RUN_KEYS)];
        vec sum[MANY];
        ATTN_UNROLL for (int i = 0; i < MANY; i++) sum[i] = v_set1(0);
        for (int i = 0; i < FN(RUN_KEYS); i++) at[i] = k + (key + i < n ? key + i : n - 1) * bytes;
        for (int64_t first = 0; first < run->d; first += ATTN_DOT_CHUNK) {
            const real *of = q + first * RUN_LANES;
            vec chunk[MANY];
            ahead = FN(run_chunk)(x, at, first, ahead, dtype);
            ATTN_UNROLL for (int i = 0; i < MANY; i++) chunk[i] = v_set1(0);
            for (int c = 0; c < ATTN_DOT_CHUNK; c++, of += RUN_LANES) {
                ATTN_UNROLL for (int i = 0; i < MANY; i++) chunk[i] =
                    v_fma(v_load(x[c] + i % SIDES * VL), v_set1(of[i / SIDES]), chunk[i]);
            }
            ATTN_UNROLL for (int i = 0; i < MANY; i++) sum[i] =
                first > 0 ? v_add(sum[i], chunk[i]) : chunk[i];
        }
        ATTN_UNROLL for (int i = 0; i < MANY; i++)
            v_store(s[i / SIDES] + key + i % SIDES * VL, sum[i]);
    }
}

/* x += V^T P of keys key .. end-1, whose rows begin at v, for `width` vectors of columns from
 * column c on. Fetches lines from `ahead` on; returns their end. */
ATTN_INLINE const char *FN(few_run_columns)(FN(run_sums) * x, int64_t c, const char *v,
                                            int64_t bytes, FN(run_scores) * p, int64_t key,
                                            int64_t end, const char *ahead, const int32_t dtype,
                                            const int width)
{
    vec sum[RUN_LANES][FN(RUN_WIDE)];
    ATTN_UNROLL for (int r = 0; r < RUN_LANES; r++) {
        ATTN_UNROLL for (int i = 0; i < width; i++) sum[r][i] = v_load(x[r] + c + i * VL);
    }
    for (v += FN(bytes_of)(c, dtype); key < end; key++, v += bytes) {
        vec y[FN(RUN_WIDE)];
        ahead = FN(run_fetch)(ahead, FN(bytes_of)(width * VL, dtype));
        ATTN_UNROLL for (int i = 0; i < width; i++) y[i] = FN(load_row)(v, i * VL, dtype);
        ATTN_UNROLL for (int r = 0; r < RUN_LANES; r++) {
            const vec one = v_set1(p[r][key]);
            ATTN_UNROLL for (int i = 0; i < width; i++) sum[r][i] = v_fma(y[i], one, sum[r][i]);
        }
    }
    ATTN_UNROLL for (int r = 0; r < RUN_LANES; r++) {
        ATTN_UNROLL for (int i = 0; i < width; i++) v_store(x[r] + c + i * VL, sum[r][i]);
    }
    return ahead;
}

/* x += V^T P of n keys of a block. 16 registers hold twelve sums, or eight beside numbers that are
 * widened: gcc keeps some of twelve in memory then. */
ATTN_INLINE void FN(few_run_values)(FN(run_sums) * x, const attn_key_run *run, const char *v,
                                    FN(run_scores) * p, int64_t n, const int32_t dtype)
{
    const int64_t bytes = FN(bytes_of)(run->dv, dtype);
    const char *ahead = v + RUN_DISTANCE;
    for (int64_t key = 0; key < n; key += FN(RUN_VALUES), v += FN(RUN_VALUES) * bytes) {
        const int64_t end = n - key < FN(RUN_VALUES) ? n : key + FN(RUN_VALUES);
        int64_t c = 0;
        ATTN_UNROLL for (int width = dtype == FN(OWN) ? 3 : 2; width > 0; width--) {
            for (; c + width * VL <= run->dv; c += width * VL) {
                ahead = FN(few_run_columns)(x, c, v, bytes, p, key, end, ahead, dtype, width);
            }
        }
    }
}
