/*
 * traffic.c: see traffic.h. Bytes are fetched again where more than the near memory is used between
 * two of their uses (the reuse distance).
 */
#include "traffic.h"

#include <math.h>

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t clamp(int64_t x, int64_t most)
{
    return x < 0 ? 0 : least(x, most);
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* A run of keys, lo .. hi-1. */
struct keys {
    int64_t lo, hi;
};

static int64_t count(struct keys keys)
{
    return keys.hi > keys.lo ? keys.hi - keys.lo : 0;
}

/* The keys that one of rows first .. end-1 sees. */
static struct keys keys_of(const traffic_shape *shape, int64_t first, int64_t end)
{
    return (struct keys){clamp(first / shape->group + shape->low, shape->nk),
                         clamp((end - 1) / shape->group + shape->high, shape->nk)};
}

/* ---- tiled ----------------------------------------------------------------------------------- */

/* Sizes in bytes of a row of Q, of a key, of a row of O as a sum and as it is stored; and sums that
 * a walk over the strips of a block makes. */
struct walk {
    const traffic_shape *shape;
    const traffic_tiles *tiles;
    double q, key, sum, o;
    double strip_keys, strip_tiles; /* sums over strips: rows' keys; tiles */
    double row_visits;              /* sum over strips: rows x tiles */
};

static struct walk start_walk(const traffic_shape *shape, const traffic_tiles *tiles)
{
    return (struct walk){.shape = shape,
                         .tiles = tiles,
                         .q = (double)(shape->d * shape->element),
                         .key = (double)((shape->d + shape->dv) * shape->element),
                         .sum = (double)(shape->dv * shape->real),
                         .o = (double)(shape->dv * shape->element)};
}

static void walk_strips(struct walk *walk, int64_t first, int64_t end, traffic_bytes *bytes)
{
    const int64_t step = walk->tiles->strip;
    walk->strip_keys = walk->strip_tiles = walk->row_visits = 0;
    for (int64_t row = first; row < end; row += step) {
        const int64_t rows = least(step, end - row);
        const struct keys keys = keys_of(walk->shape, row, row + rows);
        const double seen = (double)count(keys);
        const double visits =
            seen > 0 ? (double)((keys.hi - 1) / walk->tiles->keys - keys.lo / walk->tiles->keys + 1)
                     : 0;
        walk->strip_keys += seen, walk->strip_tiles += visits;
        walk->row_visits += visits * (double)rows;
        bytes->tiles += visits;
        /* K, V; scores out and in; Q; O in and out */
        bytes->on_chip += seen * walk->key + 2 * seen * (double)rows * (double)walk->shape->real +
                          visits * (double)rows * (walk->q + 2 * walk->sum);
    }
}

/* Counts one block. before: the keys of the block before it. */
static void add_block(struct walk *walk, int64_t first, int64_t end, struct keys before,
                      double near, traffic_bytes *bytes)
{
    const traffic_tiles *tiles = walk->tiles;
    const struct keys keys = keys_of(walk->shape, first, end);
    const double rows = (double)(end - first), strip = (double)least(tiles->strip, end - first),
                 seen = (double)count(keys);
    /* between two uses of a row lie the tile at hand and the next one */
    const double tile = fmin((double)tiles->keys, seen) * walk->key,
                 two = fmin((double)(2 * tiles->keys), seen) * walk->key,
                 scores = strip * (double)(tiles->keys * walk->shape->real),
                 state = rows * (walk->q + walk->sum);
    double fetched = seen;
    walk_strips(walk, first, end, bytes);
    if (tile + strip * (walk->q + walk->sum) + scores > near) {
        fetched = walk->strip_keys; /* a tile is gone before the next strip */
    } else if (before.hi > keys.lo && seen > 0) {
        const double shared = (double)(before.hi - keys.lo);
        fetched -= shared * walk->key + 2 * state + scores <= near ? shared : 0;
    }
    bytes->read += fetched * walk->key;
    bytes->written += rows * walk->o;
    bytes->on_chip += seen * walk->key + rows * (walk->q + walk->o);
    if (state + two + scores <= near) {
        bytes->read += seen > 0 ? rows * walk->q : 0;
    } else { /* a strip's Q and O are gone before the next tile */
        bytes->read += walk->row_visits * (walk->q + walk->sum);
        bytes->written += walk->row_visits * walk->sum;
    }
}

traffic_bytes traffic_tiled(const traffic_shape *shape, const traffic_tiles *tiles, double near)
{
    traffic_bytes bytes = {0};
    struct walk walk = start_walk(shape, tiles);
    struct keys before = {0, 0};
    const int64_t rows = shape->nq * shape->group;
    for (int64_t row = 0; row < rows; row += tiles->rows) {
        const int64_t end = row + least(tiles->rows, rows - row);
        add_block(&walk, row, end, before, near, &bytes);
        before = keys_of(shape, row, end);
    }
    return bytes;
}

/* ---- standard -------------------------------------------------------------------------------- */

/* Counts a product by tiles: rows of one side, `left` bytes each, with keys of `right` bytes; a row
 * and a key give a score. Bytes that are read of either side; `visits`: how often the left side's
 * rows come. */
static double read_product(const traffic_shape *shape, const traffic_tiles *tiles, double left,
                           double right, double near, double *visits)
{
    const double rows = (double)(shape->nq * shape->group), nk = (double)shape->nk;
    const double block = fmin((double)tiles->rows, rows), strip = fmin((double)tiles->strip, rows),
                 keys = fmin((double)tiles->keys, nk), real = (double)shape->real;
    double times = rows > 0 ? 1 : 0;
    if (keys * right + strip * (left + keys * real) > near) {
        times = (double)divide_up(shape->nq * shape->group, tiles->strip);
    } else if (nk * right + block * (nk * real + 2 * left) > near) {
        times = (double)divide_up(shape->nq * shape->group, tiles->rows);
    }
    *visits = fmin(2 * keys, nk) * right + block * (left + keys * real) > near
                  ? (double)divide_up(shape->nk, tiles->keys)
                  : 1;
    return times * nk * right + *visits * rows * left;
}

traffic_bytes traffic_standard(const traffic_shape *shape, const traffic_tiles *tiles, double near)
{
    const double rows = (double)(shape->nq * shape->group), nk = (double)shape->nk,
                 matrix = rows * nk * (double)shape->real;
    const struct walk walk = start_walk(shape, tiles);
    const double k = (double)(shape->d * shape->element), v = walk.o;
    const double strips = (double)divide_up(shape->nq * shape->group, tiles->strip),
                 columns = (double)divide_up(shape->nk, tiles->keys);
    const bool stays = matrix + nk * k + rows * walk.q <= near; /* the matrix, between the steps */
    traffic_bytes bytes = {.tiles = strips * columns};
    double visits;
    bytes.read = read_product(shape, tiles, walk.q, k, near, &visits);
    bytes.read += read_product(shape, tiles, walk.sum, v, near, &visits);
    bytes.read -= rows * walk.sum; /* O begins with the first visit */
    bytes.written = (visits - 1) * rows * walk.sum + rows * walk.o + matrix;
    if (!stays) {
        /* S is read by three walks over a row, for its maximum, its sum and P */
        bytes.read += (nk * (double)shape->real <= near ? 1 : 3) * matrix + matrix;
        bytes.written += matrix;
    }
    /* as tiled, and the matrix out, in three times and out, in */
    bytes.on_chip = strips * nk * (k + v) + columns * rows * (walk.q + 2 * walk.sum) + 6 * matrix;
    return bytes;
}

/* ---- the best tiles -------------------------------------------------------------------------- */

bool traffic_better(const traffic_bytes *one, const traffic_bytes *other)
{
    const double gain = other->read + other->written - one->read - one->written;
    return gain > 0 || (gain == 0 && one->on_chip < other->on_chip);
}

traffic_tiles traffic_best(const traffic_shape *shape, int64_t strip, int64_t most_keys,
                           double near, traffic_bytes *bytes)
{
    const int64_t all = shape->nq * shape->group;
    traffic_tiles best = {1, 1, most_keys};
    *bytes = traffic_tiled(shape, &best, near);
    for (int64_t rows = 1; rows < 2 * all; rows *= 2) {
        for (int64_t keys = least(8, most_keys); keys <= most_keys; keys *= 2) {
            const traffic_tiles tiles = {rows, least(rows, strip), keys};
            const traffic_bytes one = traffic_tiled(shape, &tiles, near);
            if (traffic_better(&one, bytes)) {
                best = tiles, *bytes = one;
            }
        }
    }
    return best;
}

/* ---- memory and roofline --------------------------------------------------------------------- */

traffic_memory traffic_memory_of(const traffic_shape *shape)
{
    const double rows = (double)(shape->nq * shape->group), nk = (double)shape->nk,
                 element = (double)shape->element;
    return (traffic_memory){.tensors = (rows + nk) * (double)(shape->d + shape->dv) * element,
                            .scores = rows * nk * (double)shape->real,
                            .probabilities = rows * nk * element,
                            .statistics = rows * 4};
}

traffic_roof traffic_roof_of(double operations, double bytes, double peak, double bandwidth)
{
    traffic_roof roof = {.intensity = bytes > 0 ? operations / bytes : 0,
                         .ridge = peak / bandwidth};
    roof.memory_bound = roof.intensity < roof.ridge;
    roof.rate = roof.memory_bound ? roof.intensity * bandwidth : peak;
    roof.seconds = fmax(operations / peak, bytes / bandwidth);
    return roof;
}
