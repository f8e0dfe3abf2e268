/*
 * body_bias.h: rows of the bias and mask tensors, one for each lane, as the tile that score() adds:
 * -inf where the mask hides a key. A part of body_rows.h, with its parameters.
 */

/* A byte for each of n keys, 0 where `lane` does not see the key: those of the mask, or `to`. */
static const unsigned char *FN(shown)(unsigned char *to, const attn_bias_rows *rows, int lane,
                                      int64_t n)
{
    static const unsigned char bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const void *mask = rows->mask[lane];
    const unsigned char *bytes = mask;
    if (rows->mask_stride == 1 && ATTN_BYTE_MASK_TYPES >> rows->mask_dtype & 1) {
        return mask;
    }
    if (rows->mask_stride == 1 && rows->mask_dtype == ATTN_B1X8) { /* eight keys at a time */
        uint64_t bits, keys;
        memcpy(&bits, bit, sizeof bits);
        for (int64_t i = 0; i < rows->mask_first + n; i += 8) {
            keys = bytes[i / 8] * UINT64_C(0x0101010101010101) & bits;
            memcpy(to + i, &keys, sizeof keys);
        }
        return to + rows->mask_first;
    }
    /* loops of one type each, of which compilers make vectors */
    if (rows->mask_stride == 1 && rows->mask_dtype == ATTN_I32) {
        for (int64_t i = 0; i < n; i++) to[i] = ((const int32_t *)mask)[i] != 0;
    } else if (rows->mask_stride == 1 && rows->mask_dtype == ATTN_I64) {
        for (int64_t i = 0; i < n; i++) to[i] = ((const int64_t *)mask)[i] != 0;
    } else {
        for (int64_t i = 0; i < n; i++)
            to[i] =
                attn_mask_shows(mask, rows->mask_stride, rows->mask_dtype, rows->mask_first + i);
    }
    return to;
}

/* to[key] = the bias and mask of `lane` for the scores of n keys. */
static void FN(bias_row)(real *to, const attn_bias_rows *rows, int lane, int64_t n)
{
    memset(to, 0, (size_t)n * sizeof(real));
    if (rows->bias[lane]) {
        FN(widen)(to, rows->bias[lane], rows->bias_stride, rows->dtype, n);
    }
    if (rows->mask[lane]) {
        unsigned char copy[FN(CHUNK) + 16];
        const unsigned char *shown = FN(shown)(copy, rows, lane, n);
        for (int64_t i = 0; i < n; i++) to[i] = shown[i] ? to[i] : (real)-INFINITY;
    }
}

/* Transposes VL lanes, each a row of its own of n keys side by side, as Q is. */
ATTN_INLINE void FN(bias_lanes)(real *tile, const void *const *from, int64_t n, const int32_t dtype)
{
    for (int64_t key = 0; key < n; key += VL) {
        vec x[VL];
#if REAL_BITS == 32
        ATTN_UNROLL for (int i = 0; i < VL; i++) {
            x[i] = dtype == ATTN_F32   ? v_load((const float *)from[i] + key)
                   : dtype == ATTN_F16 ? v_load_f16((const uint16_t *)from[i] + key)
                                       : v_load_bf16((const uint16_t *)from[i] + key);
        }
#else
        (void)dtype;
        ATTN_UNROLL for (int i = 0; i < VL; i++) x[i] = v_load((const double *)from[i] + key);
#endif
        FN(transpose)(x);
        ATTN_UNROLL for (int i = 0; i < VL; i++) {
            if (key + i < n) {
                v_store(tile + (key + i) * STRIP, x[i]);
            }
        }
    }
}

/* Rows that vectors can read are read in place, others copied first. */
static void FN(bias_rows)(real *tile, int64_t n, const attn_bias_rows *rows)
{
    real copy[VL][FN(CHUNK)];
    const int32_t own = REAL_BITS == 32 ? ATTN_F32 : ATTN_F64;
    const bool in_place = !rows->mask[0] && rows->bias_stride == 1 && n % VL == 0 &&
                          (rows->dtype == own || (REAL_BITS == 32 && rows->dtype != ATTN_F64));
    for (int lane = 0; lane < STRIP; lane += VL) {
        const void *from[VL];
        for (int i = 0; i < VL; i++) {
            from[i] = in_place ? rows->bias[lane + i] : copy[i];
            if (!in_place) {
                FN(bias_row)(copy[i], rows, lane + i, n);
            }
        }
        switch (in_place ? rows->dtype : own) {
        case ATTN_F16:
            FN(bias_lanes)(tile + lane, from, n, ATTN_F16);
            break;
        case ATTN_BF16:
            FN(bias_lanes)(tile + lane, from, n, ATTN_BF16);
            break;
        default:
            FN(bias_lanes)(tile + lane, from, n, own);
        }
    }
}

static void FN(bias)(void *tile_, int64_t n, const attn_bias_rows *rows)
{
    real row[FN(CHUNK)], *tile = tile_;
    int lane = 1;
    while (lane < STRIP && rows->bias[lane] == rows->bias[0] && rows->mask[lane] == rows->mask[0]) {
        lane++;
    }
    if (lane == STRIP) { /* one row for all lanes */
        FN(bias_row)(row, rows, 0, n);
        for (int64_t i = 0; i < n * STRIP; i += VL) v_store(tile + i, v_set1(row[i / STRIP]));
    /* one value of each lane for all keys */
    } else if (rows->bias_stride == 0 && rows->mask_stride == 0 && rows->mask_dtype != ATTN_B1X8) {
        for (lane = 0; lane < STRIP; lane++) FN(bias_row)(row + lane, rows, lane, 1);
        for (int64_t i = 0; i < n * STRIP; i += VL) v_store(tile + i, v_load(row + i % STRIP));
    } else {
        FN(bias_rows)(tile, n, rows);
    }
}
