/*
 * trace_walk.c: see trace_walk.h.
 */
#include "trace_walk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static trace_place place_of(const trace_head *head, int64_t row, int64_t rows, int64_t key,
                            int64_t keys)
{
    int64_t visible = 0;
    for (int64_t i = row; i < row + rows; i++) {
        for (int64_t j = key; j < key + keys; j++) {
            visible += head->scores[i * head->nk + j] != -INFINITY;
        }
    }
    return (trace_place){row, rows, key, keys,
                         visible == 0             ? TRACE_SKIP
                         : visible == rows * keys ? TRACE_FULL
                                                  : TRACE_PARTIAL};
}

/* exp(score - maximum). A maximum of -inf says that no key was seen: then 0, never NaN (C1). */
static double power(double score, double maximum)
{
    return maximum == -INFINITY ? 0 : exp(score - maximum);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The state of a block of rows, and the tile at hand. */
struct block {
    double *scores, *tile_maximum, *maximum, *alpha, *sum, *before, *o;
};

static void add_row(const trace_head *head, const trace_place *place, struct block *block,
                    int64_t r)
{
    const double *s = head->scores + (place->row + r) * head->nk + place->key;
    double highest = -INFINITY, fresh = 0, *o = block->o + r * head->dv;
    for (int64_t j = 0; j < place->keys; j++) {
        block->scores[r * place->keys + j] = s[j];
        highest = fmax(highest, s[j]);
    }
    const double before = block->maximum[r], after = fmax(before, highest);
    const double alpha = before == -INFINITY ? 0 : power(before, after);
    for (int64_t j = 0; j < place->keys; j++) {
        fresh += power(s[j], after);
    }
    for (int64_t c = 0; c < head->dv; c++) {
        double part = 0;
        for (int64_t j = 0; j < place->keys; j++) {
            part += power(s[j], after) * head->v[(place->key + j) * head->dv + c];
        }
        block->before[r * head->dv + c] = o[c];
        o[c] = o[c] * alpha + part;
    }
    block->tile_maximum[r] = highest, block->maximum[r] = after, block->alpha[r] = alpha;
    block->sum[r] = block->sum[r] * alpha + fresh;
}

static void run_block(const trace_head *head, int64_t row, int64_t rows, int64_t keys,
                      int64_t first, int64_t end, struct block *block,
                      const trace_listener *listener)
{
    for (int64_t r = 0; r < rows; r++) {
        block->maximum[r] = -INFINITY, block->sum[r] = 0;
    }
    memset(block->o, 0, (size_t)(rows * head->dv) * sizeof *block->o);
    for (int64_t key = first; key < end; key += keys) {
        trace_tile tile = {.place = place_of(head, row, rows, key, least(keys, end - key))};
        if (tile.place.kind != TRACE_SKIP) {
            for (int64_t r = 0; r < rows; r++) {
                add_row(head, &tile.place, block, r);
            }
            tile = (trace_tile){tile.place,   block->scores, block->tile_maximum, block->maximum,
                                block->alpha, block->sum,    block->before,       block->o};
        }
        listener->tile(listener->user, &tile);
    }
}

bool trace_forward(const trace_head *head, int64_t rows, int64_t keys, int64_t first, int64_t end,
                   const trace_listener *listener, const trace_sums *sums)
{
    double *memory = calloc((size_t)(rows * (keys + 4 + 2 * head->dv)), sizeof *memory);
    if (memory == NULL) {
        return false;
    }
    struct block block = {.scores = memory, .tile_maximum = memory + rows * keys};
    block.maximum = block.tile_maximum + rows, block.alpha = block.maximum + rows;
    block.sum = block.alpha + rows, block.before = block.sum + rows;
    block.o = block.before + rows * head->dv;
    for (int64_t row = 0; row < head->nq; row += rows) {
        const int64_t count = least(rows, head->nq - row);
        run_block(head, row, count, keys, first, end, &block, listener);
        for (int64_t r = 0; r < count; r++) {
            const bool seen = block.sum[r] > 0;
            for (int64_t c = 0; c < head->dv; c++) {
                sums->o[(row + r) * head->dv + c] =
                    seen ? block.o[r * head->dv + c] / block.sum[r] : 0;
            }
            sums->lse[row + r] = seen ? block.maximum[r] + log(block.sum[r]) : -INFINITY;
        }
    }
    free(memory);
    return true;
}

/* ---- merge ----------------------------------------------------------------------------------- */

void trace_merge(const trace_head *head, const trace_sums *parts, int count, double *weight,
                 const trace_sums *whole)
{
    for (int64_t i = 0; i < head->nq; i++) {
        double highest = -INFINITY, sum = 0;
        for (int n = 0; n < count; n++) {
            highest = fmax(highest, parts[n].lse[i]);
        }
        for (int n = 0; n < count; n++) {
            sum += power(parts[n].lse[i], highest);
        }
        whole->lse[i] = highest == -INFINITY ? highest : highest + log(sum);
        memset(whole->o + i * head->dv, 0, (size_t)head->dv * sizeof *whole->o);
        for (int n = 0; n < count; n++) {
            weight[n * head->nq + i] = power(parts[n].lse[i], whole->lse[i]);
            for (int64_t c = 0; c < head->dv; c++) {
                whole->o[i * head->dv + c] +=
                    weight[n * head->nq + i] * parts[n].o[i * head->dv + c];
            }
        }
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++) {
        sum += a[c] * b[c];
    }
    return sum;
}

/* y += factor x. */
static void add(double *y, double factor, const double *x, int64_t n)
{
    for (int64_t c = 0; c < n; c++) {
        y[c] += factor * x[c];
    }
}

static void run_grad_tile(const trace_head *head, const trace_sums *forward,
                          const trace_place *place, double *memory, const trace_grads *grads,
                          const trace_listener *listener)
{
    const int64_t d = head->d, dv = head->dv, area = place->rows * place->keys;
    double *p = memory, *dp = p + area, *ds = dp + area, *delta = ds + area;
    for (int64_t r = 0; r < place->rows; r++) {
        const int64_t i = place->row + r;
        const double *d_o = head->d_o + i * dv;
        delta[r] = dot(d_o, forward->o + i * dv, dv);
        for (int64_t n = 0; n < place->keys; n++) {
            const int64_t j = place->key + n, at = r * place->keys + n;
            p[at] = power(head->scores[i * head->nk + j], forward->lse[i]);
            dp[at] = dot(d_o, head->v + j * dv, dv);
            ds[at] = p[at] * (dp[at] - delta[r]);
            add(grads->dq + i * d, head->scale * ds[at], head->k + j * d, d);
            add(grads->dk + j * d, head->scale * ds[at], head->q + i * d, d);
            add(grads->dv + j * dv, p[at], d_o, dv);
        }
    }
    const trace_grad_tile tile = {.place = *place,
                                  .p = p,
                                  .dp = dp,
                                  .delta = delta,
                                  .ds = ds,
                                  .dq = grads->dq + place->row * d,
                                  .dk = grads->dk + place->key * d,
                                  .dv = grads->dv + place->key * dv};
    listener->grad_tile(listener->user, &tile);
}

bool trace_backward(const trace_head *head, int64_t rows, int64_t keys, const trace_sums *forward,
                    const trace_listener *listener, const trace_grads *grads)
{
    double *memory = calloc((size_t)(rows * (3 * keys + 1)), sizeof *memory);
    for (int64_t row = 0; memory != NULL && row < head->nq; row += rows) {
        for (int64_t key = 0; key < head->nk; key += keys) {
            const trace_place place =
                place_of(head, row, least(rows, head->nq - row), key, least(keys, head->nk - key));
            if (place.kind == TRACE_SKIP) {
                listener->grad_tile(listener->user, &(trace_grad_tile){.place = place});
            } else {
                run_grad_tile(head, forward, &place, memory, grads, listener);
            }
        }
    }
    free(memory);
    return memory != NULL;
}
