/*
 * count.c: see count.h.
 */
#include "core/count.h"
#include "core/mask.h"

#include <math.h>

/* Multiplies *product by a number, 0 counting as 1. False if it then exceeds `most`. */
static bool multiply(int64_t *product, int64_t by, int64_t most)
{
    return !__builtin_mul_overflow(*product, by > 0 ? by : 1, product) && *product <= most;
}

bool attn_count_extents(const attn_problem *problem, int64_t keys, int64_t most, int64_t *rows)
{
    const int64_t *const n = problem->q.shape, heads = problem->heads > problem->kv_heads
                                                           ? problem->heads
                                                           : problem->kv_heads;
    int64_t of_rows = 1, of_keys = 1;
    const bool fits = multiply(&of_rows, n[0], most) && multiply(&of_rows, n[1], most) &&
                      multiply(&of_rows, heads, most) &&
                      multiply(&of_keys, attn_problem_sequences(problem), most) &&
                      multiply(&of_keys, heads, most) && multiply(&of_keys, keys, most);
    *rows = fits ? n[0] * n[1] * problem->heads : 0;
    return fits;
}

/* Visited tiles meet the hull. Full tiles lie within the common keys, as far as the hull
 * reaches. */
static attn_tile_count count_row(const attn_rows_mask *mask, int64_t nk, int64_t tile)
{
    int64_t all = nk / tile + (nk % tile != 0), visited = 0, full = 0;
    if (mask->hull.lo < mask->hull.hi) {
        int64_t first = mask->hull.lo / tile, last = (mask->hull.hi - 1) / tile;
        visited = last - first + 1;
        first = mask->hull.lo >= mask->common.lo ? first : (mask->common.lo + tile - 1) / tile;
        last = mask->hull.hi <= mask->common.hi ? last : mask->common.hi / tile - 1;
        full = last >= first ? last - first + 1 : 0;
    }
    return (attn_tile_count){full, visited - full, all - visited, 0};
}

/* The sum over a sequence's used rows i of i + from, cut to 0 .. nk: of one side of their
 * intervals. Bounds of rows low .. high - 1 are not cut. */
static double sum_of_bounds(const attn_sequence *sequence, double from)
{
    const double rows = (double)sequence->nq_used, keys = (double)sequence->nk,
                 low = fmin(fmax(-from, 0), rows), high = fmin(fmax(keys - from, low), rows);
    return (high - low) * (from + (low + high - 1) / 2) + (rows - high) * keys;
}

static double count_scores(const attn_problem *problem, const attn_sequence *sequence)
{
    double scores = (double)sequence->nq_used * (double)sequence->nk,
           diagonal = (double)sequence->diagonal;
    if (problem->window_right != ATTN_UNBOUNDED) {
        scores = sum_of_bounds(sequence, diagonal + (double)problem->window_right + 1);
    }
    if (problem->window_left != ATTN_UNBOUNDED) {
        scores -= sum_of_bounds(sequence, diagonal - (double)problem->window_left);
    }
    return fmax(scores, 0); /* sums beyond 2^53 are rounded */
}

/* ---- Rows of tiles --------------------------------------------------------------------------- */

typedef struct attn_count_place {
    const attn_problem *problem;
    const attn_sequence *s;
    const attn_tiling *tiling;
    int64_t rows;
} attn_count_place;

static attn_tile_count count_at(const attn_count_place *place, int64_t index)
{
    const int64_t row = index * place->tiling->rows, end = row + place->tiling->rows;
    const int64_t last = (end < place->rows ? end : place->rows) - 1;
    const int64_t end_query = last / place->tiling->fold + 1;
    const attn_rows_mask mask =
        attn_mask_range(place->problem, place->s, row / place->tiling->fold, end_query);
    return count_row(&mask, place->s->nk, place->tiling->keys);
}

/* Rows of tiles from `index` on in the same queries, whose tiles are alike. */
static int64_t alike_rows(const attn_count_place *place, int64_t index)
{
    const attn_tiling *t = place->tiling;
    return attn_clamp((t->fold - index * t->rows % t->fold) / t->rows, 1, INT64_MAX);
}

/* Rows of tiles from `index` on before the next query where a bound of the keys begins or ceases to
 * move with the queries; 0 beside such a query. */
static int64_t even_rows(const attn_count_place *place, int64_t index)
{
    const attn_problem *problem = place->problem;
    const attn_sequence *sequence = place->s;
    const int64_t left = problem->window_left != ATTN_UNBOUNDED
                             ? problem->window_left - sequence->diagonal
                             : 0,
                  right = problem->window_right != ATTN_UNBOUNDED
                              ? -problem->window_right - sequence->diagonal
                              : 0;
    const int64_t turns[] = {sequence->nq, sequence->nq_used,   left, left + sequence->nk,
                             right,        right + sequence->nk};
    int64_t even = place->rows;
    for (int i = 0; i < 6; i++) {
        /* in units of rows of tiles, and off by less than two of them */
        int64_t turn =
            attn_clamp(turns[i], 0, sequence->nq) * place->tiling->fold / place->tiling->rows;
        if (turn + 2 > index) {
            even = attn_clamp(turn - 2 - index, 0, even);
        }
    }
    return even;
}

/* Rows of tiles after which counts go on by the same differences: both bounds have moved by whole
 * tiles, and a row of tiles begins with a query. */
static int64_t period_of(const attn_tiling *t)
{
    int64_t a = t->rows, b = t->fold * t->keys;
    while (b != 0) {
        int64_t rest = a % b;
        a = b, b = rest;
    }
    return t->fold * t->keys / a;
}

/* Adds `first`, first + growth, .. of so many periods, `times` over; INT64_MAX is the most. */
static void add_series(int64_t *sum, int64_t first, int64_t growth, int64_t periods, int64_t times)
{
    const double most = 4e18, all = (double)periods * (double)times;
    const double even = (double)first * all, grown = (double)growth * all * (double)periods / 2;
    if (even < most && fabs(grown) < most && (double)*sum < most) {
        int64_t steps = growth != 0 ? periods * (periods - 1) / 2 : 0;
        *sum += (first * periods + growth * steps) * times;
    } else {
        double total = (double)*sum + even + grown;
        *sum = total < 9e18 ? (int64_t)total : INT64_MAX;
    }
}

static attn_tile_count count_rows(const attn_count_place *place, int64_t index, int64_t rows)
{
    attn_tile_count sum = {0};
    for (int64_t i = index, alike; i < index + rows; i += alike) {
        const attn_tile_count one = count_at(place, i);
        alike = attn_clamp(alike_rows(place, i), 1, index + rows - i);
        add_series(&sum.full, one.full, 0, alike, 1);
        add_series(&sum.partial, one.partial, 0, alike, 1);
        add_series(&sum.skipped, one.skipped, 0, alike, 1);
    }
    return sum;
}

void attn_count_tiles(attn_tile_count *count, const attn_problem *problem,
                      const attn_sequence *sequence, const attn_tiling *tiling, int64_t times)
{
    attn_count_place place = {problem, sequence, tiling, 0};
    if (__builtin_mul_overflow(sequence->nq, tiling->fold, &place.rows)) {
        place.rows = 0; /* beyond any plan */
    }
    const int64_t all = place.rows / tiling->rows + (place.rows % tiling->rows != 0),
                  period = period_of(tiling);
    for (int64_t index = 0; index < all;) {
        int64_t periods = even_rows(&place, index) / period;
        const bool many = periods > 2;
        const int64_t span = many ? period : alike_rows(&place, index);
        attn_tile_count one = count_rows(&place, index, span), next = one;
        if (many) {
            next = count_rows(&place, index + span, span);
        }
        periods = many ? periods : 1;
        add_series(&count->full, one.full, next.full - one.full, periods, times);
        add_series(&count->partial, one.partial, next.partial - one.partial, periods, times);
        add_series(&count->skipped, one.skipped, next.skipped - one.skipped, periods, times);
        index += span * periods;
    }
    count->scores += count_scores(problem, sequence) * (double)tiling->fold * (double)times;
}

/* ---- Costs ----------------------------------------------------------------------------------- */

double attn_count_bytes(const attn_tensor *tensor)
{
    double elements = (double)tensor->shape[0] * (double)tensor->shape[1] *
                      (double)tensor->shape[2] * (double)tensor->shape[3];
    return elements * (double)attn_dtype_size(tensor->dtype);
}

void attn_count_costs(const attn_tile_count *count, const attn_problem *problem, double kv_passes,
                      double real_size, attn_plan *plan)
{
    const double pages = problem->paged
                             ? (double)problem->table.shape[0] * (double)problem->table.shape[1] /
                                   fmax((double)problem->k.shape[0], 1)
                             : 1;
    double kv = (attn_count_bytes(&problem->k) + attn_count_bytes(&problem->v)) * pages;
    double once = attn_count_bytes(&problem->q) + attn_count_bytes(&problem->o) +
                  (problem->mask.data ? attn_count_bytes(&problem->mask) : 0) +
                  (problem->bias.data ? attn_count_bytes(&problem->bias) : 0);
    double scores = (double)problem->heads * (double)problem->q.shape[0] *
                    (double)problem->q.shape[1] * (double)problem->keys;
    plan->tiles_full = count->full;
    plan->tiles_partial = count->partial;
    plan->tiles_skipped = count->skipped;
    plan->flops = 2.0 * (double)(problem->d + problem->dv) * count->scores;
    plan->bytes_tiled = once + kv * fmax(kv_passes, 1);
    plan->bytes_standard = once + kv + 4 * scores * real_size;
}
