/*
 * sums.h: sums of 32 rows and 32 columns on AMX tiles, or of 16 of either. Included after vectors
 * of 16 lanes and STRIP = 32.
 *
 * Tiles have numbers of their own, since instructions name them:
 *
 *              columns 0 .. 15   columns 16 .. 31        A
 *     LOW            0                  1                4     16 rows
 *     HIGH           2                  3                5     the next 16
 *     B              6                  7
 */

enum {
    TILE = 16,
    STRIDE = STRIP * 4 /* bytes from row to row of QT, S, P and OT */
};

/* Which rows. Columns: 32 (`wide`) or 16. */
enum { LOW = 1, HIGH = 2, BOTH = LOW | HIGH };

ATTN_INLINE void zero_sums(const int rows, const bool wide)
{
    if (rows & LOW) {
        TILE_ZERO(0);
        if (wide) {
            TILE_ZERO(1);
        }
    }
    if (rows & HIGH) {
        TILE_ZERO(2);
        if (wide) {
            TILE_ZERO(3);
        }
    }
}

/* Stores to 32 rows of 32 floats, or to 16 of them. */
ATTN_INLINE void store_sums(float *to, const int rows, const bool wide)
{
    if (rows & LOW) {
        TILE_STORE(0, to, STRIDE);
        if (wide) {
            TILE_STORE(1, to + TILE, STRIDE);
        }
    }
    if (rows & HIGH) {
        TILE_STORE(2, to + TILE * STRIP, STRIDE);
        if (wide) {
            TILE_STORE(3, to + TILE * STRIP + TILE, STRIDE);
        }
    }
}

/* to[16 rows] = to alpha + the fresh sums in `sum`, or without alpha (NULL) these. */
ATTN_INLINE void add_rows(float *to, int64_t stride, const float *sum, const float *alpha,
                          const bool wide)
{
    const int lanes = wide ? STRIP : VL;
    for (int i = 0; i < TILE * STRIP; i += STRIP, to += stride) {
        ATTN_UNROLL for (int lane = 0; lane < lanes; lane += VL)
        {
            const vec x = v_load(sum + i + lane);
            v_store(to + lane, alpha ? v_fma(v_load(to + lane), v_load(alpha + lane), x) : x);
        }
    }
}
