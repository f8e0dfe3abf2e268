/*
 * body_grad.h: those members of table_grad.h that do not depend on how products are done, once
 * for any vector width: P and dS of a tile, gradients out, dropout. Included after body_rows.h,
 * with its parameters, by body_grad_rows.h and by tables with products of their own.
 */
#include "cpu/ukernel/table_grad.h"

/* `count` keys from s and dp on; keep and plain may be NULL. dS is 0 where exp2 gives 0: where d <
 * least. */
ATTN_INLINE void FN(grad_softmax_keys)(real *s, real *dp, const real *keep, real *plain, vec lse,
                                       vec delta, const attn_grad_tile *tile, const int count)
{
    const vec c = v_set1((real)tile->exponent), least = v_set1((real)(EXP2_MIN / tile->exponent)),
              zero = v_set1(0);
    const vec factor = v_set1((real)tile->factor);
    vec d[SIDE], p[SIDE], ds[SIDE];
    EACH d[k] = v_sub(v_load(s + k * STRIP), lse);
    EACH d[k] = v_zero_lt(zero, d[k], d[k]);
    FN(exp2_each)(p, d, c, least, count);
    EACH ds[k] =
        keep ? v_mul(v_load(dp + k * STRIP), v_load(keep + k * STRIP)) : v_load(dp + k * STRIP);
    EACH v_store(s + k * STRIP, keep ? v_mul(p[k], v_load(keep + k * STRIP)) : p[k]);
    EACH ds[k] = v_mul(p[k], v_sub(ds[k], delta));
    EACH v_store(dp + k * STRIP, v_zero_lt(d[k], least, v_mul(ds[k], factor)));
    if (plain) {
        EACH v_store(plain + k * STRIP, v_zero_lt(d[k], least, ds[k]));
    }
}

static void FN(grad_softmax)(void *s_, void *dp_, int64_t n, const attn_grad_tile *tile, int lanes)
{
    for (int lane = 0; lane < lanes; lane += VL) {
        real *s = (real *)s_ + lane, *dp = (real *)dp_ + lane;
        const real *keep = tile->keep ? (const real *)tile->keep + lane : NULL;
        real *plain = tile->plain ? (real *)tile->plain + lane : NULL;
        const vec lse = v_load((const real *)tile->lse + lane),
                  delta = v_load((const real *)tile->delta + lane);
        int64_t key = 0;
        for (; !keep && !plain && key + SIDE <= n; key += SIDE) {
            FN(grad_softmax_keys)
            (s + key * STRIP, dp + key * STRIP, NULL, NULL, lse, delta, tile, SIDE);
        }
        for (; key < n; key++) {
            FN(grad_softmax_keys)
            (s + key * STRIP, dp + key * STRIP, keep ? keep + key * STRIP : NULL,
             plain ? plain + key * STRIP : NULL, lse, delta, tile, 1);
        }
    }
}

/* With e = exp(-2|x|): 1 - tanh^2(x) = 4 e / (1 + e)^2, without cancellation. */
static void FN(grad_softcap)(void *ds_, const void *s, int64_t n, double scale_, double cap_,
                             int lanes)
{
    const vec scale = v_set1((real)scale_), cap = v_set1((real)cap_), minus = v_set1(-2),
              one = v_set1(1);
    const vec c = v_set1((real)1.4426950408889634),
              least = v_set1((real)(EXP2_MIN / 1.4426950408889634));
    real *ds = ds_;
    for (int64_t at = 0; at < n * STRIP; at += VL) {
        if (at % STRIP >= lanes) {
            continue;
        }
        vec x = v_div(v_mul(v_load((const real *)s + at), scale), cap);
        vec e = FN(exp2)(v_mul(minus, v_abs(x)), c, least), sum = v_add(one, e);
        vec d = v_load(ds + at), slope = v_div(v_mul(v_set1(4), e), v_mul(sum, sum));
        v_store(ds + at, v_zero_lt(v_abs(d), v_set1(REAL_LEAST), v_mul(d, slope)));
    }
}

static bool FN(grad_put)(void *first, int64_t row_stride, int64_t col_stride, int32_t dtype,
                         const void *g, int64_t cols_pad, int64_t cols, int64_t n)
{
    int64_t step = row_stride * (int64_t)attn_dtype_size(dtype);
    const int64_t whole = cols_pad - cols_pad % (SIDE * VL);
    const int count = SIDE;
    const real *row = g;
    vec bad[SIDE]; /* NaN for NaN and Inf; columns beyond cols are 0 */
    EACH bad[k] = v_set1(0);
    for (int64_t i = 0; i < n; i++, row += cols_pad) {
        FN(narrow)((char *)first + i * step, col_stride, dtype, row, cols);
        int64_t c = 0;
        for (; c < whole; c += SIDE * VL) {
            EACH bad[k] = v_fma(v_load(row + c + k * VL), v_set1(0), bad[k]);
        }
        for (; c < cols_pad; c += VL) {
            bad[0] = v_fma(v_load(row + c), v_set1(0), bad[0]);
        }
    }
    real sum[SIDE * VL], all = 0;
    EACH v_store(sum + k * VL, bad[k]);
    for (int i = 0; i < SIDE * VL; i++) {
        all += sum[i];
    }
    return all == 0;
}

/* Vectors of lanes whose words are computed side by side: each alone would wait for its own
 * products. */
enum { FN(DROP_VECTORS) = STRIP / IVL % 2 == 0 ? 2 : 3 };

/* The words of Philox of keys `keys` (core/dropout.h) for each lane, each in the low half of 64
 * bits; the upper halves hold leftovers of products. rows: of each lane. */
static void FN(drop_words)(const attn_drop_tile *tile, const uint64_t *rows, const ivec (*key)[2],
                           uint32_t keys, uint64_t word[4][STRIP])
{
    enum { N = FN(DROP_VECTORS) };
    const ivec m0 = i_set1(ATTN_PHILOX_M0), m1 = i_set1(ATTN_PHILOX_M1);
    for (int lane = 0; lane < STRIP; lane += N * IVL) {
        ivec x0[N], x1[N], x2[N], x3[N];
        ATTN_UNROLL for (int i = 0; i < N; i++) {
            x0[i] = i_set1(keys), x1[i] = i_load(rows + lane + i * IVL);
            x2[i] = i_load(tile->stream + lane + i * IVL), x3[i] = i_high(x2[i]);
        }
        for (int round = 0; round < ATTN_PHILOX_ROUNDS; round++) {
            ATTN_UNROLL for (int i = 0; i < N; i++) {
                ivec a = i_mul(m0, x0[i]), b = i_mul(m1, x2[i]);
                x0[i] = i_xor3(i_high(b), x1[i], key[round][0]);
                x2[i] = i_xor3(i_high(a), x3[i], key[round][1]);
                x1[i] = b;
                x3[i] = a;
            }
        }
        ATTN_UNROLL for (int i = 0; i < N; i++) {
            i_store(word[0] + lane + i * IVL, x0[i]);
            i_store(word[1] + lane + i * IVL, x1[i]);
            i_store(word[2] + lane + i * IVL, x2[i]);
            i_store(word[3] + lane + i * IVL, x3[i]);
        }
    }
}

static void FN(grad_drop)(void *tile, int64_t done, int64_t n, const attn_drop_tile *drop,
                          bool times)
{
    const uint32_t limit = drop->dropout->limit;
    const real kept = (real)drop->dropout->scale;
    uint64_t word[4][4][STRIP], rows[STRIP]; /* word: of 16 keys */
    ivec of_round[ATTN_PHILOX_ROUNDS][2];
    for (uint32_t i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
        of_round[i][0] = i_set1(drop->dropout->key[0] + i * ATTN_PHILOX_W0);
        of_round[i][1] = i_set1(drop->dropout->key[1] + i * ATTN_PHILOX_W1);
    }
    for (int lane = 0; lane < STRIP; lane++) {
        rows[lane] = attn_dropout_rows(drop->query[lane]);
    }
    for (int64_t key = 0; key < n;) {
        int64_t from = (drop->first_key + key) % 16;
        const uint32_t keys = (uint32_t)((drop->first_key + key) / 16 * 4);
        for (uint32_t i = 0; i < 4; i++) {
            FN(drop_words)(drop, rows, of_round, keys + i, word[i]);
        }
        for (; from < 16 && key < n; from++, key++) {
            const uint64_t(*pair)[STRIP] = word[from % 8 / 2] + from / 8 * 2;
            const int shift = from % 2 == 0 ? 0 : 16;
            real *to = (real *)tile + (done + key) * STRIP;
            for (int lane = 0; lane < STRIP; lane++) {
                const uint64_t of_row = drop->query[lane] & 8 ? pair[1][lane] : pair[0][lane];
                real z = (of_row >> shift & 0xFFFF) >= limit ? kept : 0;
                to[lane] = times ? to[lane] * z : z;
            }
        }
    }
}
