/*
 * cells.c: see cells.h.
 */
#include "cpu/cells.h"
#include "cpu/machine/tasks.h"
#include "cpu/real.h"

/* A summary of fewer keys saves nothing; a larger one is of a mask that is broadcast by a stride of
 * 0, and the workspace should not grow with it. */
enum { LEAST_KEYS = 512, MOST_CELLS = 1 << 26 };

static int64_t cells_along(int64_t extent, int64_t cell)
{
    return extent / cell + (extent % cell != 0);
}

static int64_t keys_of(const attn_tensor *mask)
{
    return mask->shape[3] * attn_mask_each(mask->dtype);
}

attn_cells attn_cells_plan(const attn_problem *problem, attn_arena *arena, uint64_t *offset)
{
    const int64_t *shape = problem->mask.shape;
    attn_cells cells = {NULL, 0, 0};
    *offset = arena->bytes;
    if (problem->mask.data == NULL || keys_of(&problem->mask) < LEAST_KEYS) {
        return cells;
    }
    const int64_t rows = cells_along(shape[2], ATTN_CELL_ROWS),
                  keys = cells_along(keys_of(&problem->mask), ATTN_CELL_KEYS);
    if ((double)shape[0] * (double)shape[1] * (double)rows * (double)keys <= (double)MOST_CELLS) {
        cells.rows = rows, cells.keys = keys;
        *offset = attn_arena_take(arena, shape[0] * shape[1] * rows, keys, 1);
    }
    return cells;
}

/* ---- reading the mask ------------------------------------------------------------------------ */

typedef struct cells_job {
    const attn_tensor *mask;
    const attn_cells *cells;
    unsigned char *kind;
} cells_job;

/* Adds n positions of a row: whether some are visible, whether some are not. */
static void look(const char *at, int64_t stride, int32_t dtype, int64_t n, unsigned char *seen,
                 unsigned char *hidden)
{
    unsigned char some = 0, none = 0;
    if (dtype == ATTN_B1X8) { /* bits beyond Nk may make a cell PARTIAL */
        for (int64_t i = 0; i < n / 8; i++) {
            const unsigned char bits = (unsigned char)at[i * stride];
            some |= bits != 0, none |= bits != 0xFF;
        }
    } else if (stride == 1 && attn_dtype_size(dtype) == 1) {
        for (int64_t i = 0; i < n; i++) {
            some |= at[i] != 0, none |= at[i] == 0;
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            const bool visible = attn_mask_shows(at, stride, dtype, i);
            some |= visible, none |= !visible;
        }
    }
    *seen |= some, *hidden |= none;
}

/* A line of cells: index of (batch, head, row cell). */
static void line_task(const void *arg, int64_t index, int32_t thread)
{
    const cells_job *job = arg;
    const attn_tensor *mask = job->mask;
    const int64_t plane = index / job->cells->rows, row = index % job->cells->rows * ATTN_CELL_ROWS;
    const int64_t b = plane / mask->shape[1], h = plane % mask->shape[1];
    const int64_t end = min64(row + ATTN_CELL_ROWS, mask->shape[2]);
    const int64_t each = attn_mask_each(mask->dtype);
    unsigned char *kind = job->kind + index * job->cells->keys;
    (void)thread;
    for (int64_t cell = 0; cell < job->cells->keys; cell++) {
        const int64_t key = cell * ATTN_CELL_KEYS;
        const int64_t n = min64(ATTN_CELL_KEYS, keys_of(mask) - key);
        unsigned char seen = 0, hidden = 0;
        for (int64_t i = row; i < end && !(seen && hidden); i++) {
            look(attn_at(mask, b, h, i, key / each), mask->stride[3], mask->dtype, n, &seen,
                 &hidden);
        }
        kind[cell] = !seen ? ATTN_TILE_SKIP : hidden ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
    }
}

void attn_cells_fill(attn_cells *cells, const attn_problem *problem, const attn_executor *executor,
                     void *kind)
{
    const cells_job job = {&problem->mask, cells, kind};
    cells->kind = cells->rows > 0 ? kind : NULL;
    if (cells->kind) {
        const int64_t lines = problem->mask.shape[0] * problem->mask.shape[1] * cells->rows;
        attn_tasks_run(executor, lines, line_task, &job, NULL);
    }
}
