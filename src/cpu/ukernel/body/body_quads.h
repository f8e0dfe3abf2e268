/*
 * body_quads.h: rows of four lanes, for strips of few rows: a part of body_rows.h, with its
 * parameters.
 */
enum { FN(FEW) = VL >= 8 ? VL / 2 : 0 }; /* most lanes of body_few.h, 4 or 8 */
#ifndef v_load4
#define v_load4 v_load /* FEW is 0 */
#define v_store4 v_store
#endif

/* Row i of four elements, `apart` fours from the last, = lane i of four vectors. */
ATTN_INLINE void FN(quads)(real (*to)[4], int64_t apart, const vec *x)
{
#ifdef v_store_quads
    vec y[4] = {x[0], x[1], x[2], x[3]};
    FN(shuffle)(y, 4);
    ATTN_UNROLL for (int i = 0; i < 4; i++) v_store_quads(to + i * apart, 4 * apart, y[i]);
#else
    real lanes[4][VL];
    ATTN_UNROLL for (int r = 0; r < 4; r++) v_store(lanes[r], x[r]);
    for (int i = 0; i < VL; i++, to += apart) {
        ATTN_UNROLL for (int r = 0; r < 4; r++) to[0][r] = lanes[r][i];
    }
#endif
}

/* Lane i of four vectors = row i of four elements: quads() back. */
ATTN_INLINE void FN(from_quads)(vec *x, const real (*from)[4], int64_t apart)
{
#ifdef v_store_quads
    ATTN_UNROLL for (int i = 0; i < 4; i++) x[i] = v_load_quads(from + i * apart, 4 * apart);
    FN(shuffle)(x, 4);
#else
    real lanes[4][VL];
    for (int i = 0; i < VL; i++, from += apart) {
        ATTN_UNROLL for (int r = 0; r < 4; r++) lanes[r][i] = from[0][r];
    }
    ATTN_UNROLL for (int r = 0; r < 4; r++) x[r] = v_load(lanes[r]);
#endif
}

/* Moves whole vectors of columns of at most four rows to lanes: products read no others then. */
ATTN_INLINE void FN(pack_q_quads)(real *qt, const void *const *row, int64_t d, vec by)
{
    for (int64_t c = 0; c < d; c += VL, qt += VL * STRIP) {
        vec x[4];
        ATTN_UNROLL for (int i = 0; i < 4; i++) x[i] =
            row[i] ? v_mul(v_load((const real *)row[i] + c), by) : v_set1(0);
        FN(quads)((real (*)[4])qt, STRIP / 4, x);
    }
}

/* Stores the scores of n <= VL keys, vectors of keys for each of `rows` lanes. Lanes beyond become
 * 0, since the softmax takes them too. */
ATTN_INLINE void FN(few_keys_end)(real *s, const vec *sum, int n, const int rows)
{
    real low[VL][4], high[VL][4];
    FN(quads)(low, 1, sum);
    if (rows > 4) {
        FN(quads)(high, 1, sum + 4);
    }
    for (int key = 0; key < n; key++, s += STRIP) {
        v_store(s, v_load4(low[key]));
        if (rows > 4) {
            v_store4(s + 4, v_load4(high[key]));
        }
    }
}
