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

static double score_bytes(const problem_spec *problem)
{
    double sum = 0, size = problem->dtype == ATTN_F64 ? 8 : 4;
    for (int64_t b = 0; b < problem->b && problem->has_lens; b++) {
        sum += (double)problem->lens_q[b] * (double)problem->lens_k[b];
    }
    return size * (double)problem->hq *
           (problem->has_lens ? sum
                              : (double)problem->b * (double)problem->nq * (double)problem->nk);
}

/* The ceiling of a kernel's products: of multiply-adds, or of so many products of tiles each. */
static double measure_products(const attn_plan *plan)
{
    return plan->tile_products > 0
               ? peak_amx(plan->threads, 0.1) / plan->tile_products
               : peak_fma(plan->vector_bits, plan->sum_bits, plan->threads, 0.1);
}

static attn_status make_plan(const struct choice *choice, const problem_spec *problem,
                             const problem_tensors *tensors, attn_plan *plan)
{
    attn_context *context = NULL;
    if (choice->gpu != NULL) {
        return plan_gpu_forward(choice->gpu, &tensors->args, plan);
    }
    attn_status status = choice->device == ATTN_DEVICE_CUDA ? cli_gpu_context(&context)
                                                            : problem_context(problem, &context);
    if (status == ATTN_OK) {
        status = problem->pass == PASS_FORWARD ? attn_forward_plan(context, &tensors->args, plan)
                                               : attn_backward_plan(context, &tensors->grad, plan);
    }
    attn_context_destroy(context);
    return status;
}

/* A CPU's ceilings are measured, a GPU's published. */
static void find_ceilings(const struct choice *choice, plan_story *story)
{
    static char source[64];
    const plan_gpu *gpu = choice->gpu != NULL ? choice->gpu : story->gpu ? plan_gpu_here() : NULL;
    if (story->gpu && gpu != NULL) {
        story->peak = plan_gpu_peak(gpu, &story->plan);
        story->read = gpu->read_gbytes;
        snprintf(source, sizeof source, "as published for the %s", gpu->model);
    } else if (!story->gpu) {
        story->peak = measure_products(&story->plan);
        story->read = peak_read(story->plan.threads, 0.2);
        snprintf(source, sizeof source, "measured now, %d thread%s", story->plan.threads,
                 story->plan.threads == 1 ? "" : "s");
    }
    story->source = source;
}

/* pass: forward or backward */
static int tell_pass(const struct choice *choice, const problem_spec *problem)
{
    plan_story story = {.plan = {.struct_size = sizeof story.plan},
                        .pass = problem->pass == PASS_FORWARD ? "forward" : "backward",
                        .gpu = choice->device == ATTN_DEVICE_CUDA,
                        .scores_bytes = score_bytes(problem),
                        .heads = (double)problem->hq * (double)problem->b};
    problem_tensors tensors;
    problem_print(problem, story.line, sizeof story.line);
    if (!problem_tensors_create(problem, PLACE_NOWHERE, &tensors)) {
        return cli_error(CLI_USAGE, "the tensors of \"%s\" do not fit into the address space",
                         story.line);
    }
    attn_status status = make_plan(choice, problem, &tensors, &story.plan);
    problem_tensors_free(&tensors);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    const attn_plan *plan = &story.plan;
    story.counted = !story.gpu || plan->items == 0 ||
                    plan->tiles_full + plan->tiles_partial + plan->tiles_skipped > 0;
    if (choice->measure) {
        find_ceilings(choice, &story);
    }
    choice->json ? plan_tell_json(&story) : plan_tell_text(&story);
    return CLI_OK;
}

/* Training is a story for each pass. */
static int tell(const struct choice *choice, const problem_spec *problem)
{
    problem_spec one = *problem;
    int status = CLI_OK;
    if (problem->pass != PASS_FORWARD && choice->gpu != NULL) {
        return cli_error(CLI_USAGE, "--device=%s: GPUs have plans of the forward pass only",
                         choice->gpu->name);
    }
    if (problem->pass != PASS_BACKWARD) {
        one.pass = PASS_FORWARD;
        status = tell_pass(choice, &one);
    }
    if (problem->pass != PASS_FORWARD && status == CLI_OK) {
        one.pass = PASS_BACKWARD;
        status = tell_pass(choice, &one);
    }
    return status;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct choice *choice = state->input;
    switch (key) {
    case 'j':
        choice->json = true;
        return 0;
    case 'n':
        choice->measure = false;
        return 0;
    case 'd':
        choice->gpu = plan_gpu_find(text);
        choice->device = choice->gpu != NULL ? ATTN_DEVICE_CUDA : cli_device(text);
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&choice->list, text);
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
    struct choice choice = {.measure = true};
    int status = CLI_OK;
    cli_parse(&argp, argc, argv, &choice);
    if (choice.list.count == 0) {
        return cli_error(
            CLI_USAGE,
            "no problem given, for example \"hq=16 nq=4096 causal=1\" (see attn plan --help)");
    }
    for (int i = 0; i < choice.list.count && status == CLI_OK; i++) {
        status = tell(&choice, &choice.list.problems[i]);
    }
    free(choice.list.problems);
    return status;
}
