/*
 * dropout.c: the mask of dropout on its own, by the kernels that multiply it into probabilities.
 */
#include "cpu/backend.h"
#include "cpu/machine/tasks.h"
#include "cpu/ukernel/table_grad.h"
#include <string.h>

enum { KEYS = 32 }; /* of a tile, at most */

typedef struct dropout_job {
    const attn_dropout_problem *p;
    const attn_ukernel *table;
    int64_t blocks; /* of rows, a strip each */
} dropout_job;

/* keep = the tile's factors that are not 0, of `rows` rows. */
static void store(const attn_tensor *keep, const int64_t at[3], int64_t rows, int64_t key,
                  int64_t keys, const float *tile, int strip_index)
{
    for (int64_t lane = 0; lane < rows; lane++) {
        char *to = attn_at(keep, at[0], at[1], at[2] + lane, key);
        for (int64_t n = 0; n < keys; n++) {
            to[n * keep->stride[3]] = (char)(tile[n * strip_index + lane] != 0);
        }
    }
}

/* index: (batch, head, block of rows). */
static void mask_task(const void *arg, int64_t index, int32_t thread)
{
    const dropout_job *job = arg;
    const attn_tensor *keep = &job->p->keep;
    const int64_t heads = keep->shape[1], all = keep->shape[3], strip = job->table->strip;
    const int64_t at[3] = {index / job->blocks / heads, index / job->blocks % heads,
                           index % job->blocks * strip};
    const int64_t rows = min64(strip, keep->shape[2] - at[2]),
                  most = min64(KEYS, job->table->key_tile);
    const int64_t first_row = attn_origin(&job->p->q_origin, at[0]) + at[2],
                  first_key = attn_origin(&job->p->k_origin, at[0]);
    float tile[KEYS * ATTN_MAX_STRIP];
    attn_drop_tile drop = {.dropout = &job->p->dropout};
    (void)thread;
    for (int64_t lane = 0; lane < strip; lane++) {
        drop.query[lane] = (uint64_t)(first_row + min64(lane, rows - 1));
        drop.stream[lane] = attn_dropout_stream(&job->p->dropout, at[0], heads, at[1]);
    }
    for (int64_t key = 0; key < all; key += most) {
        const int64_t keys = min64(most, all - key);
        drop.first_key = first_key + key;
        job->table->grad->drop(tile, 0, keys, &drop, false);
        store(keep, at, rows, key, keys, tile, job->table->strip);
    }
}

/* Nothing is dropped. index: (batch, head, row). */
static void ones_task(const void *arg, int64_t index, int32_t thread)
{
    const dropout_job *job = arg;
    const attn_tensor *keep = &job->p->keep;
    const int64_t heads = keep->shape[1], rows = keep->shape[2];
    char *to = attn_at(keep, index / rows / heads, index / rows % heads, index % rows, 0);
    (void)thread;
    for (int64_t n = 0; n < keep->shape[3]; n++) {
        to[n * keep->stride[3]] = 1;
    }
}

attn_status attn_cpu_dropout_mask(const void *device, const attn_dropout_problem *problem,
                                  void *stream)
{
    const attn_cpu_device *cpu = device;
    const int64_t *shape = problem->keep.shape;
    dropout_job job = {.p = problem, .table = cpu->machine.isa->precise};
    (void)stream;
    job.blocks = problem->dropout.on ? (shape[2] - 1) / job.table->strip + 1 : shape[2];
    attn_tasks_run(&cpu->executor, shape[0] * shape[1] * job.blocks,
                   problem->dropout.on ? mask_task : ones_task, &job, job.table);
    return ATTN_OK;
}
