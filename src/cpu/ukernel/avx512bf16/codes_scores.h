/*
 * codes_scores.h: S = K QT from codes, of panels. Codes and Q are exact in bf16. A score is a sum
 * of runs of at most RUN columns that share a scale: four chains of products each, times the scale,
 * and the sum of the four at the end. Chain j has these pairs of each 32 columns, in order:
 *
 *     codes of 8 bits   j, 4 + j, 8 + j, 12 + j
 *     i4x2              2 j, 2 j + 1, 8 + 2 j, 8 + 2 j + 1
 *
 *     K   [key][pad32(d)] numbers of codes, [key][pad32(d) / 32] scales, then k_form
 *     QT  [pad32(d) / 2][32][2], then, of few rows, which codes_few.h takes, the same pairs in all
 *         quarters of vectors: [order][lanes / 4][pad32(d) / 8][4][quarter][4][2], first in the
 *         order of the columns, then in that of i4x2 (nibble_order)
 */
enum {
    PANEL_KEYS = ATTN_KEY_BLOCK + 4, /* products read four keys at a time */
    Q_STEP = 4 * VL * 2              /* from eight columns of few rows to the next */
};

/* The columns that share a scale, and the order of pairs. */
typedef struct k_form {
    int64_t group;
    bool nibbles;
} k_form;

static float *k_scales(void *k, int64_t d)
{
    return (float *)(void *)((uint16_t *)k + PANEL_KEYS * pad32(d));
}

static k_form *form_of(void *k, int64_t d)
{
    return (k_form *)(void *)(k_scales(k, d) + PANEL_KEYS * pad32(d) / 32);
}

static uint64_t k_bytes(int64_t d)
{
    return PANEL_KEYS * ((uint64_t)pad32(d) * 2 + (uint64_t)pad32(d) / 32 * sizeof(float)) +
           sizeof(k_form);
}

/* ---- panels ---------------------------------------------------------------------------------- */

static void pack_k(void *k, int64_t at, const attn_rows *src, int64_t n, int64_t d)
{
    const int64_t d_pad = pad32(d);
    uint16_t *to = (uint16_t *)k + at * d_pad;
    float *scale = k_scales(k, d) + at * d_pad / 32;
    *form_of(k, d) = (k_form){src->codes.group < d ? src->codes.group : d_pad,
                              src->dtype == ATTN_I4X2};
    for (int64_t row = 0; row < n; row++, scale += d_pad / 32) {
        const bool values = !row_scales(scale, 1, src, row, d, 32);
        for (int64_t c = 0; c < d_pad; c += 16, to += 16) {
            attn_fetch_soon(src->soon, 16);
            const dwords x = row_numbers(src, row, c, d, values);
            _mm256_storeu_si256((__m256i *)(void *)to,
                                _mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
        }
    }
}

/* ---- copies of Q ----------------------------------------------------------------------------- */

static uint64_t q_bytes(int64_t d)
{
    return (uint64_t)pad32(d) * STRIP * 2 + 2 * FEW_f32 / 4 * (uint64_t)pad32(d) / 8 * Q_STEP * 2;
}

static uint16_t *q_copies(const void *qt, int64_t d)
{
    return (uint16_t *)(uintptr_t)qt + pad32(d) * STRIP;
}

/* The copy in an order of pairs for four lanes from `lane` on. */
ATTN_INLINE uint16_t *q_copy(uint16_t *copies, int64_t d, bool nibbles, int lane)
{
    return copies + (nibbles * (FEW_f32 / 4) + lane / 4) * pad32(d) / 8 * Q_STEP;
}

/* The order in which quad_numbers has pairs of 32 columns of i4x2. */
ATTN_INLINE dwords nibble_order(dwords pairs)
{
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    return _mm512_permutexvar_epi32(order, pairs);
}

/* Copies 32 columns from c on of few rows. */
ATTN_INLINE void copy_rows(uint16_t *copies, const dwords *row, int64_t c, int64_t d, int lanes)
{
    for (int i = 0; i < (lanes + 3) / 4 * 8; i++) {
        const int nibbles = i % 2, lane = i / 2;
        const dwords x = nibbles ? nibble_order(row[lane]) : row[lane];
        uint16_t *to = q_copy(copies, d, nibbles, lane) + c / 8 * Q_STEP + lane % 4 * 2 * VL;
        d_store(to, _mm512_shuffle_i32x4(x, x, 0x00));
        d_store(to + Q_STEP, _mm512_shuffle_i32x4(x, x, 0x55));
        d_store(to + 2 * Q_STEP, _mm512_shuffle_i32x4(x, x, 0xaa));
        d_store(to + 3 * Q_STEP, _mm512_shuffle_i32x4(x, x, 0xff));
    }
}

static void pack_q(void *qt, const void *const *row, int64_t stride, int32_t dtype, int64_t d,
                   double factor, int lanes)
{
    (void)dtype;
    for (int64_t c = 0; c < d; c += 32) {
        for (int lane = 0; lane < lanes; lane += VL) {
            dwords x[VL];
            pack_pairs(qt, x, row + lane, lane, stride, c, d, factor);
            if (lanes <= FEW_f32) {
                copy_rows(q_copies(qt, d), x, c, d, lanes);
            }
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Adds the products of 32 columns of four keys with a vector of lanes to chains. */
ATTN_INLINE void add_chains(vec (*chain)[4], const uint16_t *k, int64_t d_pad, const uint16_t *q,
                            const bool nibbles)
{
    ATTN_UNROLL_4 for (int step = 0; step < 4; step++)
    {
        ATTN_UNROLL for (int j = 0; j < 4; j++)
        {
            const int pair = nibbles ? step / 2 * 8 + 2 * j + step % 2 : 4 * step + j;
            const dwords x = d_load(q + pair * 2 * STRIP);
            ATTN_UNROLL for (int key = 0; key < 4; key++) chain[key][j] =
                add_pairs(chain[key][j], d_pair(k + key * d_pad + 2 * pair), x);
        }
    }
}

/* Scores of four keys and a vector of lanes. */
ATTN_INLINE void score_keys(float *s, const uint16_t *k, const float *scale, const uint16_t *q,
                            int64_t d_pad, const k_form *form, const bool nibbles)
{
    vec sum[4][4], chain[4][4];
    ATTN_UNROLL for (int i = 0; i < 16; i++) sum[i / 4][i % 4] = v_set1(0);
    for (int64_t c = 0, end; c < d_pad; c = end) {
        end = c + run_columns(c, form->group);
        ATTN_UNROLL for (int i = 0; i < 16; i++) chain[i / 4][i % 4] = v_set1(0);
        for (int64_t at = c; at < end; at += 32, k += 32, q += 32 * STRIP) {
            add_chains(chain, k, d_pad, q, nibbles);
        }
        ATTN_UNROLL for (int key = 0; key < 4; key++)
        {
            const vec by = v_set1(scale[key * (d_pad / 32) + c / 32]);
            ATTN_UNROLL for (int j = 0; j < 4; j++) sum[key][j] =
                c > 0 ? v_fma(chain[key][j], by, sum[key][j]) : v_mul(chain[key][j], by);
        }
    }
    ATTN_UNROLL for (int key = 0; key < 4; key++)
    {
        const vec *x = sum[key];
        v_store(s + key * STRIP, v_add(v_add(x[0], x[2]), v_add(x[1], x[3])));
    }
}

static void qk(void *s_, const void *k_, int64_t at, const void *qt, int64_t d, int64_t n,
               int lanes)
{
    const int64_t d_pad = pad32(d);
    const uint16_t *k = (const uint16_t *)k_ + at * d_pad;
    void *panel = (void *)(uintptr_t)k_;
    const float *scale = k_scales(panel, d) + at * d_pad / 32;
    const k_form form = *form_of(panel, d);
    for (int64_t key = 0; key < n; key += 4, k += 4 * d_pad, scale += 4 * d_pad / 32) {
        for (int lane = 0; lane < lanes; lane += VL) {
            float *s = (float *)s_ + key * STRIP + lane;
            const uint16_t *q = (const uint16_t *)qt + 2 * lane;
            if (form.nibbles) {
                score_keys(s, k, scale, q, d_pad, &form, true);
            } else {
                score_keys(s, k, scale, q, d_pad, &form, false);
            }
        }
    }
}

static void qk_softmax(void *p, int64_t done, void *s, const attn_keys *keys, double c,
                       const attn_running *state, int lanes)
{
    qk(s, keys->k, keys->at, keys->qt, keys->d, keys->n, lanes);
    softmax_f32(p, done, s, keys->n, c, state, lanes);
}
