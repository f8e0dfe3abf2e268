/*
 * plan_report.c: see plan_report.h.
 */
#include "plan_report.h"
#include "cli.h"
#include "style.h"

#include <math.h>
#include <stdio.h>

/* ---- Words ----------------------------------------------------------------------------------- */

static void tell_kernel(const plan_story *story)
{
    const attn_plan *plan = &story->plan;
    cli_fact("  kernel      ", "%s: %s", plan->kernel, plan->why);
    cli_fact("  tiles       ", "%d query rows x %d keys", plan->strip, plan->key_block);
    char threads[32] = "";
    if (!story->gpu) {
        snprintf(threads, sizeof threads, " on %d thread%s", plan->threads,
                 plan->threads == 1 ? "" : "s");
    }
    cli_fact("  work        ", "%lld items of %lld rows%s", (long long)plan->items,
             (long long)plan->rows_per_item, threads);
}

static void tell_tiles(const plan_story *story)
{
    const attn_plan *plan = &story->plan;
    double all = (double)(plan->tiles_full + plan->tiles_partial + plan->tiles_skipped);
    double percent = all > 0 ? 100 / all : 0;
    cli_fact("  visited     ",
             "%lld tiles whole (%.1f %%), %lld partly masked (%.1f %%); %lld skipped "
             "(%.1f %%)",
             (long long)plan->tiles_full, percent * (double)plan->tiles_full,
             (long long)plan->tiles_partial, percent * (double)plan->tiles_partial,
             (long long)plan->tiles_skipped, percent * (double)plan->tiles_skipped);
}

static void tell_costs(const plan_story *story)
{
    const attn_plan *plan = &story->plan;
    cli_text tiled, standard;
    cli_fact("  FLOPs       ", "%.4g G", plan->flops * 1e-9);
    cli_fact("  memory      ",
             "%s read and written by tiles; standard attention: %s (%.1f times as much)",
             cli_bytes(tiled, plan->bytes_tiled), cli_bytes(standard, plan->bytes_standard),
             plan->bytes_tiled > 0 ? plan->bytes_standard / plan->bytes_tiled : 1);
}

static void tell_workspace(const plan_story *story)
{
    cli_text workspace, one, all;
    cli_fact("  workspace   ", "%s; the matrix of scores would be %s for one head, %s for all %.0f",
             cli_bytes(workspace, (double)story->plan.workspace_bytes),
             cli_bytes(one, story->heads > 0 ? story->scores_bytes / story->heads : 0),
             cli_bytes(all, story->scores_bytes), story->heads);
}

static void tell_roofline(const plan_story *story)
{
    const attn_plan *plan = &story->plan;
    double tiled = plan->flops / plan->bytes_tiled, standard = plan->flops / plan->bytes_standard;
    cli_text time;
    if (plan->bytes_tiled == 0) {
        return; /* nothing to do */
    }
    cli_fact("  intensity   ", "%.1f FLOP per byte tiled, %.1f standard", tiled, standard);
    if (story->peak > 0 && story->read > 0) {
        double ridge = story->peak / story->read;
        double least = fmax(plan->flops / story->peak, plan->bytes_tiled / story->read) * 1e-9;
        cli_fact("  roofline    ",
                 "%.1f %s, %.1f GB/s of reads (%s):", story->gpu ? story->peak * 1e-3 : story->peak,
                 story->gpu ? "TFLOP/s of products" : "GFLOP/s of multiply-adds", story->read,
                 story->source);
        cli_fact("              ", "compute-bound above %.1f FLOP per byte: tiled %s, standard %s",
                 ridge, tiled > ridge ? "is" : "is not", standard > ridge ? "is" : "is not");
        cli_fact("              ", "no tiled attention can take less than %s here",
                 cli_seconds(time, least));
    }
}

void plan_tell_text(const plan_story *story)
{
    puts(story->line);
    tell_kernel(story);
    if (story->counted) {
        tell_tiles(story);
        tell_costs(story);
        tell_workspace(story);
        tell_roofline(story);
    } else {
        cli_fact("  FLOPs       ",
                 "as tiles and bytes depend on lengths or origins in the GPU's memory");
        tell_workspace(story);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Numbers that a device lacks or that nobody knows are left out. */
void plan_tell_json(const plan_story *story, const plan_io_story *io)
{
    const attn_plan *plan = &story->plan;
    const bool ceilings = story->peak > 0 && story->read > 0;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "problem", story->line);
    cJSON_AddStringToObject(o, "pass", story->pass);
    cJSON_AddStringToObject(o, "kernel", plan->kernel);
    cJSON_AddStringToObject(o, "why", plan->why);
    const struct {
        const char *name;
        double value;
        bool there;
    } numbers[] = {
        {"threads", plan->threads, !story->gpu},
        {"strip", plan->strip, true},
        {"key_block", plan->key_block, true},
        {"rows_per_item", (double)plan->rows_per_item, true},
        {"items", (double)plan->items, true},
        {"tiles_full", (double)plan->tiles_full, story->counted},
        {"tiles_partial", (double)plan->tiles_partial, story->counted},
        {"tiles_skipped", (double)plan->tiles_skipped, story->counted},
        {"flops", plan->flops, story->counted},
        {"bytes_tiled", plan->bytes_tiled, story->counted},
        {"bytes_standard", plan->bytes_standard, story->counted},
        {"workspace_bytes", (double)plan->workspace_bytes, true},
        {"scores_bytes", story->scores_bytes, true},
        {"peak_gflops", story->peak, ceilings},
        {"read_gbytes", story->read, ceilings},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].there) {
            cJSON_AddNumberToObject(o, numbers[i].name, numbers[i].value);
        }
    }
    if (io != NULL) {
        plan_io_add_json(io, o);
    }
    cli_print_json(o);
}
