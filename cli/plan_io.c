/*
 * plan_io.c: see plan_io.h.
 */
#include "plan_io.h"

#include <stddef.h>

enum { FIRST_POINT = 16 << 10, FIRST_LENGTH = 1 << 10 };

const char *plan_io_refuses(const problem_spec *problem)
{
    const double rows = (double)problem->hq * (double)problem->nq *
                        (problem->hkv > 0 ? 1 / (double)problem->hkv : 0);
    return rows > 1 << 20                                                    ? "more than 2^20 rows"
           : rows < 1 || problem->nk < 1 || problem->d < 1 || problem->b < 1 ? "nothing to compute"
           : problem->b > PROBLEM_MAX_SEQS && problem_is_ragged(problem)     ? "too many sequences"
                                                                             : NULL;
}

/* ---- all sequences and heads ----------------------------------------------------------------- */

static traffic_shape shape_of(const problem_spec *problem, int64_t b)
{
    const problem_band band = problem_band_of(problem, b);
    return (traffic_shape){.nq = band.nq,
                           .nk = band.nk,
                           .d = problem->d,
                           .dv = problem->dv,
                           .group = problem->hq / problem->hkv,
                           .element = (int64_t)attn_dtype_size(problem->dtype),
                           .real = problem->dtype == ATTN_F64 ? 8 : 4,
                           .low = band.low,
                           .high = band.high};
}

typedef traffic_bytes counting(const traffic_shape *, const traffic_tiles *, double);

static traffic_bytes sum_of(const problem_spec *problem, counting *count,
                            const traffic_tiles *tiles, double near)
{
    const bool ragged = problem_is_ragged(problem);
    const double times = (double)problem->hkv * (ragged ? 1 : (double)problem->b);
    traffic_bytes sum = {0};
    for (int64_t b = 0; b < (ragged ? problem->b : 1); b++) {
        const traffic_shape shape = shape_of(problem, b);
        const traffic_bytes one = count(&shape, tiles, near);
        sum.read += times * one.read, sum.written += times * one.written;
        sum.on_chip += times * one.on_chip, sum.tiles += times * one.tiles;
    }
    return sum;
}

traffic_bytes plan_io_tiled(const problem_spec *problem, const traffic_tiles *tiles, double near)
{
    return sum_of(problem, traffic_tiled, tiles, near);
}

traffic_bytes plan_io_standard(const problem_spec *problem, const traffic_tiles *tiles, double near)
{
    return sum_of(problem, traffic_standard, tiles, near);
}

/* ---- the tables ------------------------------------------------------------------------------ */

/* The best tiles are those of the longest sequence. */
static traffic_tiles best_tiles(const problem_spec *problem, const traffic_tiles *tiles,
                                double near)
{
    int64_t longest = 0;
    traffic_bytes bytes;
    for (int64_t b = 1; b < problem->b && problem_is_ragged(problem); b++) {
        const double rows = (double)problem_band_of(problem, b).nq,
                     most = (double)problem_band_of(problem, longest).nq;
        longest = rows > most ? b : longest;
    }
    const traffic_shape shape = shape_of(problem, longest);
    return traffic_best(&shape, tiles->strip, tiles->keys, near, &bytes);
}

static plan_point point_of(const problem_spec *problem, const traffic_tiles *tiles, double near)
{
    plan_point point = {.near = near,
                        .tiled = plan_io_tiled(problem, tiles, near),
                        .standard = plan_io_standard(problem, tiles, near),
                        .best = best_tiles(problem, tiles, near)};
    point.best_bytes = plan_io_tiled(problem, &point.best, near);
    if (traffic_better(&point.tiled, &point.best_bytes)) { /* sequences of several lengths */
        point.best = *tiles, point.best_bytes = point.tiled;
    }
    return point;
}

void plan_io_size(const problem_spec *problem, plan_io *io, const int64_t *rows, int count)
{
    io->size_count = count, io->best = 0;
    for (int i = 0; i < count; i++) {
        io->sizes[i] = (traffic_tiles){rows[i], io->tiles.strip, io->tiles.keys};
        io->size_bytes[i] = plan_io_tiled(problem, &io->sizes[i], io->here.near);
        if (traffic_better(&io->size_bytes[i], &io->size_bytes[io->best])) {
            io->best = i;
        }
    }
}

/* Doubles the rows of a block from one strip on, for tiles with the keys at hand. */
static void list_sizes(const problem_spec *problem, plan_io *io)
{
    const int64_t all = problem->nq * (problem->hq / problem->hkv);
    int64_t rows[PLAN_SIZES] = {io->tiles.strip};
    int count = 1;
    for (; count < PLAN_SIZES && rows[count - 1] < all; count++) {
        rows[count] = 2 * rows[count - 1];
    }
    plan_io_size(problem, io, rows, count);
}

static void list_lengths(const problem_spec *problem, plan_io *io)
{
    problem_spec one = *problem;
    one.has_lens = one.has_used_q = one.has_used_k = one.has_leftpad = false;
    const double heads = (double)problem->hkv * (double)problem->b;
    for (int i = 0; i < PLAN_LENGTHS; i++) {
        one.nk = (int64_t)FIRST_LENGTH << i;
        one.nq = problem->nq == problem->nk || problem->has_lens ? one.nk : problem->nq;
        const traffic_shape shape = shape_of(&one, 0);
        const traffic_memory memory = traffic_memory_of(&shape);
        const traffic_bytes tiled = traffic_tiled(&shape, &io->tiles, io->here.near),
                            standard = traffic_standard(&shape, &io->tiles, io->here.near);
        io->lengths[i] =
            (plan_length){.n = one.nk,
                          .moved_tiled = heads * (tiled.read + tiled.written),
                          .moved_standard = heads * (standard.read + standard.written),
                          .tiled = heads * memory.tensors,
                          .standard = heads * (memory.tensors + memory.scores),
                          .kept_tiled = heads * (memory.tensors + memory.statistics),
                          .kept_standard = heads * (memory.tensors + memory.probabilities)};
    }
}

void plan_io_make(const problem_spec *problem, traffic_tiles tiles, double near, plan_io *io)
{
    io->tiles = tiles.rows > 0 ? tiles : best_tiles(problem, &tiles, near);
    io->here = point_of(problem, &io->tiles, near);
    for (int i = 0; i < PLAN_POINTS; i++) {
        io->points[i] = point_of(problem, &io->tiles, (double)FIRST_POINT * (double)(1 << 2 * i));
    }
    io->once = plan_io_tiled(problem, &io->tiles, 1e300);
    list_sizes(problem, io);
    list_lengths(problem, io);
}
