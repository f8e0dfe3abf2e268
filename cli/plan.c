/*
 * plan.c: `attn plan`: choices and costs of attn_forward on a problem, on a CPU beside this
 * machine's measured roofline. No tensor is made.
 */
#include "cli.h"
#include "peak.h"
#include "plan_gpu.h"
#include "plan_report.h"
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "one JSON object per problem", 0},
    {"no-measure", 'n', NULL, 0, "leave the roofline out", 0},
    {"device", 'd', "NAME", 0,
     "cpu (default), cuda: this machine's GPU, or h200, h100, a100, which need not be here", 0},
    {0},
};

struct choice {
    bool json, measure;
    int32_t device;
    const plan_gpu *gpu; /* one that need not be this machine's */
    cli_list list;
};

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

static attn_status make_plan(const struct choice *c, const problem *p, const problem_tensors *t,
                             attn_plan *plan)
{
    attn_context *context = NULL;
    if (c->gpu != NULL) {
        return plan_gpu_forward(c->gpu, &t->args, plan);
    }
    attn_status status =
        c->device == ATTN_DEVICE_CUDA ? cli_gpu_context(&context) : problem_context(p, &context);
    if (status == ATTN_OK) {
        status = p->pass == PASS_FORWARD ? attn_forward_plan(context, &t->args, plan)
                                         : attn_backward_plan(context, &t->grad, plan);
    }
    attn_context_destroy(context);
    return status;
}

/* A CPU's ceilings are measured, a GPU's published. */
static void find_ceilings(const struct choice *c, plan_story *s)
{
    static char source[64];
    const plan_gpu *gpu = c->gpu != NULL ? c->gpu : s->gpu ? plan_gpu_here() : NULL;
    if (s->gpu && gpu != NULL) {
        s->peak = plan_gpu_peak(gpu, &s->plan);
        s->read = gpu->read_gbytes;
        snprintf(source, sizeof source, "as published for the %s", gpu->model);
    } else if (!s->gpu) {
        s->peak = measure_products(&s->plan);
        s->read = peak_read(s->plan.threads, 0.2);
        snprintf(source, sizeof source, "measured now, %d thread%s", s->plan.threads,
                 s->plan.threads == 1 ? "" : "s");
    }
    s->source = source;
}

/* pass: forward or backward */
static int tell_pass(const struct choice *c, const problem *p)
{
    plan_story s = {.plan = {.struct_size = sizeof s.plan},
                    .pass = p->pass == PASS_FORWARD ? "forward" : "backward",
                    .gpu = c->device == ATTN_DEVICE_CUDA,
                    .scores_bytes = score_bytes(p),
                    .heads = (double)p->hq * (double)p->b};
    problem_tensors tensors;
    problem_print(p, s.line, sizeof s.line);
    if (!problem_tensors_create(p, PLACE_NOWHERE, &tensors)) {
        return cli_error(CLI_USAGE, "the tensors of \"%s\" do not fit into the address space",
                         s.line);
    }
    attn_status status = make_plan(c, p, &tensors, &s.plan);
    problem_tensors_free(&tensors);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    const attn_plan *plan = &s.plan;
    s.counted = !s.gpu || plan->items == 0 ||
                plan->tiles_full + plan->tiles_partial + plan->tiles_skipped > 0;
    if (c->measure) {
        find_ceilings(c, &s);
    }
    c->json ? plan_tell_json(&s) : plan_tell_text(&s);
    return CLI_OK;
}

/* Training is a story for each pass. */
static int tell(const struct choice *c, const problem *p)
{
    problem one = *p;
    int status = CLI_OK;
    if (p->pass != PASS_FORWARD && c->gpu != NULL) {
        return cli_error(CLI_USAGE, "--device=%s: GPUs have plans of the forward pass only",
                         c->gpu->name);
    }
    if (p->pass != PASS_BACKWARD) {
        one.pass = PASS_FORWARD;
        status = tell_pass(c, &one);
    }
    if (p->pass != PASS_FORWARD && status == CLI_OK) {
        one.pass = PASS_BACKWARD;
        status = tell_pass(c, &one);
    }
    return status;
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
        c->gpu = plan_gpu_find(text);
        c->device = c->gpu != NULL ? ATTN_DEVICE_CUDA : cli_device(text);
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
        "Prints what attn_forward, or with pass=backward or training attn_backward, would do with "
        "a problem, why, and what it costs, beside the "
        "rates of multiply-adds and of memory: measured in 0.3 seconds, a GPU's as published. "
        "Makes no tensors: problems may be of "
        "any size.\v"
        "A PROBLEM is a line of words as for attn bench (see attn bench --help), or the name of a "
        "file of such lines.\n"
        "\n"
        "Examples:\n"
        "  attn plan \"hq=16 nq=4096 d=64 causal=1\"\n"
        "  attn plan \"b=4 hq=32 hkv=8 nq=1 nk=100000 d=128 dtype=bf16\"\n"
        "  attn plan \"hq=16 nq=4096 d=64 pass=training\"\n"
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
    for (int i = 0; i < c.list.count && status == CLI_OK; i++) {
        status = tell(&c, &c.list.problems[i]);
    }
    free(c.list.problems);
    return status;
}
