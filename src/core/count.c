/*
 * count.c: see count.h.
 */
#include "core/count.h"
#include "core/mask.h"

#include <math.h>

/* Visited tiles are those that meet the hull; full ones begin and end, as far as it reaches, in
 * what is common. */
static attn_tile_count count_row(const attn_rows_mask *m, int64_t nk, int64_t tile)
{
    int64_t all = nk / tile + (nk % tile != 0), visited = 0, full = 0;
    if (m->hull.lo < m->hull.hi) {
        int64_t first = m->hull.lo / tile, last = (m->hull.hi - 1) / tile;
        visited = last - first + 1;
        first = m->hull.lo >= m->common.lo ? first : (m->common.lo + tile - 1) / tile;
        last = m->hull.hi <= m->common.hi ? last : m->common.hi / tile - 1;
        full = last >= first ? last - first + 1 : 0;
    }
    return (attn_tile_count){full, visited - full, all - visited, 0};
}

/* The sum of all whole numbers below x, where those below 0 count as 0 and those beyond `most` as
 * it. */
static double sum_below(double x, double most)
{
    double inside = fmin(fmax(x, 0), most);
    return inside * (inside - 1) / 2 + fmax(x - most, 0) * most;
}

/* The sum over a sequence's used rows i of i + from, cut to 0 .. nk: of one side of their
 * intervals. */
static double sum_of_bounds(const attn_sequence *s, double from)
{
    return sum_below((double)s->nq_used + from, (double)s->nk) - sum_below(from, (double)s->nk);
}

static double count_scores(const attn_problem *p, const attn_sequence *s)
{
    double scores = (double)s->nq_used * (double)s->nk, diagonal = (double)s->diagonal;
    if (p->window_right != ATTN_UNBOUNDED) {
        scores = sum_of_bounds(s, diagonal + (double)p->window_right + 1);
    }
    if (p->window_left != ATTN_UNBOUNDED) {
        scores -= sum_of_bounds(s, diagonal - (double)p->window_left);
    }
    return scores;
}

void attn_count_tiles(attn_tile_count *count, const attn_problem *p, const attn_sequence *s,
                      const attn_tiling *tiling, int64_t times)
{
    const int64_t most = tiling->rows << 24, fold = tiling->fold;
    const int64_t rows = fold > 0 && s->nq <= most / fold ? s->nq * fold : 0;
    for (int64_t row = 0; row < rows; row += tiling->rows) {
        int64_t last = (row + tiling->rows < rows ? row + tiling->rows : rows) - 1;
        int64_t first_query = row / tiling->fold, end_query = last / tiling->fold + 1;
        attn_rows_mask m = attn_mask_range(p, s, first_query, end_query);
        if (end_query > s->nq_used) {
            m.common.hi = 0; /* rows that are not in use see nothing */
        }
        attn_tile_count one = count_row(&m, s->nk, tiling->keys);
        count->full += one.full * times;
        count->partial += one.partial * times;
        count->skipped += one.skipped * times;
    }
    count->scores += count_scores(p, s) * (double)tiling->fold * (double)times;
}

/* ---- Costs ----------------------------------------------------------------------------------- */

double attn_count_bytes(const attn_tensor *t)
{
    double elements =
        (double)t->shape[0] * (double)t->shape[1] * (double)t->shape[2] * (double)t->shape[3];
    return elements * (double)attn_dtype_size(t->dtype);
}

void attn_count_costs(const attn_tile_count *count, const attn_problem *p, double kv_passes,
                      double real_size, attn_plan *plan)
{
    double kv = attn_count_bytes(&p->k) + attn_count_bytes(&p->v);
    double once = attn_count_bytes(&p->q) + attn_count_bytes(&p->o) +
                  (p->mask.data ? attn_count_bytes(&p->mask) : 0) +
                  (p->bias.data ? attn_count_bytes(&p->bias) : 0);
    double scores =
        (double)p->heads * (double)p->q.shape[0] * (double)p->q.shape[1] * (double)p->k.shape[1];
    plan->tiles_full = count->full;
    plan->tiles_partial = count->partial;
    plan->tiles_skipped = count->skipped;
    plan->flops = 2.0 * (double)(p->d + p->dv) * count->scores;
    plan->bytes_tiled = once + kv * fmax(kv_passes, 1);
    plan->bytes_standard = once + kv + 4 * scores * real_size;
}
