/*
 * few.h: rows of K and V where they are, for strips of few rows, which read each of them once. K
 * becomes the panel of a tile, unless it can stay; dots_few.h and amx/few.h have the shapes of V.
 * Both stay in the L1 cache: lines that are fetched from memory hold most of the buffers between
 * it and L2.
 */

/* The distance of 16 rows in bytes; 0 if they are not equally far apart. */
ATTN_INLINE int64_t even_stride(const char *const *row)
{
    const int64_t step = row[1] - row[0];
    return d_even(row, step) ? step : 0;
}

/* Scores on vectors fetch all rows that are due. Beside those on tiles the softmax fetches half of
 * them, as its load ports are free. */
#ifdef DOTS_HEADER
enum { FETCHES_ALL = 1 };
#else
enum { FETCHES_ALL = 0 };
#endif

/* The factors of scores of n rows of K, at most a tile, of which `row` is the first. */
ATTN_INLINE factors row_factors(const attn_keys *keys, const char *const *row, int64_t n,
                                attn_soon *soon)
{
    factors f = score_factors(keys->k, 0, keys->qt, keys->d);
    f.soon = soon;
    f.elements = FETCHES_ALL ? 2 * GROUP * 32 : PARTS == 1 ? GROUP * 32 : GROUP * 32 / 2;
    if (PARTS == 1 && n == 2 * GROUP && keys->d % K_GRANULE == 0) {
        const int64_t stride = even_stride(row);
        if (stride != 0 && stride == even_stride(row + GROUP)) {
            f.a = (const uint16_t *)(const void *)row[0], f.a_stride = stride;
            f.a_rows = (row[GROUP] - row[0]) / 2;
            return f;
        }
    }
    for (int64_t key = 0; key < n; key++) {
        if (key % 8 == 0) {
            STAY_AWAKE();
        }
        pack_k_row((void *)(uintptr_t)keys->k, key, row[key], 1, keys->d, soon);
    }
    return f;
}
