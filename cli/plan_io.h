/*
 * plan_io.h: the IO analysis of `attn plan`: the counts of support/traffic.h for a problem, its
 * plan's tiles, and a machine. Not here: words and tables (plan_io_report.h), pictures
 * (plan_plot.h).
 */
#ifndef CLI_PLAN_IO_H
#define CLI_PLAN_IO_H

#include "problem.h"
#include "traffic.h"

enum { PLAN_POINTS = 8, PLAN_SIZES = 12, PLAN_LENGTHS = 8 };

/* Traffic with a near memory of some size. */
typedef struct plan_point {
    double near;
    traffic_bytes tiled, standard; /* by the tiles at hand */
    traffic_tiles best;            /* the best tiles for this size, and theirs */
    traffic_bytes best_bytes;
} plan_point;

/* The problem with N keys (and as many queries, if it has as many), in bytes. */
typedef struct plan_length {
    int64_t n;
    double moved_tiled, moved_standard; /* traffic by the tiles at hand with the near memory here */
    double tiled, standard;             /* memory of a forward pass */
    double kept_tiled, kept_standard;   /* memory kept from it for the backward pass */
} plan_length;

typedef struct plan_io {
    plan_point here;                 /* traffic with the machine's near memory */
    plan_point points[PLAN_POINTS];  /* others, upwards */
    traffic_tiles tiles;             /* at hand */
    traffic_tiles sizes[PLAN_SIZES]; /* candidates, and their traffic here */
    traffic_bytes size_bytes[PLAN_SIZES];
    traffic_bytes once;   /* with a near memory that holds everything */
    int size_count, best; /* best: of the candidates */
    plan_length lengths[PLAN_LENGTHS];
} plan_io;

/* Says why a problem has no analysis: too many rows, say. Static string; NULL: it has one. */
const char *plan_io_refuses(const problem_spec *problem);

/* tiles: the plan's; rows = 0: the best ones for `near`, with at most tiles.keys keys. */
void plan_io_make(const problem_spec *problem, traffic_tiles tiles, double near, plan_io *io);

/* Makes blocks of so many rows the candidates: PLAN_SIZES at most, upwards. */
void plan_io_size(const problem_spec *problem, plan_io *io, const int64_t *rows, int count);

/* All sequences and KV heads. */
traffic_bytes plan_io_tiled(const problem_spec *problem, const traffic_tiles *tiles, double near);
traffic_bytes plan_io_standard(const problem_spec *problem, const traffic_tiles *tiles,
                               double near);

#endif
