/*
 * plan.c: problem x machine -> plan of the forward pass: kernel table, rows per item, threads,
 * workspace map. Pure.
 *
 * One thread's scratch (every region a multiple of 64 bytes):
 *
 *     k        a block of keys, packed   (the table's k_bytes)
 *     v        a block of values, packed (v_bytes)
 *     s        [key_tile][strip]         scores, two tiles if the probabilities are apart
 *     p        probabilities             (p_bytes; none if they are in place of the scores)
 *     bias     [key_tile][strip]         only with a mask or bias tensor
 *     seen     [key_block] words         for strips that are done again (cpu/specials.h)
 *     specials 2 x [dv_pad] times attn_special_words(key_block)   for the same
 *     lanes    4 x [strip]               lo, hi, slope, distance of the strip at hand
 *     strips   per strip of the item: QT (q_bytes), OT [dv_pad][strip], attn_running 4 x [strip]
 *     nodes    per strip of the item: attn_node x node_depth (nodes.h)
 *     sums     node_depth times: per strip of the item: OT, of the sums above the oldest. Those of
 *              one level are used together: side by side they spread over the cache
 */
#include "cpu/forward/plan.h"
#include "core/arena.h"
#include "core/mask.h"
#include "core/segment.h"
#include "core/append.h"
#include "cpu/forward/blocks.h"
#include "cpu/forward/brief.h"
#include "cpu/real.h"
#include "cpu/keys.h"
#include <math.h>

enum {
    MOST_ROW_KEYS = 256,         /* beyond them sums as columns cost as little */
    MOST_PIECE_BYTES = 32 << 20, /* families beyond it are not shared, or in part */
    MOST_SHARED_STRIPS = 8,      /* of a task: few of its products' time is left to packing */
    TASKS_EACH = 4,              /* for each thread, so that all end at about the same time */
    NEAR_BYTES = 4096,           /* of rows that are fetched ahead of their turn .. */
    FAR_BYTES = 12288            /* .. by processors that follow many runs */
};

/* Least time of a task, in ns: of one that is its thread's only one, and of one of several, each of
 * which costs its thread some hundred ns. */
static const double LEAST_TASK = 1000, SHORT_TASK = 3000;

static int64_t most_segments(const attn_problem *problem, const attn_ukernel *table)
{
    int64_t keys = problem->varlen ? 0 : problem->keys;
    for (int64_t b = 0; problem->varlen && b < problem->batch; b++) {
        keys = max64(keys, attn_problem_sequence(problem, b).nk);
    }
    return round_up(keys, table->segment) / table->segment;
}

/* True for codes that the table of codes takes: with scales that 32 columns share, no shifts. */
static bool are_plain_codes(const attn_tensor *tensor, const attn_codes *codes, int64_t columns)
{
    const int64_t groups = attn_code_groups(codes);
    return attn_is_code(tensor->dtype) && !attn_tensor_present(codes->shift) &&
           (groups == 1 || columns / groups % 32 == 0);
}

const attn_ukernel *attn_cpu_table(const attn_isa *isa, uint32_t features,
                                   const attn_problem *problem)
{
    const bool codes = attn_is_code(problem->k.dtype) || attn_is_code(problem->v.dtype);
    if (problem->q.dtype == ATTN_F64) {
        return isa->f64;
    }
    const bool fast = isa->codes && (isa->codes_needs & ~features) == 0;
    if (codes && fast && !problem->precise && problem->q.dtype == ATTN_BF16 &&
        !problem->dropout.on && are_plain_codes(&problem->k, &problem->k_codes, problem->d) &&
        are_plain_codes(&problem->v, &problem->v_codes, problem->dv)) {
        return isa->codes;
    }
    if (problem->precise || codes) {
        return isa->precise; /* values of codes have the bits of f32 */
    }
    if (problem->q.dtype == ATTN_F32) {
        return problem->bf16x3 ? isa->bf16x3 : isa->f32;
    }
    return problem->q.dtype == ATTN_BF16 ? isa->bf16 : isa->f16;
}

/* Cannot overflow: head dims end at 2^40. */
static void map_strip(attn_cpu_plan *plan, const attn_problem *problem)
{
    attn_scratch_map *map = &plan->scratch;
    const attn_ukernel *table = plan->table;
    attn_arena arena = {0};
    (void)attn_arena_take(&arena, 1, 1, table->q_bytes(problem->d));
    map->strip_ot = attn_arena_take(&arena, plan->dv_pad, table->strip, (uint64_t)table->real_size);
    map->ot_bytes = arena.bytes - map->strip_ot;
    map->strip_state = attn_arena_take(&arena, 4, table->strip, (uint64_t)table->real_size);
    map->strip_bytes = arena.bytes;
}

static void map_scratch(attn_cpu_plan *plan, const attn_problem *problem, attn_arena *total)
{
    attn_scratch_map *map = &plan->scratch;
    const attn_ukernel *table = plan->table;
    const uint64_t row = (uint64_t)table->strip * (uint64_t)table->real_size,
                   p_bytes = table->p_bytes();
    const bool tensors = problem->mask.data || problem->bias.data;
    attn_arena arena = {0};
    map->k = attn_arena_take(&arena, 1, 1, table->k_bytes(problem->d));
    map->v = attn_arena_take(&arena, 1, 1, table->v_bytes(plan->dv_pad));
    map->s = attn_arena_take(&arena, p_bytes ? 2 : 1, table->key_tile, row);
    map->p = p_bytes ? attn_arena_take(&arena, 1, 1, p_bytes) : map->s;
    map->bias = attn_arena_take(&arena, tensors ? table->key_tile : 0, 1, row);
    map->seen = attn_arena_take(&arena, table->key_block, 1, sizeof(uint64_t));
    map->specials = attn_arena_take(&arena, plan->dv_pad, 2 * attn_special_words(table->key_block),
                                    sizeof(uint64_t));
    map->lanes = attn_arena_take(&arena, 1, 1, attn_score_lane_bytes(table));
    map->strip_count = max64(max64(plan->strips, plan->heads), plan->shared.strips);
    map->strips = attn_arena_take(&arena, map->strip_count, 1, map->strip_bytes);
    map->nodes = attn_arena_take(&arena, map->strip_count, plan->node_depth, sizeof(attn_node));
    map->sums = attn_arena_take(&arena, map->strip_count, plan->node_depth, map->ot_bytes);
    map->total = arena.bytes;
    total->overflow |= arena.overflow;
}

/* Outputs without elements need no rows, however many there are. */
static bool nothing_to_write(const attn_problem *problem)
{
    return problem->dv == 0 && !problem->lse.data && !problem->row_max.data &&
           !attn_tensor_present(&problem->k_new);
}

static void plan_schedule(attn_cpu_plan *plan, const attn_problem *problem, int32_t threads,
                          int64_t segments)
{
    attn_schedule *schedule = &plan->schedule;
    schedule->sequences = attn_problem_sequences(problem);
    schedule->block_rows = attn_item_rows(plan, problem, threads, segments);
    plan->strips = round_up(schedule->block_rows, plan->table->strip) / plan->table->strip;
    int64_t different = nothing_to_write(problem) ? 0
                        : problem->varlen         ? schedule->sequences
                        : schedule->sequences > 0 ? 1
                                                  : 0;
    for (int64_t b = 0; b < different; b++) {
        attn_sequence sequence = attn_problem_sequence(problem, b);
        schedule->items +=
            attn_schedule_blocks(problem, &sequence, schedule->block_rows) * problem->kv_heads;
    }
    if (!problem->varlen) {
        const int64_t heads = schedule->sequences * problem->kv_heads;
        schedule->items *= schedule->sequences;
        schedule->beside = heads % threads == 0 ? threads : 0;
    }
}

/* KV heads of a task. Where few rows read keys whose heads lie side by side, a task takes heads in
 * turn, block by block: head by head it would go through all pages of memory again for each. */
static int64_t heads_in_turn(const attn_cpu_plan *plan, const attn_problem *problem,
                             const attn_machine *machine, int64_t segments)
{
    const int64_t head = attn_axis_step(&problem->k, 2), key = attn_axis_step(&problem->k, 1),
                  rows = attn_longest_sequence(problem) * problem->group,
                  items = plan->schedule.items,
                  most = min64(attn_strips_in_cache(plan, machine), problem->kv_heads);
    const bool few = rows <= plan->table->few_lanes && rows <= plan->schedule.block_rows,
               beside = head > 0 && key > head && problem->keys > plan->table->key_block;
    if (!few || !beside || problem->mask.data || items == 0) {
        return 1;
    }
    int64_t heads = problem->kv_heads;
    while (heads % 2 == 0 &&
           (heads > most || (machine->threads > 1 &&
                             items / heads * segments < TASKS_EACH * (int64_t)machine->threads))) {
        heads /= 2;
    }
    return heads > most ? 1 : heads;
}

/* Cuts items of one strip and long sequences into pieces, several for each thread, where there are
 * few items. */
static void plan_pieces(attn_cpu_plan *plan, const attn_machine *machine, int64_t segments,
                        attn_arena *workspace)
{
    const int64_t items = plan->schedule.items / plan->heads,
                  want = TASKS_EACH * (int64_t)machine->threads;
    const bool cut = plan->strips == 1 && segments > 1 && items > 0,
               few = machine->threads > 1 && items < want / 2;
    attn_pieces *pieces = &plan->pieces;
    attn_arena arena = {0};
    (void)attn_arena_take(&arena, 1, 1, sizeof(attn_piece));
    (void)attn_arena_take(&arena, 1, 1, plan->scratch.ot_bytes);
    pieces->bytes = arena.bytes, pieces->count = 1;
    if (cut && few) {
        for (pieces->segments = 1; items * (segments / (2 * pieces->segments)) >= want;) {
            pieces->segments *= 2;
        }
        pieces->count = round_up(segments, pieces->segments) / pieces->segments;
    }
    pieces->offset = attn_arena_take(workspace, pieces->count > 1 ? plan->schedule.items : 0,
                                     pieces->count, pieces->bytes);
}

/* True where O is summed as rows (pv_rows), which saves its transposition at the end. Not over
 * many keys, beside which the transposition costs little; not over several segments, which are
 * joined as columns; not for long rows of V, which fall into few sets of the first-level cache. */
static bool sums_are_rows(const attn_ukernel *table, const attn_problem *problem, int depth)
{
    return table->row_columns > 0 && problem->keys <= MOST_ROW_KEYS && depth == 0 &&
           problem->dv % table->row_columns == 0 && problem->dv <= table->vector_bits / 2 &&
           problem->o.stride[3] == 1 && !problem->o_f32.data;
}

/* Joins short items to tasks of `grain` items, so that each thread gets equally many tasks. A very
 * short call is one task. Not with varlen, whose items may have any length. */
static void plan_tasks(attn_cpu_plan *plan, const attn_problem *problem, int32_t threads)
{
    const double time = attn_item_time(plan, problem, plan->schedule.block_rows);
    const int64_t items = plan->schedule.items;
    plan->grain = plan->brief ? max64(items, 1) : 1;
    if (!plan->brief && !problem->varlen && plan->heads == 1 && time < SHORT_TASK && items > 0) {
        const double all = (double)items * time;
        const int64_t each = max64((int64_t)(all / SHORT_TASK / threads), 1),
                      tasks = min64(max64((int64_t)(all / LEAST_TASK), 1), each * threads);
        plan->grain = (items + tasks - 1) / tasks;
    }
}

/* Rows of different sequences can share a strip where scores do not depend on the sequence, and
 * keys where every row sees all of the first ones. */
static bool may_share(const attn_cpu_plan *plan, const attn_problem *problem, int64_t segments)
{
    return problem->paged && !problem->varlen && problem->batch > 1 && segments > 1 &&
           plan->schedule.items > 0 && plan->pieces.count == 1 &&
           plan->shared.rows <= plan->table->strip && problem->window_left == ATTN_UNBOUNDED &&
           !problem->mask.data && !problem->bias.data && !problem->alibi.data &&
           !attn_tensor_present(&problem->pad_k) && !problem->dropout.on;
}

/* Takes memory for keys that sequences share, if they may share some. */
static void plan_shared(attn_cpu_plan *plan, const attn_problem *problem,
                        const attn_machine *machine, int64_t segments, attn_arena *workspace)
{
    attn_shared_room *room = &plan->shared;
    room->rows = problem->q.shape[1] * problem->group;
    const bool share = may_share(plan, problem, segments);
    const int64_t batch = share ? problem->batch : 0, strip = plan->table->strip;
    /* every strip of a family but its last one is full, and a family has two sequences */
    const double strips =
        ceil((double)batch * (double)room->rows / (double)strip) + (double)(batch / 2);
    const double most = strips * (double)problem->kv_heads * (double)segments,
                 fit = (double)MOST_PIECE_BYTES / (double)plan->pieces.bytes;
    room->pieces = share ? (int64_t)fmin(most, fit) : 0;
    room->strips =
        min64(min64(room->pieces, MOST_SHARED_STRIPS),
              min64(attn_strips_in_cache(plan, machine), (batch * room->rows + strip - 1) / strip));
    room->lists = attn_arena_take(workspace, batch, 3, sizeof(int64_t));
    room->families = attn_arena_take(workspace, batch / 2, 1, sizeof(attn_family));
    room->at = attn_arena_take(workspace, room->pieces, 1, plan->pieces.bytes);
    room->taken = attn_arena_take(workspace, share ? machine->threads : 0, 1, plan->pieces.bytes);
}

/* Runs in which rows are fetched: processors follow several farther ahead than one. Those of AMD do
 * best with two in f32, later ones with many. */
static int64_t soon_runs(const attn_problem *problem, const attn_machine *machine)
{
    const bool f32 = problem->k.dtype == ATTN_F32;
    return f32 && (machine->features & ATTN_CPU_MANY_RUNS)    ? 16
           : f32 && (machine->features & ATTN_CPU_FAST_PAIRS) ? 2
                                                              : 4;
}

static bool rows_are_far(const attn_problem *problem, const attn_machine *machine)
{
    const double rows = (double)problem->q.shape[0] * (double)problem->q.shape[1] *
                        (double)problem->heads,
                 row = (double)problem->d * (double)attn_element_size(problem->q.dtype) +
                       (double)problem->dv * (double)attn_element_size(problem->o.dtype);
    return rows * row > (double)attn_l2_bytes(machine);
}

/* Tasks of the longest loop, so that each finds scratch. The first loop is over items or pieces of
 * them, or over keys that sequences share, whose tasks sum a piece at least. The second one, over
 * items, joins what the first summed: KV heads in turn may have fewer pieces than items. */
static int64_t longest_loop(const attn_cpu_plan *plan)
{
    const bool joins = plan->pieces.count > 1 || plan->shared.pieces > 0;
    const int64_t first = max64(attn_cpu_tasks(plan), plan->shared.pieces);
    return max64(first, joins ? plan->schedule.items : 0);
}

attn_status attn_cpu_plan_forward(attn_cpu_plan *plan, const attn_problem *problem,
                                  const attn_machine *machine)
{
    const int64_t most = INT64_C(1) << 40;
    int64_t rows;
    if (problem->d > most || problem->dv > most || problem->keys > INT64_MAX / 4 ||
        !attn_count_extents(problem, 1, INT64_MAX / 4, &rows)) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "q.shape = (%lld, %lld, %lld, %lld), k.shape[1] = %lld or d_v = %lld is "
                         "too large to count",
                         (long long)problem->q.shape[0], (long long)problem->q.shape[1],
                         (long long)problem->heads, (long long)problem->d,
                         (long long)problem->k.shape[1], (long long)problem->dv);
    }
    *plan = (attn_cpu_plan){.table = attn_cpu_table(machine->isa, machine->features, problem)};
    plan->dv_pad = round_up(problem->dv, plan->table->granule);
    plan->soon_runs = soon_runs(problem, machine);
    plan->soon_bytes = machine->features & ATTN_CPU_MANY_RUNS ? FAR_BYTES : NEAR_BYTES;
    plan->far_rows = rows_are_far(problem, machine);
    map_strip(plan, problem);
    plan->strips = attn_strips_per_item(plan, problem, machine);
    plan->scores = attn_plan_scores(problem, plan->table);
    const int64_t segments = most_segments(problem, plan->table);
    plan->node_depth =
        segments > 1 || problem->sinks.data ? attn_segment_depth(max64(segments, 1)) : 0;
    plan_schedule(plan, problem, machine->threads, segments);
    attn_brief_plan(plan, problem);
    plan->by_rows = sums_are_rows(plan->table, problem, plan->node_depth);
    attn_arena workspace = {0};
    (void)attn_arena_take(&workspace, problem->varlen ? plan->schedule.sequences + 1 : 0, 1,
                          sizeof(int64_t));
    plan->cells = attn_cells_plan(problem, &workspace, &plan->cells_offset);
    plan->heads = plan->brief ? 1 : heads_in_turn(plan, problem, machine, segments);
    plan_pieces(plan, machine, segments, &workspace);
    plan_shared(plan, problem, machine, segments, &workspace);
    map_scratch(plan, problem, &workspace);
    plan_tasks(plan, problem, machine->threads);
    plan->threads = (int32_t)max64(min64(longest_loop(plan), machine->threads), 1);
    attn_rotated rotated;
    TRY(attn_rotated_place(problem, NULL, &rotated));
    plan->rotated = attn_arena_take(&workspace, 1, 1, rotated.bytes);
    plan->table_bytes = attn_arena_take(&workspace, plan->threads, 1, plan->scratch.total);
    return attn_arena_room(&workspace, "workspace", &plan->workspace_bytes);
}

attn_tile_count attn_cpu_count_tiles(const attn_cpu_plan *plan, const attn_problem *problem)
{
    attn_tile_count total = {0};
    bool alike = attn_problem_is_whole(problem);
    int64_t all = plan->schedule.items > 0 ? plan->schedule.sequences : 0,
            different = alike && all > 0 ? 1 : all;
    int64_t times = alike ? all * problem->kv_heads : problem->kv_heads;
    const attn_tiling tiling = {plan->table->strip, problem->group, plan->table->key_tile};
    for (int64_t b = 0; b < different; b++) {
        attn_sequence sequence = attn_problem_sequence(problem, b);
        attn_count_tiles(&total, problem, &sequence, &tiling, times);
    }
    return total;
}

void attn_cpu_forward_costs(const attn_cpu_plan *plan, const attn_problem *problem, attn_plan *out)
{
    const attn_tile_count tiles = attn_cpu_count_tiles(plan, problem);
    const double blocks =
        (double)problem->group * (double)problem->q.shape[1] / (double)plan->schedule.block_rows;
    attn_count_costs(&tiles, problem, blocks, plan->table->real_size, out);
}
