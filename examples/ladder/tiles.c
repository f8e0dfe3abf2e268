/*
 * tiles.c: FlashAttention (Dao et al., arXiv 2205.14135; the order of loops is that of arXiv
 * 2307.08691, algorithm 1): a block of rows walks over tiles of keys, and each tile of K and V that
 * has been fetched serves all rows of the block. A tile's products are summed afresh and added to O
 * once; tiles that no row of the block sees are skipped.
 */
#include "ladder.h"
#include <math.h>

enum { ROWS = 32, KEYS = 64 };

/* A row's part of a tile: scores of keys first .. end-1 in, the row's state and O updated. */
static void add_tile(const ladder_head *head, int64_t row, int64_t first, int64_t end,
                     float *maximum, float *sum)
{
    float p[KEYS], highest = *maximum, fresh = 0, *o = head->o + row * head->dv;
    for (int64_t j = first; j < end; j++) {
        p[j - first] = ladder_score(head, row, j);
        highest = fmaxf(highest, p[j - first]);
    }
    const float alpha = expf(*maximum - highest);
    for (int64_t j = first; j < end; j++) {
        p[j - first] = expf(p[j - first] - highest);
        fresh += p[j - first];
    }
    for (int64_t c = 0; c < head->dv; c++) {
        float part = 0;
        for (int64_t j = first; j < end; j++) {
            part += p[j - first] * head->v[j * head->dv + c];
        }
        o[c] = o[c] * alpha + part;
    }
    *sum = *sum * alpha + fresh, *maximum = highest;
}

static void run_block(const ladder_head *head, int64_t row, int64_t rows)
{
    float maximum[ROWS], sum[ROWS];
    for (int64_t i = 0; i < rows; i++) {
        maximum[i] = -INFINITY, sum[i] = 0;
    }
    for (int64_t at = row * head->dv; at < (row + rows) * head->dv; at++) {
        head->o[at] = 0;
    }
    const int64_t seen = ladder_visible(head, row + rows - 1);
    for (int64_t key = 0; key < seen; key += KEYS) {
        const int64_t keys = seen - key < KEYS ? seen - key : KEYS;
        for (int64_t i = 0; i < rows; i++) {
            const int64_t visible = ladder_visible(head, row + i);
            if (visible > key) {
                const int64_t end = visible < key + keys ? visible : key + keys;
                add_tile(head, row + i, key, end, &maximum[i], &sum[i]);
            }
        }
        ladder_read(head, keys * (head->d + head->dv));
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t c = 0; c < head->dv && sum[i] > 0; c++) {
            head->o[(row + i) * head->dv + c] /= sum[i];
        }
    }
    ladder_read(head, rows * head->d);
    ladder_write(head, rows * head->dv);
}

void ladder_tiles(const ladder_head *head)
{
    for (int64_t row = 0; row < head->nq; row += ROWS) {
        run_block(head, row, head->nq - row < ROWS ? head->nq - row : ROWS);
    }
}
