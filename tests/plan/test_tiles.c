/*
 * test_tiles.c: the tiles that a plan counts, against a count over every row and key by the rule of
 * the header (C3), and attn_forward_plan against the plan it is made of. No cmocka, as in
 * test_problems.c.
 */
#include "machine.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rule, word for word: off, causality, window, lengths, origins. */
static bool sees(const problem_spec *problem, int64_t b, int64_t i, int64_t j)
{
    int64_t nq = problem->has_lens ? problem->lens_q[b] : problem->nq,
            nk = problem->has_lens ? problem->lens_k[b] : problem->nk;
    nq = problem->has_used_q ? problem->used_q[b] : nq;
    nk = problem->has_used_k ? problem->used_k[b] : nk;
    int64_t at = i + (problem->top_left ? 0 : nk - nq);
    if (problem->q_origins > 0 || problem->k_origins > 0) {
        at = i + problem->q_origin[problem->q_origins > 1 ? b : 0] -
             problem->k_origin[problem->k_origins > 1 ? b : 0];
    }
    return i < nq && j < nk && (!problem->causal || j <= at) &&
           (!problem->has_window || problem->window_left < 0 || j >= at - problem->window_left) &&
           (!problem->has_window || problem->window_right < 0 || j <= at + problem->window_right);
}

/* One tile. Full: every row sees every key from the first to the last that any row sees. */
static void count_tile(attn_tile_count *count, const problem_spec *problem, int64_t b, int64_t row,
                       int64_t end, int64_t j, int64_t last)
{
    int64_t group = problem->hq / problem->hkv, first_seen = last, last_seen = j - 1, seen = 0;
    for (int64_t key = j; key < last; key++) {
        for (int64_t r = row; r < end; r++) {
            if (sees(problem, b, r / group, key)) {
                first_seen = key < first_seen ? key : first_seen;
                last_seen = key;
                seen++;
            }
        }
    }
    count->scores += (double)seen;
    if (seen == 0) {
        count->skipped++;
    } else if (seen == (end - row) * (last_seen - first_seen + 1)) {
        count->full++;
    } else {
        count->partial++;
    }
}

/* Strips start at a sequence's first row, heads of a group folded in; blocks of keys at its first
 * key. */
static attn_tile_count count_by_hand(const problem_spec *problem, const attn_ukernel *table)
{
    attn_tile_count count = {0};
    for (int64_t b = 0; b < problem->b; b++) {
        int64_t rows = (problem->has_lens ? problem->lens_q[b] : problem->nq) *
                       (problem->hkv > 0 ? problem->hq / problem->hkv : 0);
        int64_t nk = problem->has_used_k ? problem->used_k[b]
                     : problem->has_lens ? problem->lens_k[b]
                                         : problem->nk;
        attn_tile_count one = {0};
        for (int64_t row = 0; row < rows; row += table->strip) {
            for (int64_t j = 0; j < nk; j += table->key_tile) {
                count_tile(&one, problem, b, row,
                           row + table->strip < rows ? row + table->strip : rows, j,
                           j + table->key_tile < nk ? j + table->key_tile : nk);
            }
        }
        count.full += one.full * problem->hkv, count.partial += one.partial * problem->hkv;
        count.skipped += one.skipped * problem->hkv,
            count.scores += one.scores * (double)problem->hkv;
    }
    return count;
}

static bool same(attn_tile_count a, attn_tile_count b)
{
    return a.full == b.full && a.partial == b.partial && a.skipped == b.skipped &&
           a.scores == b.scores;
}

/* The public plan tells the same. */
static bool public_plan_agrees(const planned *x, const char *table, attn_tile_count tiles)
{
    attn_plan plan = {.struct_size = sizeof plan};
    uint64_t bytes;
    attn_context *context = tables_context(table, 4);
    double flops = 2 * (double)(x->problem.d + x->problem.dv) * tiles.scores;
    return attn_forward_plan(context, &x->tensors.args, &plan) == ATTN_OK &&
           plan.tiles_full == tiles.full && plan.tiles_partial == tiles.partial &&
           plan.tiles_skipped == tiles.skipped && plan.flops == flops &&
           plan.kernel == x->plan.table->name && plan.strip == x->plan.table->strip &&
           attn_forward_workspace(context, &x->tensors.args, &bytes) == ATTN_OK &&
           bytes == plan.workspace_bytes;
}

struct tally {
    const attn_isa *isa;
    int plans, failures;
};

static bool visit(void *user, const problem_spec *problem)
{
    struct tally *tally = user;
    char line[2048];
    planned x;
    problem_print(problem, line, sizeof line);
    tally->plans++;
    if (!plan_on(tally->isa, problem, &x)) {
        printf("FAIL %s %s: %s\n", tally->isa->name, line, attn_last_error());
        tally->failures++;
    } else {
        attn_tile_count got = attn_cpu_count_tiles(&x.plan, &x.problem),
                        want = count_by_hand(problem, x.plan.table);
        if (!same(got, want) || !public_plan_agrees(&x, tally->isa->name, want)) {
            printf("FAIL %s %s: full %lld partial %lld skipped %lld scores %.0f, by hand %lld %lld "
                   "%lld %.0f; or the "
                   "public "
                   "plan differs\n",
                   tally->isa->name, line, (long long)got.full, (long long)got.partial,
                   (long long)got.skipped, got.scores, (long long)want.full,
                   (long long)want.partial, (long long)want.skipped, want.scores);
            tally->failures++;
        }
    }
    problem_tensors_free(&x.tensors);
    return true;
}

int main(int argc, char **argv)
{
    int count, failures = argc != 2;
    const char *const *names = tables_names(&count);
    for (int i = 0; argc == 2 && i < count; i++) {
        struct tally tally = {.isa = attn_select(attn_cpu_features(), names[i])};
        char error[512];
        if (!problem_suite(argv[1], visit, &tally, error, sizeof error)) {
            printf("FAIL %s\n", error);
            tally.failures++;
        }
        printf("%s: %d plans, %d differ\n", names[i], tally.plans, tally.failures);
        failures += tally.failures + (tally.plans == 0);
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
