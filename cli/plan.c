/*
 * plan.c: `attn plan`: choices and costs of attn_forward on a problem, on a CPU beside this
 * machine's measured roofline. No tensor is made.
 */
#include "cli.h"
#include "peak.h"
#include "plan_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "one JSON object per problem", 0},
    {"no-measure", 'n', NULL, 0, "leave the roofline out", 0},
    {"device", 'd', "NAME", 0,
     "cpu (default), cuda: this machine's GPU, or h200: one that need not be here", 0},
    {0},
};

struct choice {
    bool json, measure;
    int32_t device;
    bool h200; /* a device that need not be this machine's */
    cli_list list;
};

/* The facts about one problem. */
struct story {
    const problem *problem;
    char line[4096];
    attn_plan plan;
    /* of the matrix that standard attention stores: one head's, and all heads' */
    double scores_bytes;
    double heads;
    double fma, read; /* GFLOP/s and GB/s; 0: not measured */
};

static void tell_kernel(const struct story *s)
{
    const attn_plan *p = &s->plan;
    printf("  kernel      %s: %s\n", p->kernel, p->why);
    printf("  tiles       %d query rows x %d keys; %lld rows of a head's queries per work item\n",
           p->strip, p->key_block, (long long)p->rows_per_item);
    printf("  work        %lld items on %d thread%s\n", (long long)p->items, p->threads,
           p->threads == 1 ? "" : "s");
}

static void tell_gpu(const struct story *s)
{
    const attn_plan *p = &s->plan;
    cli_text workspace, one, all;
    printf("  kernel      %s: %s\n", p->kernel, p->why);
    printf("  tiles       %d query rows x %d keys\n", p->strip, p->key_block);
    printf("  work        %lld items of %lld rows\n", (long long)p->items,
           (long long)p->rows_per_item);
    if (s->problem->has_lens || s->problem->has_used_q || s->problem->has_used_k) {
        puts("  FLOPs       depend on lengths in the GPU's memory");
    } else {
        printf("  FLOPs       %.4g G\n", p->flops * 1e-9);
    }
    printf("  workspace   %s; the matrix of scores would be %s for one head, %s for all %.0f\n",
           cli_bytes(workspace, (double)p->workspace_bytes),
           cli_bytes(one, s->scores_bytes / s->heads), cli_bytes(all, s->scores_bytes), s->heads);
}

static void tell_tiles(const struct story *s)
{
    double all = (double)(s->plan.tiles_full + s->plan.tiles_partial + s->plan.tiles_skipped);
    double percent = all > 0 ? 100 / all : 0;
    printf("  visited     %lld tiles whole (%.1f %%), %lld partly masked (%.1f %%); %lld skipped "
           "(%.1f %%)\n",
           (long long)s->plan.tiles_full, percent * (double)s->plan.tiles_full,
           (long long)s->plan.tiles_partial, percent * (double)s->plan.tiles_partial,
           (long long)s->plan.tiles_skipped, percent * (double)s->plan.tiles_skipped);
}

static void tell_costs(const struct story *s)
{
    const attn_plan *p = &s->plan;
    cli_text tiled, standard, workspace, one, all;
    printf("  FLOPs       %.4g G\n", p->flops * 1e-9);
    printf(
        "  memory      %s read and written by tiles; standard attention: %s (%.1f times as much)\n",
        cli_bytes(tiled, p->bytes_tiled), cli_bytes(standard, p->bytes_standard),
        p->bytes_tiled > 0 ? p->bytes_standard / p->bytes_tiled : 1);
    printf("  workspace   %s; the matrix of scores would be %s for one head, %s for all %.0f\n",
           cli_bytes(workspace, (double)p->workspace_bytes),
           cli_bytes(one, s->scores_bytes / s->heads), cli_bytes(all, s->scores_bytes), s->heads);
}

static void tell_roofline(const struct story *s)
{
    const attn_plan *p = &s->plan;
    double tiled = p->flops / p->bytes_tiled, standard = p->flops / p->bytes_standard,
           ridge = s->fma / s->read;
    double best = fmax(p->flops / s->fma, p->bytes_tiled / s->read) * 1e-9;
    cli_text time;
    if (p->bytes_tiled == 0) {
        return; /* nothing to do */
    }
    printf("  intensity   %.1f FLOP per byte tiled, %.1f standard\n", tiled, standard);
    if (s->fma > 0 && s->read > 0) {
        printf("  roofline    %.1f GFLOP/s of multiply-adds, %.1f GB/s of reads (measured now, %d "
               "thread%s):\n",
               s->fma, s->read, p->threads, p->threads == 1 ? "" : "s");
        printf("              compute-bound above %.1f FLOP per byte: tiled %s, standard %s\n",
               ridge, tiled > ridge ? "is" : "is not", standard > ridge ? "is" : "is not");
        printf("              no tiled attention can take less than %s here\n",
               cli_seconds(time, best));
    }
}

/* Numbers that a device lacks are left out: a GPU's plan has 0 there. */
static void tell_json(const struct story *s, bool gpu)
{
    const attn_plan *p = &s->plan;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "problem", s->line);
    cJSON_AddStringToObject(o, "kernel", p->kernel);
    cJSON_AddStringToObject(o, "why", p->why);
    const struct {
        const char *name;
        double value;
        bool gpu_too;
    } numbers[] = {
        {"threads", p->threads, false},
        {"strip", p->strip, true},
        {"key_block", p->key_block, true},
        {"rows_per_item", (double)p->rows_per_item, true},
        {"items", (double)p->items, true},
        {"tiles_full", (double)p->tiles_full, false},
        {"tiles_partial", (double)p->tiles_partial, false},
        {"tiles_skipped", (double)p->tiles_skipped, false},
        {"flops", p->flops, true},
        {"bytes_tiled", p->bytes_tiled, false},
        {"bytes_standard", p->bytes_standard, false},
        {"workspace_bytes", (double)p->workspace_bytes, true},
        {"scores_bytes", s->scores_bytes, true},
        {"peak_gflops", s->fma, false},
        {"read_gbytes", s->read, false},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!gpu || numbers[i].gpu_too) {
            cJSON_AddNumberToObject(o, numbers[i].name, numbers[i].value);
        }
    }
    cli_print_json(o);
}

static double score_bytes(const problem *p)
{
    double sum = 0, size = p->dtype == ATTN_F64 ? 8 : 4;
    for (int64_t b = 0; b < p->b && p->has_lens; b++) {
        sum += (double)p->lens_q[b] * (double)p->lens_k[b];
    }
    return size * (double)p->hq *
           (p->has_lens ? sum : (double)p->b * (double)p->nq * (double)p->nk);
}

/* The ceiling of a kernel's products: of multiply-adds, or of so many products of tiles each. */
static double measure_products(const attn_plan *p)
{
    return p->tile_products > 0 ? peak_amx(p->threads, 0.1) / p->tile_products
                                : peak_fma(p->vector_bits, p->sum_bits, p->threads, 0.1);
}

static attn_status make_plan(const struct choice *c, const problem *p,
                             const attn_forward_args *args, attn_plan *plan)
{
    attn_context *context = NULL;
    if (c->h200) {
        return plan_for_h200(args, plan);
    }
    attn_status status =
        c->device == ATTN_DEVICE_CUDA ? cli_gpu_context(&context) : problem_context(p, &context);
    if (status == ATTN_OK) {
        status = attn_forward_plan(context, args, plan);
    }
    attn_context_destroy(context);
    return status;
}

static int tell(const struct choice *c, const problem *p)
{
    struct story s = {.problem = p,
                      .plan = {.struct_size = sizeof s.plan},
                      .heads = (double)p->hq * (double)p->b};
    bool gpu = c->device == ATTN_DEVICE_CUDA;
    problem_tensors tensors;
    problem_print(p, s.line, sizeof s.line);
    if (!problem_tensors_create(p, PLACE_NOWHERE, &tensors)) {
        return cli_error(CLI_USAGE, "the tensors of \"%s\" do not fit into the address space",
                         s.line);
    }
    attn_status status = make_plan(c, p, &tensors.args, &s.plan);
    problem_tensors_free(&tensors);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    s.scores_bytes = score_bytes(p);
    if (c->measure && !gpu) {
        s.fma = measure_products(&s.plan);
        s.read = peak_read(s.plan.threads, 0.2);
    }
    if (c->json) {
        tell_json(&s, gpu);
    } else if (gpu) {
        puts(s.line);
        tell_gpu(&s);
    } else {
        puts(s.line);
        tell_kernel(&s);
        tell_tiles(&s);
        tell_costs(&s);
        tell_roofline(&s);
    }
    return CLI_OK;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct choice *c = state->input;
    switch (key) {
    case 'j':
        c->json = true;
        return 0;
    case 'n':
        c->measure = false;
        return 0;
    case 'd':
        c->h200 = strcmp(text, "h200") == 0;
        c->device = c->h200 ? ATTN_DEVICE_CUDA : cli_device(text);
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&c->list, text);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

int cli_plan(int argc, char **argv)
{
    static const char doc[] =
        "Prints what attn_forward would do with a problem, why, and what it costs, beside this "
        "machine's multiply-add "
        "rate and memory bandwidth, measured in 0.3 seconds. Makes no tensors: problems may be of "
        "any size.\v"
        "A PROBLEM is a line of words as for attn bench (see attn bench --help), or the name of a "
        "file of such lines.\n"
        "\n"
        "Examples:\n"
        "  attn plan \"hq=16 nq=4096 d=64 causal=1\"\n"
        "  attn plan \"b=4 hq=32 hkv=8 nq=1 nk=100000 d=128 dtype=bf16\"\n"
        "  attn plan --device h200 \"hq=16 nq=4096 d=128 dtype=bf16 causal=1\"\n"
        "  attn plan \"n=131072 window_left=1023 window_right=0 threads=1\"";
    static const struct argp argp = {options, parse, "PROBLEM...", doc, NULL, NULL, NULL};
    struct choice c = {.measure = true};
    int status = CLI_OK;
    cli_parse(&argp, argc, argv, &c);
    if (c.list.count == 0) {
        return cli_error(
            CLI_USAGE,
            "no problem given, for example \"hq=16 nq=4096 causal=1\" (see attn plan --help)");
    }
    cli_want_forward(&c.list);
    for (int i = 0; i < c.list.count && status == CLI_OK; i++) {
        status = tell(&c, &c.list.problems[i]);
    }
    free(c.list.problems);
    return status;
}
