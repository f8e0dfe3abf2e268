/*
 * codes_scores.h: S = K QT from codes on AMX tiles, of panels, and for at most 16 rows of codes
 * where they are. Codes and Q are exact in bf16. A score is a sum of runs of at most RUN columns
 * that share a scale, each of which is summed on tiles.
 *
 *     K   [key][pad32(d)] numbers of codes, [key][group] scales, then the columns of a group
 *     QT  [pad32(d) / 2][32][2]
 */
enum { KEY_STEP = 32, MOST_COLUMNS = 512, MOST_GROUPS = MOST_COLUMNS / 32 };

static float *k_scales(void *k, int64_t d)
{
    return (float *)(void *)((uint16_t *)k + ATTN_KEY_BLOCK * pad32(d));
}

static int64_t *k_group(void *k, int64_t d)
{
    return (int64_t *)(void *)(k_scales(k, d) + ATTN_KEY_BLOCK * (pad32(d) / 32 + 1));
}

static uint64_t k_bytes(int64_t d)
{
    return ATTN_KEY_BLOCK * ((uint64_t)pad32(d) * 2 + ((uint64_t)pad32(d) / 32 + 1) * 4) +
           sizeof(int64_t);
}

static uint64_t q_bytes(int64_t d)
{
    return (uint64_t)pad32(d) * STRIP * 2;
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* The numbers of 64 columns from c on of row `row`, 32 each, zero beyond n: codes, or values if its
 * scale is not finite. */
ATTN_INLINE void row_columns(dwords *to, const attn_rows *src, int64_t row, int64_t c, int64_t n,
                             bool values, const numbers *of, const int32_t dtype)
{
    const char *at = (const char *)src->data + row * src->row_stride;
    if (!values && src->col_stride == 1 && (dtype != ATTN_I4X2 || n % 2 == 0)) {
        line_numbers(to, at + c / attn_code_columns(dtype), n - c, of, dtype);
        return;
    }
    for (int i = 0; i < 2; i++) {
        const dwords low = row_numbers(src, row, c + 32 * i, n, values),
                     high = row_numbers(src, row, c + 32 * i + 16, n, values);
        to[i] = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16))),
            _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)), 1);
    }
}

/* Packs row `row` as the row of a panel at `to`. */
ATTN_INLINE void pack_row(uint16_t *to, const attn_rows *src, int64_t row, int64_t d, bool values,
                          const numbers *of, const int32_t dtype)
{
    const int64_t d_pad = pad32(d);
    for (int64_t c = 0; c < d_pad; c += 64, to += 64) {
        dwords x[2];
        attn_fetch_soon(src->soon, 64);
        row_columns(x, src, row, c, d, values, of, dtype);
        d_store(to, x[0]);
        if (c + 32 < d_pad) {
            d_store(to + 32, x[1]);
        }
    }
}

/* The same of a row of codes side by side, of a multiple of 32. */
ATTN_INLINE void pack_line(uint16_t *to, const char *row, int64_t d, const numbers *of,
                           const int32_t dtype)
{
    dwords x[2];
    int64_t c = 0;
    for (; c + 64 <= d; c += 64) {
        line_numbers(x, row + c / attn_code_columns(dtype), 64, of, dtype);
        d_store(to + c, x[0]);
        d_store(to + c + 32, x[1]);
    }
    if (c < d) {
        line_numbers(x, row + c / attn_code_columns(dtype), 32, of, dtype);
        d_store(to + c, x[0]);
    }
}

ATTN_INLINE void pack_rows(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d,
                           const int32_t dtype)
{
    const int64_t group = src->codes.group < d ? src->codes.group : d,
                  groups = (d + group - 1) / group;
    const numbers of = numbers_of(dtype);
    for (int64_t row = 0; row < n; row++) {
        float *scale = k_scales(k, d) + (at + row) * groups;
        const bool values = !row_scales(scale, 1, src, row, d, group);
        pack_row((uint16_t *)k + (at + row) * pad32(d), src, row, d, values, &of, dtype);
    }
}

static void pack_k(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d)
{
    *k_group(k, d) = src->codes.group < d ? src->codes.group : d;
    if (d == 0) {
        return;
    }
    OF_CODES(src->dtype, pack_rows, k, at, src, n, d);
}

static void pack_q(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d,
                   double factor, int lanes)
{
    (void)dtype;
    for (int64_t c = 0; c < d; c += 32) {
        for (int lane = 0; lane < lanes; lane += VL) {
            dwords x[VL];
            pack_pairs(qt, x, row + lane, lane, stride, c, d, factor);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Sums `steps` products of 16 rows of A and 32 or 16 columns of B: A has rows `stride` bytes apart
 * and 32 columns a step, B 16 rows of pairs a step. */
ATTN_INLINE void sum_products(const uint16_t *a, int64_t stride, const uint16_t *b, int64_t steps,
                              const int rows, const bool wide)
{
    zero_sums(rows, wide);
    for (int64_t i = 0; i < steps; i++, a += 32, b += TILE * 2 * STRIP) {
        TILE_LOAD(6, b, STRIDE);
        if (wide) {
            TILE_LOAD(7, b + 2 * TILE, STRIDE);
        }
        if (rows == LOW) {
            TILE_LOAD(4, a, stride);
            TILE_DP(0, 4, 6);
        } else {
            TILE_LOAD(5, a, stride);
            TILE_DP(2, 5, 6);
        }
        if (wide && rows == LOW) {
            TILE_DP(1, 4, 7);
        } else if (wide) {
            TILE_DP(3, 5, 7);
        }
    }
}

/* The products of a run of columns: the scores of n <= 16 keys that they are added to, with scales
 * `step` apart; `first`: nothing is there yet. */
typedef struct score_run {
    float *s;
    const float *scale;
    int64_t step, n;
    bool first;
} score_run;

/* Ends a run whose sums are on the tiles of `rows`. */
ATTN_INLINE void end_run(const score_run *run, const int rows, const bool wide)
{
    float sum[2 * TILE * STRIP] __attribute__((aligned(64)));
    const float *x = sum + (rows == HIGH ? TILE * STRIP : 0);
    const int lanes = wide ? STRIP : VL;
    store_sums(sum, rows, wide);
    for (int64_t key = 0; key < run->n; key++, x += STRIP) {
        const vec by = v_set1(run->scale[key * run->step]);
        ATTN_UNROLL for (int lane = 0; lane < lanes; lane += VL)
        {
            float *s = run->s + key * STRIP + lane;
            const vec sums = v_load(x + lane);
            v_store(s, run->first ? v_mul(sums, by) : v_fma(sums, by, v_load(s)));
        }
    }
}

/* Runs that follow each other on the tiles of LOW and HIGH: a run ends while the products of the
 * next one run. */
typedef struct score_runs {
    score_run last; /* s: NULL if there is none */
    bool high;      /* the next run is on HIGH */
} score_runs;

/* Ends the last run, which is not on the tiles of the next one. */
ATTN_INLINE void end_last(score_runs *runs, const bool wide)
{
    if (runs->last.s && runs->high) {
        end_run(&runs->last, LOW, wide);
    } else if (runs->last.s) {
        end_run(&runs->last, HIGH, wide);
    }
    runs->last.s = NULL;
}

/* Scores of n <= 16 keys of a panel of rows, for 32 lanes or 16, but for the last run's. */
ATTN_INLINE void score_keys(score_runs *runs, float *s, const uint16_t *k, const float *scale,
                            const uint16_t *qt, int64_t d, int64_t group, int64_t n,
                            const bool wide)
{
    const int64_t d_pad = pad32(d), groups = (d + group - 1) / group;
    for (int64_t c = 0, end; c < d; c = end) {
        end = c + run_columns(c, group);
        end = end < d ? end : d_pad;
        if (runs->high) {
            sum_products(k + c, d_pad * 2, qt + c * STRIP, (end - c) / 32, HIGH, wide);
        } else {
            sum_products(k + c, d_pad * 2, qt + c * STRIP, (end - c) / 32, LOW, wide);
        }
        end_last(runs, wide);
        runs->last = (score_run){s, scale + c / group, groups, n, c == 0};
        runs->high = !runs->high;
    }
}

/* Scores of n keys of a panel. */
ATTN_INLINE void score_panel(float *s, const uint16_t *k, const float *scale, const uint16_t *qt,
                             int64_t d, int64_t group, int64_t n, const bool wide)
{
    const int64_t groups = (d + group - 1) / group;
    score_runs runs = {.high = false};
    for (int64_t key = 0; key < n; key += TILE) {
        score_keys(&runs, s + key * STRIP, k + key * pad32(d), scale + key * groups, qt, d, group,
                   n - key < TILE ? n - key : TILE, wide);
    }
    end_last(&runs, wide);
}

static void qk(void *s, const void *k_, int64_t at, const void *qt, int64_t d, int64_t n, int lanes)
{
    void *k = (void *)(uintptr_t)k_;
    if (d == 0) {
        memset(s, 0, (size_t)(n * STRIP) * sizeof(float));
        return;
    }
    const int64_t group = *k_group(k, d), groups = (d + group - 1) / group;
    const uint16_t *rows = (const uint16_t *)k_ + at * pad32(d);
    const float *scale = k_scales(k, d) + at * groups;
    if (lanes > TILE) {
        score_panel(s, rows, scale, qt, d, group, n, true);
    } else {
        score_panel(s, rows, scale, qt, d, group, n, false);
    }
}

static void qk_softmax(void *p, int64_t done, void *s, const attn_keys *keys, double c,
                       const attn_running *state, int lanes)
{
    qk(s, keys->k, keys->at, keys->qt, keys->d, keys->n, lanes);
    softmax_f32(p, done, s, keys->n, c, state, lanes);
}

/* ---- rows of codes where they are ------------------------------------------------------------ */

/* Reads the scales of n rows from `row` on: [row][group], and on to 16. False if one is not
 * finite. */
ATTN_INLINE bool read_scales(float *to, const attn_row_codes *codes, int64_t row, int64_t n,
                             int64_t groups)
{
    vec all = v_set1(0);
    if (!codes->scale || (groups == 1 && codes->scale_row == 0)) {
        const vec x = v_set1(attn_row_scale(codes, 0, 0));
        for (int64_t i = 0; i < n * groups; i += VL) {
            v_store(to + i, x);
        }
        return v_eq(v_sub(x, x), all) == 0xffff;
    }
    if (codes->dtype != ATTN_BF16 && codes->scale_row == groups &&
        (groups == 1 || codes->scale_group == 1)) {
        for (int64_t i = 0; i < n * groups; i += VL) {
            const int64_t left = n * groups - i, at = row * groups + i;
            const __mmask16 some = left < VL ? (__mmask16)((1 << left) - 1) : 0xffff;
            const vec x = codes->dtype == ATTN_F16
                              ? _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(
                                    some, (const uint16_t *)codes->scale + at))
                              : _mm512_maskz_loadu_ps(some, (const float *)codes->scale + at);
            all = v_add(all, v_sub(x, x));
            v_store(to + i, x);
        }
        return v_eq(all, v_set1(0)) == 0xffff;
    }
    for (int64_t i = 0; i < n * groups; i++) {
        to[i] = attn_row_scale(codes, row + i / groups, i % groups);
        all = v_add(all, v_set1(to[i] - to[i]));
    }
    return v_eq(all, v_set1(0)) == 0xffff;
}

/* Scores of n rows; false where a scale is not finite. */
ATTN_INLINE bool score_rows(float *s, const attn_rows *k, const void *qt, int64_t d, int64_t n,
                            const int32_t dtype)
{
    const int64_t group = k->codes.group < d ? k->codes.group : d, groups = d / group;
    const numbers of = numbers_of(dtype);
    float scale[ATTN_KEY_BLOCK * MOST_GROUPS + VL];
    uint16_t panel[TILE * MOST_COLUMNS] __attribute__((aligned(64)));
    score_runs runs = {.high = false};
    if (!read_scales(scale, &k->codes, 0, n, groups)) {
        return false;
    }
    for (int64_t key = 0; key < n; key += TILE) {
        const int64_t some = n - key < TILE ? n - key : TILE;
        const char *at = (const char *)k->data + key * k->row_stride;
        for (uint16_t *to = panel; to < panel + some * d; to += d, at += k->row_stride) {
            attn_fetch_soon(k->soon, d);
            pack_line(to, at, d, &of, dtype);
        }
        score_keys(&runs, s + key * STRIP, panel, scale + key * groups, qt, d, group, some, false);
    }
    end_last(&runs, false);
    return true;
}

static bool qk_codes(void *s, const attn_rows *k, const void *qt, int64_t d, int64_t n, int lanes)
{
    if (k->col_stride != 1 || lanes > TILE || d == 0 || d % 32 != 0 || d > MOST_COLUMNS) {
        return false;
    }
    return OF_CODES(k->dtype, score_rows, s, k, qt, d, n);
}

/* True for rows whose groups pv_few (codes_values.h) takes; of columns of one. */
static bool takes_rows(int32_t dtype, int64_t columns)
{
    (void)dtype;
    return columns > 0 && columns % 32 == 0;
}
