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
 *     visible  [key_block][strip] bytes  for the careful path (cpu/forward/forward.c)
 *     lanes    4 x [strip]               lo, hi, slope, distance of the strip at hand
 *     strips   per strip of the item: QT (q_bytes), OT [dv_pad][strip], attn_running 4 x [strip]
 *     nodes    per strip of the item: node_depth times attn_node (nodes.h), O [d_v][strip]
 */
#include "core/arena.h"
#include "core/mask.h"
#include "core/segment.h"
#include "cpu/forward/forward.h"
#include "cpu/forward/nodes.h"
#include "cpu/real.h"

static int64_t longest_sequence(const attn_problem *p)
{
    int64_t rows = p->varlen ? 0 : p->q.shape[1];
    for (int64_t b = 0; p->varlen && b < p->batch; b++) {
        rows = max64(rows, attn_problem_sequence(p, b).nq);
    }
    return rows;
}

static int64_t most_segments(const attn_problem *p)
{
    int64_t keys = p->varlen ? 0 : p->keys;
    for (int64_t b = 0; p->varlen && b < p->batch; b++) {
        keys = max64(keys, attn_problem_sequence(p, b).nk);
    }
    return round_up(keys, ATTN_SEGMENT) / ATTN_SEGMENT;
}

/* K and V are packed again for each item, so more rows cost less; but the strips of an item should
 * stay in half of the L2 cache, and each thread should have a few items. The items of the longest
 * sequence are equally large: a short last item would pack K and V for few rows. */
static int64_t strips_per_item(const attn_cpu_plan *plan, const attn_problem *p,
                               const attn_machine *machine)
{
    int64_t l2 = machine->caches.l2 > 0 ? machine->caches.l2 : 512 << 10, strip = plan->uk->strip;
    int64_t most = min64(l2 / 2 / (int64_t)plan->scratch.strip_bytes, ATTN_MAX_STRIPS);
    int64_t rows = p->q.shape[0] * p->q.shape[1] * p->heads;
    most = max64(min64(most, rows / machine->threads / 4 / strip), 1);
    if (rows == 0) {
        return 1;
    }
    const int64_t strips = max64(round_up(longest_sequence(p) * p->group, strip) / strip, 1);
    const int64_t items = round_up(strips, most) / most;
    return round_up(strips, items) / items;
}

const attn_ukernel *attn_cpu_table(const attn_isa *isa, const attn_problem *p)
{
    if (p->q.dtype == ATTN_F64) {
        return isa->f64;
    }
    if (p->precise) {
        return isa->precise;
    }
    if (p->q.dtype == ATTN_F32) {
        return p->bf16x3 ? isa->bf16x3 : isa->f32;
    }
    return p->q.dtype == ATTN_BF16 ? isa->bf16 : isa->f16;
}

/* Cannot overflow: head dims end at 2^40. */
static void map_strip(attn_cpu_plan *plan, const attn_problem *p)
{
    attn_scratch_map *m = &plan->scratch;
    const attn_ukernel *uk = plan->uk;
    attn_arena arena = {0};
    (void)attn_arena_take(&arena, 1, 1, uk->q_bytes(p->d));
    m->strip_ot = attn_arena_take(&arena, plan->dv_pad, uk->strip, (uint64_t)uk->real_size);
    m->strip_state = attn_arena_take(&arena, 4, uk->strip, (uint64_t)uk->real_size);
    m->strip_bytes = arena.bytes;
    arena = (attn_arena){0};
    (void)attn_arena_take(&arena, 1, 1, sizeof(attn_node));
    (void)attn_arena_take(&arena, p->dv, uk->strip, (uint64_t)uk->real_size);
    m->node_bytes = arena.bytes;
}

static void map_scratch(attn_cpu_plan *plan, const attn_problem *p, attn_arena *total)
{
    attn_scratch_map *m = &plan->scratch;
    const attn_ukernel *uk = plan->uk;
    const uint64_t row = (uint64_t)uk->strip * (uint64_t)uk->real_size, p_bytes = uk->p_bytes();
    const bool tensors = p->mask.data || p->bias.data;
    attn_arena arena = {0};
    m->k = attn_arena_take(&arena, 1, 1, uk->k_bytes(p->d));
    m->v = attn_arena_take(&arena, 1, 1, uk->v_bytes(plan->dv_pad));
    m->s = attn_arena_take(&arena, p_bytes ? 2 : 1, uk->key_tile, row);
    m->p = p_bytes ? attn_arena_take(&arena, 1, 1, p_bytes) : m->s;
    m->bias = attn_arena_take(&arena, tensors ? uk->key_tile : 0, 1, row);
    m->visible = attn_arena_take(&arena, uk->key_block, uk->strip, 1);
    m->lanes = attn_arena_take(&arena, 1, 1, attn_score_lane_bytes(uk));
    m->strips = attn_arena_take(&arena, plan->strips, 1, m->strip_bytes);
    m->nodes = attn_arena_take(&arena, plan->strips * plan->node_depth, 1, m->node_bytes);
    m->total = arena.bytes;
    total->overflow |= arena.overflow;
}

/* Outputs without elements need no rows, however many there are. */
static bool nothing_to_write(const attn_problem *p)
{
    return p->dv == 0 && !p->lse.data && !p->row_max.data;
}

static void plan_schedule(attn_cpu_plan *plan, const attn_problem *p)
{
    attn_schedule *s = &plan->schedule;
    s->sequences = attn_problem_sequences(p);
    s->block_rows = plan->strips * plan->uk->strip;
    int64_t different = nothing_to_write(p) ? 0
                        : p->varlen         ? s->sequences
                        : s->sequences > 0  ? 1
                                            : 0;
    for (int64_t b = 0; b < different; b++) {
        attn_sequence sequence = attn_problem_sequence(p, b);
        s->items += attn_schedule_blocks(p, &sequence, s->block_rows) * p->kv_heads;
    }
    if (!p->varlen) {
        s->items *= s->sequences;
    }
}

attn_status attn_cpu_plan_forward(attn_cpu_plan *plan, const attn_problem *p,
                                  const attn_machine *machine)
{
    const int64_t most = INT64_C(1) << 40;
    int64_t rows;
    if (p->d > most || p->dv > most || p->keys > INT64_MAX / 4 ||
        __builtin_mul_overflow(p->q.shape[0], p->q.shape[1], &rows) ||
        __builtin_mul_overflow(rows, p->heads, &rows) || rows > INT64_MAX / 4) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "q.shape = (%lld, %lld, %lld, %lld), k.shape[1] = %lld or d_v = %lld is "
                         "too large to count",
                         (long long)p->q.shape[0], (long long)p->q.shape[1], (long long)p->heads,
                         (long long)p->d, (long long)p->k.shape[1], (long long)p->dv);
    }
    *plan = (attn_cpu_plan){.uk = attn_cpu_table(machine->isa, p)};
    plan->dv_pad = round_up(p->dv, plan->uk->granule);
    map_strip(plan, p);
    plan->strips = strips_per_item(plan, p, machine);
    plan->scores = attn_plan_scores(p, plan->uk);
    const int64_t segments = most_segments(p);
    plan->node_depth = segments > 1 || p->sinks.data ? attn_segment_depth(max64(segments, 1)) : 0;
    plan_schedule(plan, p);
    plan->threads =
        plan->schedule.items < machine->threads ? (int32_t)plan->schedule.items : machine->threads;
    plan->threads = plan->threads < 1 ? 1 : plan->threads;
    attn_arena workspace = {0};
    map_scratch(plan, p, &workspace);
    (void)attn_arena_take(&workspace, p->varlen ? plan->schedule.sequences + 1 : 0, 1,
                          sizeof(int64_t));
    plan->cells = attn_cells_plan(p, &workspace, &plan->cells_at);
    /* the executor may use any of the machine's thread numbers */
    plan->table_bytes = attn_arena_take(&workspace, machine->threads, 1, plan->scratch.total);
    return attn_arena_room(&workspace, &plan->workspace_bytes);
}

attn_tile_count attn_cpu_count_tiles(const attn_cpu_plan *plan, const attn_problem *p)
{
    attn_tile_count total = {0};
    bool alike = attn_problem_is_whole(p);
    int64_t all = plan->schedule.items > 0 ? plan->schedule.sequences : 0,
            different = alike && all > 0 ? 1 : all;
    int64_t times = alike ? all * p->kv_heads : p->kv_heads;
    const attn_tiling tiling = {plan->uk->strip, p->group, plan->uk->key_tile};
    for (int64_t b = 0; b < different; b++) {
        attn_sequence s = attn_problem_sequence(p, b);
        attn_count_tiles(&total, p, &s, &tiling, times);
    }
    return total;
}

void attn_cpu_forward_costs(const attn_cpu_plan *plan, const attn_problem *p, attn_plan *out)
{
    const attn_tile_count tiles = attn_cpu_count_tiles(plan, p);
    const double blocks =
        (double)p->group * (double)p->q.shape[1] / (double)plan->schedule.block_rows;
    attn_count_costs(&tiles, p, blocks, plan->uk->real_size, out);
}
