/*
 * plan.c: `attn plan`: choices and costs of attn_forward on a problem, on a CPU beside this
 * machine's measured roofline; with --io the bytes that move (plan_io.h). No tensor is made but for
 * --try.
 */
#include "cli.h"
#include "peak.h"
#include "plan_gpu.h"
#include "plan_plot.h"
#include "plan_report.h"
#include "plan_try.h"
#include "plot.h"
#include "commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "one JSON object per problem", 0},
    {"no-measure", 'n', NULL, 0, "leave the roofline out", 0},
    {"device", 'd', "NAME", 0,
     "cpu (default), cuda: this machine's GPU, or a10g, a100, l4, h100, h200, b200, which need not "
     "be here",
     0},
    {"io", 'i', NULL, 0, "adds the IO analysis: traffic, roofline, best tiles, memory by N", 0},
    {"machine", 'm', "NAME", 0,
     "the IO analysis alone, for a GPU by its published figures and the tiles that suit it: names "
     "as above",
     0},
    {"near", 'M', "KIB", 0,
     "M, the size of the near memory (default: the L2 cache of a core; shared memory and registers "
     "of a GPU's multiprocessor)",
     0},
    {"try", 't', NULL, 0, "times blocks of different sizes on this machine, with one thread", 0},
    {"plot", 'p', "FILE", 0, "draws the IO analysis of the last problem (.svg or .png)", 0},
    {0},
};

struct choice {
    bool json, measure, io, try;
    int32_t device;
    const machine_figures *gpu;     /* a GPU, which this machine need not have */
    const machine_figures *machine; /* of the IO analysis, or NULL */
    double near;                    /* 0: the machine's */
    const char *plot;
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

/* The ceiling of a kernel's products: of multiply-adds of numbers or of pairs, or of so many
 * products of tiles each. */
static double measure_products(const attn_plan *plan)
{
    return plan->tile_products > 0 ? peak_amx(plan->threads, 0.1) / plan->tile_products
                                   : peak_vectors(plan, 0.1);
}

static attn_status make_plan(const struct choice *choice, const problem_spec *problem,
                             const problem_tensors *tensors, attn_plan *plan)
{
    attn_context *context = NULL;
    if (choice->gpu != NULL) {
        return problem->pass == PASS_FORWARD ? plan_gpu_forward(choice->gpu, &tensors->args, plan)
                                             : plan_gpu_backward(choice->gpu, &tensors->grad, plan);
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

/* The GPU of the plan; NULL: none, or unknown. */
static const machine_figures *gpu_of(const struct choice *choice)
{
    return choice->gpu != NULL                  ? choice->gpu
           : choice->device == ATTN_DEVICE_CUDA ? plan_gpu_here()
                                                : NULL;
}

/* A CPU's ceilings are measured, a GPU's published. */
static void find_ceilings(const struct choice *choice, plan_story *story)
{
    static char source[64];
    const machine_figures *gpu = gpu_of(choice);
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
static int make_story(const struct choice *choice, const problem_spec *problem, plan_story *story)
{
    *story = (plan_story){.plan = {.struct_size = sizeof story->plan},
                          .pass = problem->pass == PASS_FORWARD ? "forward" : "backward",
                          .gpu = choice->device == ATTN_DEVICE_CUDA,
                          .scores_bytes = score_bytes(problem),
                          .heads = (double)problem->hq * (double)problem->b};
    problem_tensors tensors;
    problem_print(problem, story->line, sizeof story->line);
    if (!problem_tensors_create(problem, PLACE_NOWHERE, &tensors)) {
        return cli_error(CLI_USAGE, "the tensors of \"%s\" do not fit into the address space",
                         story->line);
    }
    attn_status status = make_plan(choice, problem, &tensors, &story->plan);
    problem_tensors_free(&tensors);
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    const attn_plan *plan = &story->plan;
    story->counted = !story->gpu || plan->items == 0 ||
                     plan->tiles_full + plan->tiles_partial + plan->tiles_skipped > 0;
    if (choice->measure && choice->machine == NULL) {
        find_ceilings(choice, story);
    }
    return CLI_OK;
}

/* ---- the IO analysis ------------------------------------------------------------------------- */

/* Finds M, its name, and the ceilings: of --machine, of a GPU that is planned for, or of this
 * CPU. */
static void find_near(const struct choice *choice, const problem_spec *problem,
                      const plan_story *story, double *near, plan_io_story *io)
{
    static char source[128];
    const machine_figures *gpu = choice->machine != NULL ? choice->machine : gpu_of(choice);
    attn_info info = {.struct_size = sizeof info};
    io->peak = story->peak, io->read = story->read, io->source = story->source;
    if (choice->machine != NULL) {
        io->peak = machine_gflops(gpu, 8 * (int)attn_dtype_size(problem->dtype));
        io->read = gpu->read_gbytes;
        snprintf(source, sizeof source, "%s: %s", gpu->model, gpu->source);
        io->source = source;
    }
    const bool known = attn_get_info(NULL, &info) == ATTN_OK && info.l2_bytes > 0;
    const double l2 = known ? (double)info.l2_bytes : 1 << 20;
    *near = gpu != NULL ? gpu->shared_bytes + MACHINE_REGISTER_BYTES : l2;
    io->near_name =
        gpu != NULL ? "shared memory and registers of a multiprocessor" : "L2 cache of a core";
    io->last = gpu != NULL ? gpu->l2_bytes : fmax((double)info.l3_bytes, l2);
    io->last_name = gpu != NULL ? "L2" : io->last > l2 ? "L3" : "L2";
    io->units = gpu != NULL ? gpu->multiprocessors : story->plan.threads;
    if (choice->near > 0) {
        *near = io->last = choice->near;
        io->near_name = io->last_name = "cache as asked for";
        io->units = 1;
    }
}

/* Units walk over the keys of a head together. Each has a block of rows of its own, whose Q and O
 * it keeps beside the last cache. */
static void count_last(const problem_spec *problem, plan_io_story *io)
{
    const int64_t all = problem->nq * (problem->hq / problem->hkv),
                  blocks = (all + io->io.tiles.rows - 1) / io->io.tiles.rows,
                  real = problem->dtype == ATTN_F64 ? 8 : 4,
                  row = problem->d * (int64_t)attn_dtype_size(problem->dtype) + problem->dv * real;
    traffic_tiles tiles = io->io.tiles;
    tiles.rows *= blocks < io->units ? blocks : io->units;
    const double near = io->last + (io->units > 1 ? (double)(tiles.rows * row) : 0);
    io->last_tiled = plan_io_tiled(problem, &tiles, near);
    io->last_standard = plan_io_standard(problem, &tiles, near);
}

/* Times the candidates among the library's sizes on this machine. */
static int try_sizes(const problem_spec *problem, plan_io_story *io)
{
    int64_t rows[PLAN_SIZES];
    int count = io->io.size_count;
    attn_status status;
    for (int i = 0; i < count; i++) {
        rows[i] = io->io.sizes[i].rows;
    }
    io->timed = plan_try(problem, rows, &count, io->seconds, &status);
    if (!io->timed) {
        return status == ATTN_OK ? cli_error(CLI_INTERNAL, "out of memory")
                                 : cli_status_error(status);
    }
    plan_io_size(problem, &io->io, rows, count);
    return CLI_OK;
}

/* Makes the IO analysis. story: that of the first pass. *made = false where there is none. */
static int analyse(const struct choice *choice, const problem_spec *problem,
                   const plan_story *story, plan_io_story *io, bool *made)
{
    const char *reason = plan_io_refuses(problem);
    problem_spec forward = *problem;
    plan_story other;
    double near;
    *made = false;
    forward.pass = PASS_FORWARD;
    if (reason != NULL || (!choice->io && !choice->json)) {
        return choice->io ? cli_error(CLI_USAGE, "attn plan --io: %s", reason) : CLI_OK;
    }
    if (problem->pass == PASS_BACKWARD) {
        const struct choice quiet = {.device = choice->device, .gpu = choice->gpu};
        const int status = make_story(&quiet, &forward, &other);
        if (status != CLI_OK) {
            return status;
        }
    }
    const attn_plan *plan = problem->pass == PASS_BACKWARD ? &other.plan : &story->plan;
    traffic_tiles tiles = {plan->rows_per_item, plan->strip, plan->key_block};
    if (choice->machine != NULL) { /* a warp or a warpgroup computes a strip */
        tiles = (traffic_tiles){0, choice->machine->capability < 90 ? 16 : 64, 128};
    }
    *io = (plan_io_story){.flops = plan->flops > 0 ? plan->flops : problem_flops(&forward)};
    find_near(choice, problem, story, &near, io);
    plan_io_make(&forward, tiles, near, &io->io);
    count_last(&forward, io);
    *made = true;
    return choice->try ? try_sizes(&forward, io) : CLI_OK;
}

static int draw(const struct choice *choice, const plan_io_story *io, const char *line)
{
    char error[512];
    return plan_plot(io, line, choice->plot, error, sizeof error)
               ? CLI_OK
               : cli_error(CLI_USAGE, "%s", error);
}

/* Training is a story for each pass. */
static int tell(const struct choice *choice, const problem_spec *problem, bool last)
{
    static plan_story story;
    static plan_io_story io;
    char line[4096];
    problem_spec one = *problem;
    bool made = false;
    int status = CLI_OK;
    for (int pass = PASS_FORWARD; pass <= PASS_BACKWARD && status == CLI_OK; pass++) {
        const bool first = pass == PASS_FORWARD || problem->pass == PASS_BACKWARD;
        one.pass = pass;
        if (problem->pass != PASS_TRAINING && problem->pass != pass) {
            continue;
        }
        status = make_story(choice, &one, &story);
        if (status == CLI_OK && first) {
            status = analyse(choice, &one, &story, &io, &made);
        }
        if (status == CLI_OK && choice->json) {
            plan_tell_json(&story, first && made ? &io : NULL);
        } else if (status == CLI_OK && choice->machine == NULL) {
            plan_tell_text(&story);
        }
    }
    problem_print(problem, line, sizeof line);
    if (choice->machine != NULL && !choice->json) {
        puts(line);
    }
    if (status == CLI_OK && made && !choice->json) {
        plan_io_tell_text(&io);
    }
    return status == CLI_OK && made && last && choice->plot != NULL ? draw(choice, &io, line)
                                                                    : status;
}

static const machine_figures *find_machine(const char *option, const char *others, const char *name)
{
    const machine_figures *machine = machine_find(name);
    if (machine == NULL) {
        exit(cli_error(CLI_USAGE,
                       "--%s=%s: unknown; there are %sa10g, a100, l4, h100, h200 and b200", option,
                       name, others));
    }
    return machine;
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
        choice->gpu = strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0
                          ? NULL
                          : find_machine("device", "cpu, cuda, ", text);
        choice->device = choice->gpu != NULL ? ATTN_DEVICE_CUDA : cli_device(text);
        return 0;
    case 'i':
        choice->io = true;
        return 0;
    case 'm':
        choice->machine = find_machine("machine", "", text);
        choice->io = true;
        return 0;
    case 'M':
        choice->near = 1024 * (double)cli_integer("near", text, 1, INT64_C(1) << 40);
        choice->io = true;
        return 0;
    case 't':
        choice->io = choice->try = true;
        return 0;
    case 'p':
        choice->plot = text;
        choice->io = true;
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&choice->list, text);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

/* Refuses before anything is measured. */
static int refuse(const struct choice *choice)
{
    char error[512];
    if (choice->try && (choice->device != ATTN_DEVICE_CPU || choice->machine != NULL)) {
        return cli_error(CLI_USAGE, "--try: times this machine's CPU only");
    }
    return choice->plot != NULL && !bench_plot_possible(choice->plot, error, sizeof error)
               ? cli_error(CLI_USAGE, "%s", error)
               : CLI_OK;
}

int cli_plan(int argc, char **argv)
{
    static const char doc[] =
        "Prints what attn_forward, or with pass=backward or training attn_backward, would do with "
        "a problem, why, and what it costs, beside the "
        "rates of multiply-adds and of memory: measured in 0.3 seconds, a GPU's as published. "
        "Makes no tensors: problems may be of any size. With --io also the bytes that move between "
        "a near memory of M bytes and the far one, tiled and standard, which tiles are best for M, "
        "and the memory that both forms need.\v"
        "A PROBLEM is a line of words as for attn bench (see attn bench --help), or the name of a "
        "file of such lines.\n"
        "\n"
        "Examples:\n"
        "  attn plan \"hq=16 nq=4096 d=64 causal=1\"\n"
        "  attn plan \"b=4 hq=32 hkv=8 nq=1 nk=100000 d=128 dtype=bf16\"\n"
        "  attn plan \"hq=16 nq=4096 d=64 pass=training\"\n"
        "  attn plan --device h200 \"hq=16 nq=4096 d=128 dtype=bf16 causal=1\"\n"
        "  attn plan --io \"hq=1 nq=4096 d=64\" --plot io.svg\n"
        "  attn plan --machine a100 \"hq=12 n=32768 d=64 dtype=f16 pass=training\"\n"
        "  attn plan --try \"hq=1 n=4096 d=64\"\n"
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
    status = refuse(&choice);
    for (int i = 0; i < choice.list.count && status == CLI_OK; i++) {
        status = tell(&choice, &choice.list.problems[i], i == choice.list.count - 1);
    }
    free(choice.list.problems);
    return status;
}
