/*
 * tiles.c: tiles of any size over a problem, as the library's geometry sees them (core/mask.h,
 * core/count.h), the bytes that they move (support/traffic.h), and the plan that attn_forward makes
 * of the same problem.
 */
#include "core/count.h"
#include "core/mask.h"
#include "page.h"
#include "problem.h"
#include "traffic.h"

enum { MOST_ROWS = 4096 }; /* rows of tiles that are listed one by one */

struct grid {
    int64_t rows, keys; /* of a tile */
    attn_problem problem;
    attn_sequence sequence;
    double computed; /* entries of all tiles that are not skipped */
    attn_tile_count count;
};

/* Tiles of a row of tiles: `hull` are those that it visits, `common` the FULL ones. */
static attn_rows_mask visit(struct grid *grid, int64_t row)
{
    const int64_t nq = grid->sequence.nq, end = row + grid->rows < nq ? row + grid->rows : nq;
    const attn_rows_mask mask = attn_mask_range(&grid->problem, &grid->sequence, row, end);
    const int64_t all = (grid->sequence.nk + grid->keys - 1) / grid->keys;
    attn_rows_mask tiles = {{0, 0}, {0, 0}};
    if (mask.hull.lo < mask.hull.hi) {
        tiles.hull.lo = mask.hull.lo / grid->keys;
        tiles.hull.hi = (mask.hull.hi - 1) / grid->keys + 1;
        for (int64_t tile = tiles.hull.lo; tile < tiles.hull.hi; tile++) {
            const int64_t first = tile * grid->keys,
                          last = attn_clamp(first + grid->keys, 0, grid->sequence.nk);
            grid->computed += (double)(end - row) * (double)(last - first);
            if (first >= mask.common.lo && last <= mask.common.hi) {
                tiles.common.lo = tiles.common.hi == 0 ? tile : tiles.common.lo;
                tiles.common.hi = tile + 1;
            }
        }
    }
    grid->count.skipped += all - (tiles.hull.hi - tiles.hull.lo);
    grid->count.full += tiles.common.hi - tiles.common.lo;
    grid->count.partial += tiles.hull.hi - tiles.hull.lo - (tiles.common.hi - tiles.common.lo);
    return tiles;
}

static void write_grid(FILE *to, struct grid *grid)
{
    const int64_t tiles = (grid->sequence.nq + grid->rows - 1) / grid->rows;
    fputs("\"bands\":[", to);
    for (int64_t i = 0; i < tiles; i++) {
        const attn_rows_mask band = visit(grid, i * grid->rows);
        if (i < MOST_ROWS) {
            fprintf(to, "%s[%lld,%lld,%lld,%lld]", i > 0 ? "," : "", (long long)band.hull.lo,
                    (long long)band.hull.hi, (long long)band.common.lo, (long long)band.common.hi);
        }
    }
    attn_tile_count whole = {0};
    const attn_tiling tiling = {grid->rows, 1, grid->keys};
    attn_count_tiles(&whole, &grid->problem, &grid->sequence, &tiling, 1);
    fprintf(to,
            "],\"full\":%lld,\"partial\":%lld,\"skipped\":%lld,\"visible\":%.17g,"
            "\"computed\":%.17g,\"all\":%.17g",
            (long long)grid->count.full, (long long)grid->count.partial,
            (long long)grid->count.skipped, whole.scores, grid->computed,
            (double)grid->sequence.nq * (double)grid->sequence.nk);
}

/* Counts the bytes of one head, and the room that a tile with its rows takes. */
static void write_traffic(FILE *to, const problem_spec *spec, const struct grid *grid, double near)
{
    const problem_band band = problem_band_of(spec, 0);
    const int64_t size = (int64_t)attn_dtype_size(spec->dtype),
                  real = spec->dtype == ATTN_F64 ? 8 : 4;
    const traffic_shape shape = {.nq = band.nq,
                                 .nk = band.nk,
                                 .d = spec->d,
                                 .dv = spec->dv,
                                 .group = 1,
                                 .element = size,
                                 .real = real,
                                 .low = band.low,
                                 .high = band.high};
    const traffic_tiles tiles = {grid->rows, grid->rows, grid->keys};
    const traffic_bytes tiled = traffic_tiled(&shape, &tiles, near),
                        standard = traffic_standard(&shape, &tiles, near);
    fprintf(to, ",\"room\":%lld,\"tiled\":%.17g,\"standard\":%.17g",
            (long long)(size * (grid->rows * spec->d + grid->keys * (spec->d + spec->dv)) +
                        real * grid->rows * (spec->dv + grid->keys)),
            tiled.read + tiled.written, standard.read + standard.written);
}

static void write_plan(FILE *to, const attn_plan *plan)
{
    fprintf(to,
            ",\"plan\":{\"kernel\":\"%s\",\"strip\":%d,\"key_block\":%d,\"rows_per_item\":%lld,"
            "\"items\":%lld,\"tiles_full\":%lld,\"tiles_partial\":%lld,\"tiles_skipped\":%lld,"
            "\"flops\":%.17g,\"bytes_tiled\":%.17g,\"bytes_standard\":%.17g,"
            "\"workspace_bytes\":%llu}",
            plan->kernel, plan->strip, plan->key_block, (long long)plan->rows_per_item,
            (long long)plan->items, (long long)plan->tiles_full, (long long)plan->tiles_partial,
            (long long)plan->tiles_skipped, plan->flops, plan->bytes_tiled, plan->bytes_standard,
            (unsigned long long)plan->workspace_bytes);
}

/* Makes arguments without memory, from which only plans are made. */
static attn_forward_args args_of(const problem_spec *spec)
{
    const attn_dtype dtype = (attn_dtype)spec->dtype;
    return (attn_forward_args){
        .struct_size = sizeof(attn_forward_args),
        .q = attn_tensor_bshd(NULL, dtype, spec->b, spec->nq, spec->hq, spec->d),
        .k = attn_tensor_bshd(NULL, dtype, spec->b, spec->nk, spec->hkv, spec->d),
        .v = attn_tensor_bshd(NULL, dtype, spec->b, spec->nk, spec->hkv, spec->dv),
        .o = attn_tensor_bshd(NULL, dtype, spec->b, spec->nq, spec->hq, spec->dv),
        .flags = (spec->causal ? ATTN_CAUSAL : 0U) | (spec->has_window ? ATTN_WINDOW : 0U),
        .window_left = spec->has_window ? spec->window_left : 0,
        .window_right = spec->has_window ? spec->window_right : 0,
    };
}

static attn_status tell(FILE *to, const problem_spec *spec, struct grid *grid, double near)
{
    const attn_forward_args args = args_of(spec);
    attn_plan plan = {.struct_size = sizeof plan};
    attn_context *context = NULL;
    attn_status status = attn_problem_init(&grid->problem, &args, ATTN_OF_SHAPES);
    if (status == ATTN_OK) {
        status = problem_context(spec, &context);
    }
    if (status == ATTN_OK) {
        status = attn_forward_plan(context, &args, &plan);
    }
    attn_context_destroy(context);
    if (status == ATTN_OK) {
        grid->sequence = attn_problem_whole_sequence(&grid->problem, 0);
        fputs("{", to);
        write_grid(to, grid);
        write_traffic(to, spec, grid, near);
        write_plan(to, &plan);
        fputs("}", to);
    }
    return status;
}

/* Tiles of the first head of the first sequence, beside a near memory of so many bytes; the plan is
 * that of all heads. */
const char *PAGE_EXPORT(page_tiles)(const char *line, int rows, int keys, double near)
{
    char error[256];
    problem_spec problem;
    struct grid grid = {.rows = rows, .keys = keys};
    if (!problem_parse(line, &problem, error, sizeof error)) {
        return page_error(error);
    }
    const attn_status status = tell(page_open(), &problem, &grid, near);
    return status == ATTN_OK ? page_text() : page_error(attn_last_error());
}
