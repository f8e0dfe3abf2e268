/*
 * plan.c: problem x machine -> plan of the backward pass: passes, items, workspace map.
 * Pure.
 *
 * The workspace (every region a multiple of 64 bytes): tables of items of varlen passes; lse and
 * delta of all rows; partial, the sums of each key; sums of a d_bias whose elements share memory
 * (fold.h); then per thread:
 *
 *     k, kt, v       panels of a block of keys       a few blocks of keys
 *     dk, dv         [keys][d_pad], [keys][dv_pad]   their sums
 *     qt, dot        q_bytes per strip               a row block, queries along the lanes
 *     q, d_o         x_bytes per strip               the same rows, columns along the lanes
 *     s, dp          [key_tile][strip]               a tile of S and dP; in place: of all strips
 *     p, ds, right   the table's forms of P and dS (table_grad.h); in place: none
 *     products       [key_tile][strip]               S before the softcap; only with one
 *     keep           [key_tile][strip]               only with dropout
 *     plain          [key_tile][strip]               dS without the scale; only for d_scores
 *     visible        [key_block][strip] per strip    bytes, for the careful path
 *     bias           [key_tile][strip]               only with a mask or bias tensor
 *     lanes          4 x [strip]                     of scores.h
 *     lse, delta     [row_block]
 *     ones           [strip]
 *     dqt            [d_pad][strip] per strip        sums of dQ
 *     row_o, row_d_o q_bytes                         for delta of all rows
 *     sums           double [key_block + 1][row_block]   sums of dS; only if a bias is shared
 *     key_sums       double [keys][chains]           of each key sum (cpu/backward/bias.c)
 *
 * dqt makes the workspace grow with the number of rows: an item of all gradients has all rows of a
 * KV head.
 */
#include "core/arena.h"
#include "core/overlap.h"
#include "cpu/backward/bias.h"

enum { MOST_KEYS = 512, ITEM_ROW_BLOCKS = 4, LEAST_CHAINS = 4 };

int64_t attn_grad_blocks(const attn_grad_pass *pass, const attn_problem *p, const attn_sequence *s)
{
    if (pass->dq && pass->dkv) {
        return 1;
    }
    int64_t n = pass->dq ? s->nq * p->group : s->k_rows;
    return n / pass->schedule.block_rows + (n % pass->schedule.block_rows != 0);
}

static int64_t different_sequences(const attn_problem *p)
{
    return p->varlen ? attn_problem_sequences(p) : p->batch > 0 ? 1 : 0;
}

static attn_grad_pass make_pass(const attn_problem *p, bool dq, bool dkv, int64_t block)
{
    attn_grad_pass pass = {
        .schedule = {.block_rows = block, .sequences = attn_problem_sequences(p)}};
    pass.dq = dq, pass.dkv = dkv;
    for (int64_t b = 0; b < different_sequences(p); b++) {
        attn_sequence s = attn_problem_sequence(p, b);
        pass.schedule.items += attn_grad_blocks(&pass, p, &s) * p->kv_heads;
    }
    pass.schedule.items *= p->varlen ? 1 : pass.schedule.sequences;
    return pass;
}

/* All five products in one pass cost 5; two passes cost 3 + 4, but can be dealt out evenly. The
 * bits are the same. */
static bool split_is_faster(const attn_problem *p, int32_t threads)
{
    double total = 0, largest = 0, items = 0;
    for (int64_t b = 0; b < different_sequences(p); b++) {
        attn_sequence s = attn_problem_sequence(p, b);
        double work = (double)s.nq * (double)s.nk,
               count = (double)p->kv_heads * (p->varlen ? 1 : (double)p->batch);
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

static int64_t most_keys(const attn_grad_plan *plan, const attn_problem *p)
{
    return round_up(p->k.shape[1] > 0 ? p->k.shape[1] : 1, plan->uk->key_block);
}

/* Q and dO are packed again for each set of keys, so more keys cost less. Their panels and sums may
 * spill into the L3 cache, from which a row block reads them once. Tables with products of their
 * own are faster than that cache. */
static int64_t keys_at_once(const attn_grad_plan *plan, const attn_problem *p,
                            const attn_machine *machine)
{
    const attn_ukernel *uk = plan->uk;
    const int64_t block = uk->key_block, most = most_keys(plan, p), l2 = machine->caches.l2;
    const int64_t room = (l2 > 0 ? l2 : 512 << 10) * (uk->grad->split ? 1 : 6) / 2;
    const int64_t panels =
        (int64_t)(uk->k_bytes(p->d) + uk->v_bytes(plan->d_pad) + uk->k_bytes(p->dv));
    const int64_t bytes = panels / block + (plan->d_pad + plan->dv_pad) * uk->real_size;
    int64_t keys = bytes > 0 ? room / bytes / block * block : MOST_KEYS;
    keys = keys < block ? block : keys > MOST_KEYS ? MOST_KEYS : keys;
    return keys > most ? most : keys;
}

/* Blocks of n at most, so that there are a few of them per thread. */
static int64_t block_size(int64_t n, int64_t most, int64_t unit, int32_t threads)
{
    int64_t share = round_up(n / threads / 4 + 1, unit);
    return share < most ? share : most;
}

static void plan_passes(attn_grad_plan *plan, const attn_gradients *g, const attn_machine *machine)
{
    const attn_problem *p = &g->p;
    const bool d_scores = plan->whole_bias || plan->key_sums > 0, dq = g->dq.data != NULL;
    const bool dkv = g->dk.data != NULL || g->dv.data != NULL || d_scores;
    const int64_t keys = p->q.shape[0] * p->k.shape[1] * p->kv_heads;
    const int64_t rows = plan->uk->grad->row_block;
    int64_t row_block = block_size(plan->rows, ITEM_ROW_BLOCKS * rows, rows, machine->threads);
    int64_t key_block = block_size(keys, plan->keys, plan->uk->key_block, machine->threads);
    if (dq && dkv && !split_is_faster(p, machine->threads)) {
        plan->pass[plan->passes++] = make_pass(p, true, true, INT64_MAX / 4);
    } else if (dkv) {
        plan->pass[plan->passes++] = make_pass(p, false, true, key_block);
    }
    if (dq && (plan->passes == 0 || !plan->pass[0].dq)) {
        plan->pass[plan->passes++] = make_pass(p, true, false, row_block);
    }
    plan->pass[0].d_scores = d_scores;
}

static void plan_key_sum(attn_grad_plan *plan, const attn_tensor *out, bool slopes)
{
    if (out->data) {
        plan->key_sum[plan->key_sums++] = (attn_key_sum){*out, slopes};
    }
}

/* Decides the ways of gradients with respect to scores. */
static void plan_scores(attn_grad_plan *plan, const attn_gradients *g)
{
    const attn_tensor none = {0};
    const attn_tensor *d_bias = &g->d_bias;
    const bool key_sum = attn_grad_bias_is_key_sum(g);
    const bool fold = d_bias->data && attn_elements_may_meet(d_bias);
    plan->whole_bias = attn_grad_bias_is_whole(g) && !fold;
    plan->shared_bias = d_bias->data && !plan->whole_bias && !key_sum;
    if (fold) {
        const int64_t rows = plan->uk->grad->row_block, nq = d_bias->shape[2];
        plan->fold = attn_fold_plan(d_bias, (nq + rows - 1) / rows, 4 * (nq + d_bias->shape[3]));
    }
    plan_key_sum(plan, key_sum ? &g->d_bias : &none, false);
    plan_key_sum(plan, &g->d_alibi, true);
    plan->chains = g->p.group;
    while (plan->chains > 0 && plan->chains < LEAST_CHAINS) { /* 0 without query heads */
        plan->chains += g->p.group;
    }
}

/* Rows whose dQ an item sums. */
static int64_t most_dq_rows(const attn_grad_plan *plan, const attn_problem *p)
{
    const attn_grad_pass *pass = &plan->pass[plan->passes > 0 ? plan->passes - 1 : 0];
    int64_t most = 0;
    for (int64_t b = 0; b < different_sequences(p) && pass->dq; b++) {
        attn_sequence s = attn_problem_sequence(p, b);
        most = s.nq * p->group > most ? s.nq * p->group : most;
    }
    return round_up(most < pass->schedule.block_rows ? most : pass->schedule.block_rows,
                    plan->uk->strip);
}

/* P and dS: tiles, and the forms that products read; in tables without such forms, the tiles of all
 * strips. */
static void map_tiles(attn_grad_plan *plan, attn_arena *arena)
{
    attn_grad_map *m = &plan->map;
    const attn_ukernel *uk = plan->uk;
    const int64_t strips = uk->grad->row_block / uk->strip, left = attn_grad_left_bytes(uk);
    const int64_t tile = (int64_t)uk->grad->key_tile * uk->strip * uk->real_size;
    const bool in_place = uk->grad->split == NULL;
    m->s = attn_arena_take(arena, in_place ? strips * left : tile, 1, 1);
    m->dp = attn_arena_take(arena, in_place ? strips * left : tile, 1, 1);
    m->p = in_place ? m->s : attn_arena_take(arena, strips, left, 1);
    m->ds = in_place ? m->dp : attn_arena_take(arena, strips, left, 1);
    m->right = attn_arena_take(arena, in_place ? 0 : left, 1, 1);
}

static void map_scratch(attn_grad_plan *plan, const attn_problem *p, attn_arena *total)
{
    attn_grad_map *m = &plan->map;
    const attn_ukernel *uk = plan->uk;
    const uint64_t real = (uint64_t)uk->real_size;
    const int64_t rows = uk->grad->row_block, strips = rows / uk->strip,
                  panels = plan->keys / uk->key_block;
    const int64_t tile = (int64_t)uk->grad->key_tile * uk->strip, d_pad = plan->d_pad,
                  dv_pad = plan->dv_pad;
    attn_arena arena = {0};
    m->k = attn_arena_take(&arena, panels, 1, uk->k_bytes(p->d));
    m->kt = uk->rows_are_panels && p->d == d_pad
                ? m->k
                : attn_arena_take(&arena, panels, 1, uk->v_bytes(d_pad));
    m->v = attn_arena_take(&arena, panels, 1, uk->k_bytes(p->dv));
    m->dk = attn_arena_take(&arena, plan->keys, d_pad, real);
    m->dv = attn_arena_take(&arena, plan->keys, dv_pad, real);
    m->qt = attn_arena_take(&arena, strips, 1, uk->q_bytes(p->d));
    m->dot = attn_arena_take(&arena, strips, 1, uk->q_bytes(p->dv));
    m->q = attn_arena_take(&arena, strips, 1, uk->grad->x_bytes(d_pad));
    m->d_o = attn_arena_take(&arena, strips, 1, uk->grad->x_bytes(dv_pad));
    map_tiles(plan, &arena);
    m->products = attn_arena_take(&arena, p->softcap > 0 ? tile : 0, 1, real);
    m->keep = attn_arena_take(&arena, p->dropout.on ? tile : 0, 1, real);
    m->plain = attn_arena_take(&arena, plan->pass[0].d_scores ? tile : 0, 1, real);
    m->visible = attn_arena_take(&arena, rows, uk->key_block, 1);
    m->bias = attn_arena_take(&arena, p->mask.data || p->bias.data ? tile : 0, 1, real);
    m->lanes = attn_arena_take(&arena, (int64_t)attn_score_lane_bytes(uk), 1, 1);
    m->lse = attn_arena_take(&arena, rows, 1, real);
    m->delta = attn_arena_take(&arena, rows, 1, real);
    m->ones = attn_arena_take(&arena, uk->strip, 1, real);
    m->dqt = attn_arena_take(&arena, most_dq_rows(plan, p), d_pad, real);
    m->sums =
        attn_arena_take(&arena, plan->shared_bias ? uk->key_block + 1 : 0, rows, sizeof(double));
    m->key_sums =
        attn_arena_take(&arena, plan->key_sums * plan->keys, plan->chains, sizeof(double));
    m->row_o = attn_arena_take(&arena, 1, 1, plan->rows_uk->q_bytes(p->dv));
    m->row_d_o = attn_arena_take(&arena, 1, 1, plan->rows_uk->q_bytes(p->dv));
    m->total = arena.bytes;
    total->overflow |= arena.overflow;
}

static void map_workspace(attn_grad_plan *plan, const attn_problem *p, const attn_machine *machine,
                          attn_arena *arena)
{
    const uint64_t real = (uint64_t)plan->uk->real_size;
    for (int i = 0; i < plan->passes; i++) {
        plan->pass[i].table = attn_arena_take(arena, p->varlen ? attn_problem_sequences(p) + 1 : 0,
                                              1, sizeof(int64_t));
    }
    plan->lse = attn_arena_take(arena, plan->rows, 1, real);
    plan->delta = attn_arena_take(arena, plan->rows, 1, real);
    plan->partial = attn_arena_take(arena, plan->key_sums * p->q.shape[0] * p->heads, p->k.shape[1],
                                    sizeof(double));
    plan->fold.sums = attn_arena_take(arena, attn_fold_owners(&plan->fold) * plan->fold.chunks,
                                      plan->fold.span, sizeof(double));
    plan->cells = attn_cells_plan(p, arena, &plan->cells_at);
    map_scratch(plan, p, arena);
    /* the executor may use any of the machine's thread numbers */
    plan->scratch = attn_arena_take(arena, (int64_t)plan->map.total, machine->threads, 1);
}

/* Tables with products of their own take dO in the type of Q only. */
static const attn_ukernel *table(const attn_isa *isa, const attn_gradients *g)
{
    const bool mixed = g->p.q.dtype != ATTN_F64 && g->d_o.dtype != g->p.q.dtype;
    return mixed ? isa->precise : attn_cpu_table(isa, &g->p);
}

static bool nothing_to_write(const attn_gradients *g)
{
    return !g->dq.data && !g->dk.data && !g->dv.data && !g->d_bias.data && !g->d_alibi.data &&
           !g->d_sinks.data;
}

/* Rows, and keys of each head, of all sequences together. */
static bool too_large(const attn_problem *p, int64_t *rows)
{
    const int64_t most = INT64_C(1) << 40, nk = p->k.shape[1];
    int64_t heads, keys;
    return p->d > most || p->dv > most || nk > INT64_MAX / 64 ||
           __builtin_mul_overflow(p->q.shape[0], p->q.shape[1], rows) ||
           __builtin_mul_overflow(*rows, p->heads, rows) || *rows > INT64_MAX / 64 ||
           __builtin_mul_overflow(attn_problem_sequences(p), max64(p->heads, p->kv_heads),
                                  &heads) ||
           __builtin_mul_overflow(heads, max64(nk, 1), &keys) || keys > INT64_MAX / 64;
}

attn_status attn_cpu_plan_backward(attn_grad_plan *plan, const attn_gradients *g,
                                   const attn_machine *machine)
{
    const attn_problem *p = &g->p;
    *plan = (attn_grad_plan){
        .uk = table(machine->isa, g),
        .rows_uk = p->q.dtype == ATTN_F64 ? machine->isa->f64 : machine->isa->precise,
    };
    const int64_t pad =
        plan->uk->grad->vector > plan->uk->granule ? plan->uk->grad->vector : plan->uk->granule;
    if (nothing_to_write(g)) {
        return ATTN_OK;
    }
    if (too_large(p, &plan->rows)) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "q.shape = (%lld, %lld, %lld, %lld) or k.shape[1] = %lld is too large",
                         (long long)p->q.shape[0], (long long)p->q.shape[1], (long long)p->heads,
                         (long long)p->d, (long long)p->k.shape[1]);
    }
    plan->d_pad = round_up(p->d, pad);
    plan->dv_pad = round_up(p->dv, pad);
    plan->keys = keys_at_once(plan, p, machine);
    plan->scores = attn_plan_scores(p, plan->uk);
    plan_scores(plan, g);
    plan_passes(plan, g, machine);
    attn_arena arena = {0};
    map_workspace(plan, p, machine, &arena);
    return attn_arena_room(&arena, &plan->workspace_bytes);
}
