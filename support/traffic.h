/*
 * traffic.h: bytes that attention moves between a far memory and a near one of limited size: the
 * IO analysis of FlashAttention (Dao et al., arXiv 2205.14135, section 3.2 and theorem 2), counted
 * for tiles of given sizes rather than asymptotically; the memory that must be there at once; the
 * roofline. Pure functions of numbers, which need nothing but libm.
 *
 * The near memory holds what was used last (LRU). A store of whole lines fetches nothing. Tiles
 * that no row sees are skipped. Mask and bias tensors are not counted.
 */
#ifndef SUPPORT_TRAFFIC_H
#define SUPPORT_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

/* Beyond every key, with room for sums. */
#define TRAFFIC_FAR (INT64_MAX / 4)

/* A KV head of a sequence, and the query heads that share it. Rows: row = query x group + head. */
typedef struct traffic_shape {
    int64_t nq, nk, d, dv, group;
    int64_t element, real; /* bytes of a number of Q, K, V and O; of a score and of a sum */
    int64_t low, high;     /* query i sees keys i + low .. i + high - 1, of those that exist */
} traffic_shape;

typedef struct traffic_tiles {
    int64_t rows;  /* of a block: a tile of K and V that has been fetched serves them all */
    int64_t strip; /* of these rows, those that are computed at once */
    int64_t keys;  /* of a tile */
} traffic_tiles;

typedef struct traffic_bytes {
    double read, written; /* from and to the far memory */
    double on_chip;       /* within the near memory: written and read by the strips */
    double tiles;         /* strip x keys, visited */
} traffic_bytes;

/* FlashAttention (arXiv 2307.08691, algorithm 1): blocks of rows, each walks over its keys. Time
 * grows with the number of strips. */
traffic_bytes traffic_tiled(const traffic_shape *shape, const traffic_tiles *tiles, double near);

/* Standard attention (arXiv 2205.14135, algorithm 0): S = Q K^T, the softmax and P V one after the
 * other over the whole matrix, P in the place of S; products by the same tiles. */
traffic_bytes traffic_standard(const traffic_shape *shape, const traffic_tiles *tiles, double near);

/* True if `one` moves fewer bytes from and to the far memory, or as many and fewer on chip. */
bool traffic_better(const traffic_bytes *one, const traffic_bytes *other);

/* The tiles that move the fewest bytes from and to the far memory, and among those the fewest on
 * chip: blocks of 1, 2, 4 .. rows, strips of at most `strip`, keys = 8, 16 .. most_keys. *bytes =
 * theirs. */
traffic_tiles traffic_best(const traffic_shape *shape, int64_t strip, int64_t most_keys,
                           double near, traffic_bytes *bytes);

/* Bytes of one KV head that must be there at once. */
typedef struct traffic_memory {
    double tensors;       /* Q, K, V, O */
    double scores;        /* the matrix that standard attention computes */
    double probabilities; /* the matrix that it keeps for the backward pass, in the type of Q */
    double statistics;    /* the LSE that is kept instead where P is recomputed: f32 */
} traffic_memory;
traffic_memory traffic_memory_of(const traffic_shape *shape);

/* The roofline (Williams et al. 2009): no kernel is faster than its operations at the peak rate, or
 * than its bytes at the memory's rate. Rates in 1/s. */
typedef struct traffic_roof {
    double intensity; /* operations per byte */
    double ridge;     /* intensity above which operations bound the time */
    double rate;      /* operations per second that can be reached */
    double seconds;
    bool memory_bound;
} traffic_roof;
traffic_roof traffic_roof_of(double operations, double bytes, double peak, double bandwidth);

#endif
