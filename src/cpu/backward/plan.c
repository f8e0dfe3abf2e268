/*
 * plan.c: problem x machine -> plan of the backward pass: passes, items, workspace map.
 * Pure.
 *
 * The workspace (every region a multiple of 64 bytes): tables of items of varlen passes; lse and
 * delta of all rows; partial, the sums of each key; sums of a d_bias whose elements share memory
 * (fold.h); then per thread:
 *
 *     k, kt, v       panels of a block of keys       a few blocks of keys
 *     dk, dv         [keys][d_pad], [keys][dv_pad]   their sums; dkv_sums of each (sums.h)
 *     qt, dot        q_bytes per strip               a row block, queries along the lanes
 *     q, d_o         x_bytes per strip               the same rows, columns along the lanes
 *     s, dp          [key_tile][strip]               a tile of S and dP; in place: of all strips
 *     p, ds, right   the table's forms of P and dS (table_grad.h); in place: none
 *     products       [key_tile][strip]               S before the softcap; only with one
 *     keep           [key_tile][strip]               only with dropout
 *     plain          [key_tile][strip]               dS without the scale; only for d_scores
 *     clean          v_bytes                         of an item that is done again: kt at hand
 *     seen           [key_block] words per strip     for the same (cpu/specials.h)
 *     kt_specials    [d_pad] times attn_special_words(key_block)   for the same
 *     q_specials     [row_block] times attn_special_words(d_pad), d_o_specials twice that of dv_pad
 *     bias           [key_tile][strip]               only with a mask or bias tensor
 *     lanes          4 x [strip]                     of scores.h
 *     lse, delta     [row_block]
 *     ones           [strip]
 *     dqt            [d_pad][strip] per strip        sums of dQ; dq_sums of each (sums.h)
 *     dq_stacks      attn_segment_stack per row block
 *     row_o, row_d_o q_bytes                         for delta of all rows
 *     sums           double [key_block + 1][row_block]   sums of dS; only if a bias is shared
 *     key_sums       double [keys][chains]           of each key sum (cpu/backward/bias.c)
 *
 * Threads that find no task have none.
 *
 * dqt makes the workspace grow with the number of rows, times the logarithm of the number of
 * segments: an item of all gradients has all rows of a KV head.
 */
#include "cpu/backward/plan.h"
#include "core/arena.h"
#include "core/count.h"
#include "core/overlap.h"
#include "core/segment.h"

enum { MOST_KEYS = 512, ITEM_ROW_BLOCKS = 4, LEAST_CHAINS = 4 };

int64_t attn_grad_blocks(const attn_grad_pass *pass, const attn_problem *problem,
                         const attn_sequence *sequence)
{
    if (pass->dq && pass->dkv) {
        return 1;
    }
    int64_t n = pass->dq ? sequence->nq * problem->group : sequence->k_rows;
    return n / pass->schedule.block_rows + (n % pass->schedule.block_rows != 0);
}

static int64_t different_sequences(const attn_problem *problem)
{
    return problem->varlen ? attn_problem_sequences(problem) : problem->batch > 0 ? 1 : 0;
}

static attn_grad_pass make_pass(const attn_problem *problem, bool dq, bool dkv, int64_t block)
{
    attn_grad_pass pass = {
        .schedule = {.block_rows = block, .sequences = attn_problem_sequences(problem)}};
    pass.dq = dq, pass.dkv = dkv;
    for (int64_t b = 0; b < different_sequences(problem); b++) {
        attn_sequence sequence = attn_problem_sequence(problem, b);
        pass.schedule.items += attn_grad_blocks(&pass, problem, &sequence) * problem->kv_heads;
    }
    pass.schedule.items *= problem->varlen ? 1 : pass.schedule.sequences;
    return pass;
}

/* All five products in one pass cost 5; two passes cost 3 + 4, but can be dealt out evenly. The
 * bits are the same. */
static bool split_is_faster(const attn_problem *problem, int32_t threads)
{
    double total = 0, largest = 0, items = 0;
    for (int64_t b = 0; b < different_sequences(problem); b++) {
        attn_sequence sequence = attn_problem_sequence(problem, b);
        double work = (double)sequence.nq * (double)sequence.nk,
               count = (double)problem->kv_heads * (problem->varlen ? 1 : (double)problem->batch);
        total += work * count;
        items += work > 0 ? count : 0;
        largest = work > largest ? work : largest;
    }
    if (items == 0 || threads == 1) {
        return false;
    }
    int64_t rounds = ((int64_t)items + threads - 1) / threads;
    double busiest = (double)rounds * total / items;
    return 5 * (busiest > largest ? busiest : largest) > 7 * total / threads;
}

static int64_t most_keys(const attn_grad_plan *plan, const attn_problem *problem)
{
    return round_up(problem->k.shape[1] > 0 ? problem->k.shape[1] : 1, plan->table->key_block);
}

/* Q and dO are packed again for each set of keys, so more keys cost less. Their panels and sums may
 * spill into the L3 cache, from which a row block reads them once. Tables with products of their
 * own are faster than that cache. */
static int64_t keys_at_once(const attn_grad_plan *plan, const attn_problem *problem,
                            const attn_machine *machine)
{
    const attn_ukernel *table = plan->table;
    const int64_t block = table->key_block, most = most_keys(plan, problem),
                  l2 = machine->caches.l2;
    const int64_t room = (l2 > 0 ? l2 : 512 << 10) * (table->grad->split ? 1 : 6) / 2;
    const int64_t panels = (int64_t)(table->k_bytes(problem->d) + table->v_bytes(plan->d_pad) +
                                     table->k_bytes(problem->dv));
    const int64_t bytes = panels / block + (plan->d_pad + plan->dv_pad) * table->real_size;
    int64_t keys = bytes > 0 ? room / bytes / block * block : MOST_KEYS;
    keys = keys < block ? block : keys > MOST_KEYS ? MOST_KEYS : keys;
    return keys > most ? most : keys;
}

/* The size of blocks of n things, `most` at most, so that each thread gets a few. */
static int64_t block_size(int64_t n, int64_t most, int64_t unit, int32_t threads)
{
    int64_t share = round_up(n / threads / 4 + 1, unit);
    return share < most ? share : most;
}

static void plan_passes(attn_grad_plan *plan, const attn_gradients *grads,
                        const attn_machine *machine)
{
    const attn_problem *problem = &grads->problem;
    const bool d_scores = plan->whole_bias || plan->key_sums > 0, dq = grads->dq.data != NULL;
    const bool dkv = grads->dk.data != NULL || grads->dv.data != NULL || d_scores;
    const int64_t keys = problem->q.shape[0] * problem->k.shape[1] * problem->kv_heads;
    const int64_t rows = plan->table->grad->row_block;
    int64_t row_block = block_size(plan->rows, ITEM_ROW_BLOCKS * rows, rows, machine->threads);
    int64_t key_block = block_size(keys, plan->keys, plan->table->key_block, machine->threads);
    if (dq && dkv && !split_is_faster(problem, machine->threads)) {
        plan->pass[plan->passes++] = make_pass(problem, true, true, INT64_MAX / 4);
    } else if (dkv) {
        plan->pass[plan->passes++] = make_pass(problem, false, true, key_block);
    }
    if (dq && (plan->passes == 0 || !plan->pass[0].dq)) {
        plan->pass[plan->passes++] = make_pass(problem, true, false, row_block);
    }
    plan->pass[0].d_scores = d_scores;
}

static void plan_key_sum(attn_grad_plan *plan, const attn_tensor *out, bool slopes)
{
    if (out->data) {
        plan->key_sum[plan->key_sums++] = (attn_key_sum){*out, slopes};
    }
}

/* Plans the gradients of a bias that the passes compute on their way (bias.h). Whole: no two scores
 * share an element of d_bias. */
static bool bias_is_whole(const attn_gradients *grads)
{
    const attn_problem *problem = &grads->problem;
    const int64_t *shape = grads->d_bias.shape;
    return grads->d_bias.data && !problem->varlen && shape[0] == problem->batch &&
           shape[1] == problem->heads && shape[2] == problem->q.shape[1] &&
           shape[3] == problem->k.shape[1];
}

static bool bias_is_key_sum(const attn_gradients *grads)
{
    return grads->d_bias.data && !bias_is_whole(grads) && grads->d_bias.shape[2] == 1;
}

/* Decides the ways of gradients with respect to scores. */
static void plan_scores(attn_grad_plan *plan, const attn_gradients *grads)
{
    const attn_tensor none = {0};
    const attn_tensor *d_bias = &grads->d_bias;
    const bool key_sum = bias_is_key_sum(grads);
    const bool fold = d_bias->data && attn_elements_may_meet(d_bias);
    plan->whole_bias = bias_is_whole(grads) && !fold;
    plan->shared_bias = d_bias->data && !plan->whole_bias && !key_sum;
    if (fold) {
        const int64_t rows = plan->table->grad->row_block, nq = d_bias->shape[2];
        plan->fold = attn_fold_plan(d_bias, (nq + rows - 1) / rows, 4 * (nq + d_bias->shape[3]));
    }
    plan_key_sum(plan, key_sum ? &grads->d_bias : &none, false);
    plan_key_sum(plan, &grads->d_alibi, true);
    plan->chains = grads->problem.group;
    while (plan->chains > 0 && plan->chains < LEAST_CHAINS) { /* 0 without query heads */
        plan->chains += grads->problem.group;
    }
}

/* Sums over segments of keys, over segments of rows. */
static void plan_sums(attn_grad_plan *plan, const attn_problem *problem)
{
    int64_t keys = 1, rows = 1;
    for (int64_t b = 0; b < different_sequences(problem); b++) {
        const attn_sequence sequence = attn_problem_sequence(problem, b);
        keys = max64(keys, sequence.k_rows); /* rows in use or not: lengths in use may differ from
                                              * run to run */
        rows = max64(rows, sequence.nq * problem->group);
    }
    plan->dq_segment = ATTN_DQ_SEGMENTS * plan->table->segment;
    plan->dkv_segment = ATTN_DKV_SEGMENTS * plan->table->segment;
    plan->dq_sums = attn_segment_sums(round_up(keys, plan->dq_segment) / plan->dq_segment);
    plan->dkv_sums = attn_segment_sums(round_up(rows, plan->dkv_segment) / plan->dkv_segment);
}

/* Rows whose dQ an item sums. */
static int64_t most_dq_rows(const attn_grad_plan *plan, const attn_problem *problem)
{
    const attn_grad_pass *pass = &plan->pass[plan->passes > 0 ? plan->passes - 1 : 0];
    int64_t most = 0;
    for (int64_t b = 0; b < different_sequences(problem) && pass->dq; b++) {
        attn_sequence sequence = attn_problem_sequence(problem, b);
        most = sequence.nq * problem->group > most ? sequence.nq * problem->group : most;
    }
    return round_up(most < pass->schedule.block_rows ? most : pass->schedule.block_rows,
                    plan->table->strip);
}

/* Sums over segments, one behind the other. */
static uint64_t map_sums(attn_arena *arena, int sums, int64_t lines, int64_t columns, uint64_t real,
                         uint64_t *bytes)
{
    attn_arena one = {0};
    (void)attn_arena_take(&one, lines, columns, real);
    *bytes = one.bytes;
    arena->overflow |= one.overflow;
    return attn_arena_take(arena, sums, 1, one.bytes);
}

/* P and dS: tiles, and the forms that products read; in tables without such forms, the tiles of all
 * strips. */
static void map_tiles(attn_grad_plan *plan, attn_arena *arena)
{
    attn_grad_map *map = &plan->map;
    const attn_ukernel *table = plan->table;
    const int64_t strips = table->grad->row_block / table->strip,
                  left = attn_grad_left_bytes(table);
    const int64_t tile = (int64_t)table->grad->key_tile * table->strip * table->real_size;
    const bool in_place = table->grad->split == NULL;
    map->s = attn_arena_take(arena, in_place ? strips * left : tile, 1, 1);
    map->dp = attn_arena_take(arena, in_place ? strips * left : tile, 1, 1);
    map->p = in_place ? map->s : attn_arena_take(arena, strips, left, 1);
    map->ds = in_place ? map->dp : attn_arena_take(arena, strips, left, 1);
    map->right = attn_arena_take(arena, in_place ? 0 : left, 1, 1);
}

static void map_scratch(attn_grad_plan *plan, const attn_problem *problem, attn_arena *total)
{
    attn_grad_map *map = &plan->map;
    const attn_ukernel *table = plan->table;
    const uint64_t real = (uint64_t)table->real_size;
    const int64_t rows = table->grad->row_block, strips = rows / table->strip,
                  panels = plan->keys / table->key_block;
    const int64_t tile = (int64_t)table->grad->key_tile * table->strip, d_pad = plan->d_pad,
                  dv_pad = plan->dv_pad;
    attn_arena arena = {0};
    map->k = attn_arena_take(&arena, panels, 1, table->k_bytes(problem->d));
    map->kt = table->rows_are_panels && problem->d == d_pad
                  ? map->k
                  : attn_arena_take(&arena, panels, 1, table->v_bytes(d_pad));
    map->v = attn_arena_take(&arena, panels, 1, table->k_bytes(problem->dv));
    map->dk = map_sums(&arena, plan->dkv_sums, plan->keys, d_pad, real, &plan->dk_bytes);
    map->dv = map_sums(&arena, plan->dkv_sums, plan->keys, dv_pad, real, &plan->dv_bytes);
    map->qt = attn_arena_take(&arena, strips, 1, table->q_bytes(problem->d));
    map->d_o_t = attn_arena_take(&arena, strips, 1, table->q_bytes(problem->dv));
    map->q = attn_arena_take(&arena, strips, 1, table->grad->x_bytes(d_pad));
    map->d_o = attn_arena_take(&arena, strips, 1, table->grad->x_bytes(dv_pad));
    map_tiles(plan, &arena);
    map->products = attn_arena_take(&arena, problem->softcap > 0 ? tile : 0, 1, real);
    map->keep = attn_arena_take(&arena, problem->dropout.on ? tile : 0, 1, real);
    map->plain = attn_arena_take(&arena, plan->pass[0].d_scores ? tile : 0, 1, real);
    map->clean = attn_arena_take(&arena, 1, 1, table->v_bytes(d_pad));
    map->seen = attn_arena_take(&arena, strips, table->key_block, sizeof(uint64_t));
    map->kt_specials =
        attn_arena_take(&arena, d_pad, attn_special_words(table->key_block), sizeof(uint64_t));
    map->q_specials = attn_arena_take(&arena, rows, attn_special_words(d_pad), sizeof(uint64_t));
    map->d_o_specials =
        attn_arena_take(&arena, 2 * rows, attn_special_words(dv_pad), sizeof(uint64_t));
    map->bias =
        attn_arena_take(&arena, problem->mask.data || problem->bias.data ? tile : 0, 1, real);
    map->lanes = attn_arena_take(&arena, (int64_t)attn_score_lane_bytes(table), 1, 1);
    map->lse = attn_arena_take(&arena, rows, 1, real);
    map->delta = attn_arena_take(&arena, rows, 1, real);
    map->ones = attn_arena_take(&arena, table->strip, 1, real);
    const int64_t dq_rows = most_dq_rows(plan, problem);
    map->dqt = map_sums(&arena, plan->dq_sums, dq_rows, d_pad, real, &plan->dq_bytes);
    map->dq_stacks = attn_arena_take(&arena, dq_rows / rows + 1, 1, sizeof(attn_segment_stack));
    map->sums =
        attn_arena_take(&arena, plan->shared_bias ? table->key_block + 1 : 0, rows, sizeof(double));
    map->key_sums =
        attn_arena_take(&arena, plan->key_sums * plan->keys, plan->chains, sizeof(double));
    map->row_o = attn_arena_take(&arena, 1, 1, plan->rows_table->q_bytes(problem->dv));
    map->row_d_o = attn_arena_take(&arena, 1, 1, plan->rows_table->q_bytes(problem->dv));
    map->total = arena.bytes;
    total->overflow |= arena.overflow;
}

/* Tasks of the longest loop whose tasks have scratch. */
static int64_t longest_loop(const attn_grad_plan *plan, const attn_gradients *grads)
{
    int64_t tasks = max64(attn_grad_delta_tasks(plan), attn_grad_shared_tasks(plan, grads));
    for (int i = 0; i < plan->passes; i++) {
        tasks = max64(tasks, plan->pass[i].schedule.items);
    }
    return tasks;
}

static void map_workspace(attn_grad_plan *plan, const attn_problem *problem, attn_arena *arena)
{
    const uint64_t real = (uint64_t)plan->table->real_size;
    for (int i = 0; i < plan->passes; i++) {
        plan->pass[i].items_offset = attn_arena_take(
            arena, problem->varlen ? attn_problem_sequences(problem) + 1 : 0, 1, sizeof(int64_t));
    }
    plan->lse_offset = attn_arena_take(arena, plan->rows, 1, real);
    plan->delta_offset = attn_arena_take(arena, plan->rows, 1, real);
    plan->partial_offset =
        attn_arena_take(arena, plan->key_sums * problem->q.shape[0] * problem->heads,
                        problem->k.shape[1], sizeof(double));
    plan->fold.sums_offset = attn_arena_take(
        arena, attn_fold_owners(&plan->fold) * plan->fold.chunks, plan->fold.span, sizeof(double));
    plan->cells = attn_cells_plan(problem, arena, &plan->cells_offset);
    map_scratch(plan, problem, arena);
    plan->scratch_offset = attn_arena_take(arena, (int64_t)plan->map.total, plan->threads, 1);
}

/* Tables with products of their own take dO in the type of Q only. */
static const attn_ukernel *table(const attn_isa *isa, const attn_gradients *grads)
{
    const bool mixed =
        grads->problem.q.dtype != ATTN_F64 && grads->d_o.dtype != grads->problem.q.dtype;
    return mixed ? isa->precise : attn_cpu_table(isa, 0, &grads->problem);
}

static bool nothing_to_write(const attn_gradients *grads)
{
    return !grads->dq.data && !grads->dk.data && !grads->dv.data && !grads->d_bias.data &&
           !grads->d_alibi.data && !grads->d_sinks.data;
}

/* Rows, and keys of each head, of all sequences together. */
static bool too_large(const attn_problem *problem, int64_t *rows)
{
    const int64_t most = INT64_C(1) << 40;
    return problem->d > most || problem->dv > most ||
           !attn_count_extents(problem, problem->k.shape[1], INT64_MAX / 64, rows);
}

attn_status attn_cpu_plan_backward(attn_grad_plan *plan, const attn_gradients *grads,
                                   const attn_machine *machine)
{
    const attn_problem *problem = &grads->problem;
    *plan = (attn_grad_plan){
        .table = table(machine->isa, grads),
        .rows_table = problem->q.dtype == ATTN_F64 ? machine->isa->f64 : machine->isa->precise,
        .threads = 1,
    };
    const int64_t pad = plan->table->grad->vector > plan->table->granule ? plan->table->grad->vector
                                                                         : plan->table->granule;
    if (nothing_to_write(grads)) {
        return ATTN_OK;
    }
    if (too_large(problem, &plan->rows)) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "q.shape = (%lld, %lld, %lld, %lld) or k.shape[1] = %lld is too large",
                         (long long)problem->q.shape[0], (long long)problem->q.shape[1],
                         (long long)problem->heads, (long long)problem->d,
                         (long long)problem->k.shape[1]);
    }
    plan->d_pad = round_up(problem->d, pad);
    plan->dv_pad = round_up(problem->dv, pad);
    plan->keys = keys_at_once(plan, problem, machine);
    plan->scores = attn_plan_scores(problem, plan->table);
    plan_scores(plan, grads);
    plan_passes(plan, grads, machine);
    plan_sums(plan, problem);
    attn_arena arena = {0};
    plan->threads = (int32_t)max64(min64(longest_loop(plan, grads), machine->threads), 1);
    map_workspace(plan, problem, &arena);
    return attn_arena_room(&arena, "workspace", &plan->workspace_bytes);
}
