/*
 * blocks.c: see blocks.h.
 */
#include "cpu/forward/blocks.h"
#include <math.h>

enum {
    EVEN_ITEMS = 8, /* of a thread: one of more is not worth waiting for */
    ROW_GROUP = 4   /* the fewest rows that products take at once */
};

/* ns: of an item beside its products; of an item that is not cut, where rows of K and V are panels
 * and where each part would pack them again */
static const double ITEM_TIME = 300, MOST_WHOLE = 4000, MOST_PACKED = 10000;

int64_t attn_longest_sequence(const attn_problem *problem)
{
    int64_t rows = problem->varlen ? 0 : problem->q.shape[1];
    for (int64_t b = 0; problem->varlen && b < problem->batch; b++) {
        rows = max64(rows, attn_problem_sequence(problem, b).nq);
    }
    return rows;
}

int64_t attn_l2_bytes(const attn_machine *machine)
{
    return machine->caches.l2 > 0 ? machine->caches.l2 : 512 << 10;
}

int64_t attn_strips_in_cache(const attn_cpu_plan *plan, const attn_machine *machine)
{
    const int64_t half = attn_l2_bytes(machine) / 2;
    return max64(min64(half / (int64_t)plan->scratch.strip_bytes, ATTN_MAX_STRIPS), 1);
}

/* K and V are packed again for each item, so more rows cost less; but the strips of an item should
 * stay in half of the L2 cache, and each thread should have a few items. The items of the longest
 * sequence are equally large: a short last item would pack K and V for few rows. */
int64_t attn_strips_per_item(const attn_cpu_plan *plan, const attn_problem *problem,
                             const attn_machine *machine)
{
    const int64_t strip = plan->table->strip,
                  rows = problem->q.shape[0] * problem->q.shape[1] * problem->heads,
                  share = rows / machine->threads / 4 / strip,
                  most = max64(min64(attn_strips_in_cache(plan, machine), share), 1);
    if (rows == 0) {
        return 1;
    }
    const int64_t strips =
        max64(round_up(attn_longest_sequence(problem) * problem->group, strip) / strip, 1);
    const int64_t items = round_up(strips, most) / most;
    return round_up(strips, items) / items;
}

double attn_item_time(const attn_cpu_plan *plan, const attn_problem *problem, int64_t block_rows)
{
    const double rows =
                     fmin((double)block_rows, (double)problem->q.shape[1] * (double)problem->group),
                 products = rows * (double)problem->keys * (double)(problem->d + problem->dv);
    return ITEM_TIME + products / plan->table->vector_bits * 16;
}

/* Returns the time after which all threads are done, where the rows of each head are cut into
 * blocks of `each`, and threads take blocks in turn, the shorter last ones first (core/schedule.h).
 * The unit is the time of a row. other: that of a block beside its rows. */
static int64_t last_done(int64_t heads, int64_t rows, int64_t each, int64_t other, int64_t threads)
{
    const int64_t whole = (rows - 1) / each, short_rows = rows - whole * each + other,
                  full = each + other, rounds = heads * whole / threads,
                  rest = heads * whole % threads, first = heads / threads,
                  ahead = heads % threads; /* threads that take one more of the short ones */
    const int64_t others = first * short_rows + (rounds + (rest > 0)) * full,
                  these = (first + 1) * short_rows + (rounds + (rest > threads - ahead)) * full;
    return ahead > 0 ? max64(others, these) : others;
}

/* Returns the rows of a block with which all threads are done soonest, where few blocks of `whole`
 * rows would leave threads idle at the end. Blocks under a causal mask differ in time anyway and
 * keep `whole`. */
static int64_t even_rows(const attn_cpu_plan *plan, const attn_problem *problem, int32_t threads,
                         int64_t rows, int64_t whole)
{
    const attn_ukernel *table = plan->table;
    const int64_t heads = attn_problem_sequences(problem) * problem->kv_heads,
                  vector = table->vector_bits / 8 / table->real_size, other = table->strip / 4,
                  blocks = (rows + whole - 1) / whole, most = ATTN_MAX_STRIPS * table->strip;
    if (problem->varlen || problem->window_right != ATTN_UNBOUNDED || blocks <= 1 ||
        heads % threads == 0 || blocks > EVEN_ITEMS * (int64_t)threads / heads) {
        return whole;
    }
    int64_t best = whole, least = last_done(heads, rows, whole, other, threads);
    for (int64_t n = blocks - blocks / 4; n <= blocks + threads; n++) {
        const int64_t each = round_up((rows + n - 1) / n, vector),
                      done = last_done(heads, rows, each, other, threads);
        if (done < least && each <= most) {
            least = done, best = each;
        }
    }
    return best;
}

/* Where heads are fewer than threads and the rows of each are few, a strip of a head's group is
 * cut: each part reads K and V again, which the caches hold. Long sequences are cut by keys
 * (plan.c). */
int64_t attn_item_rows(const attn_cpu_plan *plan, const attn_problem *problem, int32_t threads,
                       int64_t segments)
{
    const int64_t whole = plan->strips * plan->table->strip,
                  rows = problem->varlen ? whole + 1 : problem->q.shape[1] * problem->group,
                  items = attn_problem_sequences(problem) * problem->kv_heads;
    const bool in_place = plan->table->rows_are_panels &&
                          attn_element_size(problem->k.dtype) == plan->table->real_size;
    if (plan->strips > 1) {
        return even_rows(plan, problem, threads, rows, whole);
    }
    if (rows > whole || segments > 1 || items == 0 || items >= threads ||
        attn_item_time(plan, problem, whole) < (in_place ? MOST_WHOLE : MOST_PACKED)) {
        return whole;
    }
    const int64_t parts = threads / items, each = round_up((rows + parts - 1) / parts, ROW_GROUP);
    return each < rows ? each : whole;
}
