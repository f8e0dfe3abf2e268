/*
 * plan_report.c: see plan_report.h.
 */
#include "plan_report.h"
#include "cli.h"
#include "style.h"

#include <math.h>
#include <stdio.h>

/* ---- Words ----------------------------------------------------------------------------------- */

static void tell_kernel(const plan_story *s)
{
    const attn_plan *p = &s->plan;
    cli_fact("  kernel      ", "%s: %s", p->kernel, p->why);
    cli_fact("  tiles       ", "%d query rows x %d keys", p->strip, p->key_block);
    char threads[32] = "";
    if (!s->gpu) {
        snprintf(threads, sizeof threads, " on %d thread%s", p->threads,
                 p->threads == 1 ? "" : "s");
    }
    cli_fact("  work        ", "%lld items of %lld rows%s", (long long)p->items,
             (long long)p->rows_per_item, threads);
}

static void tell_tiles(const plan_story *s)
{
    const attn_plan *p = &s->plan;
    double all = (double)(p->tiles_full + p->tiles_partial + p->tiles_skipped);
    double percent = all > 0 ? 100 / all : 0;
    cli_fact("  visited     ",
             "%lld tiles whole (%.1f %%), %lld partly masked (%.1f %%); %lld skipped "
             "(%.1f %%)",
             (long long)p->tiles_full, percent * (double)p->tiles_full, (long long)p->tiles_partial,
             percent * (double)p->tiles_partial, (long long)p->tiles_skipped,
             percent * (double)p->tiles_skipped);
}

static void tell_costs(const plan_story *s)
{
    const attn_plan *p = &s->plan;
    cli_text tiled, standard;
    cli_fact("  FLOPs       ", "%.4g G", p->flops * 1e-9);
    cli_fact("  memory      ",
             "%s read and written by tiles; standard attention: %s (%.1f times as much)",
             cli_bytes(tiled, p->bytes_tiled), cli_bytes(standard, p->bytes_standard),
             p->bytes_tiled > 0 ? p->bytes_standard / p->bytes_tiled : 1);
}

static void tell_workspace(const plan_story *s)
{
    cli_text workspace, one, all;
    cli_fact("  workspace   ", "%s; the matrix of scores would be %s for one head, %s for all %.0f",
             cli_bytes(workspace, (double)s->plan.workspace_bytes),
             cli_bytes(one, s->heads > 0 ? s->scores_bytes / s->heads : 0),
             cli_bytes(all, s->scores_bytes), s->heads);
}

static void tell_roofline(const plan_story *s)
{
    const attn_plan *p = &s->plan;
    double tiled = p->flops / p->bytes_tiled, standard = p->flops / p->bytes_standard;
    cli_text time;
    if (p->bytes_tiled == 0) {
        return; /* nothing to do */
    }
    cli_fact("  intensity   ", "%.1f FLOP per byte tiled, %.1f standard", tiled, standard);
    if (s->peak > 0 && s->read > 0) {
        double ridge = s->peak / s->read;
        double least = fmax(p->flops / s->peak, p->bytes_tiled / s->read) * 1e-9;
        cli_fact("  roofline    ",
                 "%.1f %s, %.1f GB/s of reads (%s):", s->gpu ? s->peak * 1e-3 : s->peak,
                 s->gpu ? "TFLOP/s of products" : "GFLOP/s of multiply-adds", s->read, s->source);
        cli_fact("              ", "compute-bound above %.1f FLOP per byte: tiled %s, standard %s",
                 ridge, tiled > ridge ? "is" : "is not", standard > ridge ? "is" : "is not");
        cli_fact("              ", "no tiled attention can take less than %s here",
                 cli_seconds(time, least));
    }
}

void plan_tell_text(const plan_story *s)
{
    puts(s->line);
    tell_kernel(s);
    if (s->counted) {
        tell_tiles(s);
        tell_costs(s);
        tell_workspace(s);
        tell_roofline(s);
    } else {
        cli_fact("  FLOPs       ",
                 "as tiles and bytes depend on lengths or origins in the GPU's memory");
        tell_workspace(s);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Numbers that a device lacks or that nobody knows are left out. */
void plan_tell_json(const plan_story *s)
{
    const attn_plan *p = &s->plan;
    const bool ceilings = s->peak > 0 && s->read > 0;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "problem", s->line);
    cJSON_AddStringToObject(o, "pass", s->pass);
    cJSON_AddStringToObject(o, "kernel", p->kernel);
    cJSON_AddStringToObject(o, "why", p->why);
    const struct {
        const char *name;
        double value;
        bool there;
    } numbers[] = {
        {"threads", p->threads, !s->gpu},
        {"strip", p->strip, true},
        {"key_block", p->key_block, true},
        {"rows_per_item", (double)p->rows_per_item, true},
        {"items", (double)p->items, true},
        {"tiles_full", (double)p->tiles_full, s->counted},
        {"tiles_partial", (double)p->tiles_partial, s->counted},
        {"tiles_skipped", (double)p->tiles_skipped, s->counted},
        {"flops", p->flops, s->counted},
        {"bytes_tiled", p->bytes_tiled, s->counted},
        {"bytes_standard", p->bytes_standard, s->counted},
        {"workspace_bytes", (double)p->workspace_bytes, true},
        {"scores_bytes", s->scores_bytes, true},
        {"peak_gflops", s->peak, ceilings},
        {"read_gbytes", s->read, ceilings},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].there) {
            cJSON_AddNumberToObject(o, numbers[i].name, numbers[i].value);
        }
    }
    cli_print_json(o);
}
