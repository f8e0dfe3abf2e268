/*
 * factors.h: where the factors of the products lie in the panels of pairs.h.
 */

/* Places of the factors of a product. Strides between rows in bytes, other distances in
 * elements. */
typedef struct factors {
    const uint16_t *a, *b;
    /* from part to part, from step to step, from 16 rows to the next */
    int64_t a_stride, a_part, a_step, a_rows;
    int64_t b_stride, b_part, b_step;
    int64_t steps;   /* of 32 products each */
    int64_t last;    /* pairs of the last step of scores, in tables on dots.h */
    attn_soon *soon;   /* rows to fetch meanwhile, or NULL */
    int64_t elements;  /* of K or V that a step counts for them */
    bool swapped;    /* A holds the second factor of each product of parts */
} factors;

/* S = K QT. */
ATTN_INLINE factors score_factors(const void *k, int64_t at, const void *qt, int64_t d)
{
    const int64_t d_pad = k_pad(d), steps = pad32(d) / 32;
    return (factors){
        .a = (const uint16_t *)k + at * d_pad,
        .b = qt,
        .a_stride = d_pad * 2,
        .a_part = PANEL_KEYS * d_pad,
        .a_step = 32,
        .a_rows = GROUP * d_pad,
        .b_stride = STRIP * 4,
        .b_part = pad32(d) * STRIP,
        .b_step = GROUP * 2 * STRIP,
        .steps = steps,
        .last = GROUP - (32 * steps - d_pad) / 2, /* 16 without columns */
    };
}

/* For lanes whose rows have `keys` keys side by side: the lane of key number `key`. */
ATTN_INLINE dwords side_lanes(int keys, int key)
{
    int32_t at[GROUP];
    for (int lane = 0; lane < GROUP; lane++) {
        at[lane] = (lane & -keys) + key;
    }
    return d_load(at);
}
