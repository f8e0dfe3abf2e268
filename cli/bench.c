/*
 * bench.c: `attn bench`: the command line.
 */
#include "bench_devices.h"
#include "bench_gpu.h"
#include "bench_measure.h"
#include "bench_read.h"
#include "bench_report.h"
#include "bench_summary.h"
#include "plot.h"
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct argp_option options[] = {
    {"suite", 's', "FILE", 0, "measure the problems of a file, one line each", 0},
    {"device", 'd', "NAME", 0, "cpu (default) or cuda: this GPU", 0},
    {"peers", 'P', NULL, 0,
     "all of libattn, standard, torch, onnxruntime and onednn, as far as they are installed", 0},
    {"impl", 'i', "NAMES", 0,
     "some of these (default: libattn,standard); with --device cuda some of "
     "libattn,cudnn,flash,standard (default: "
     "all)",
     0},
    {"python", 'y', "PROGRAM", 0, "the Python that has the peers (default python3)", 0},
    {"min-time", 't', "S", 0, "seconds of a sample (default 0.1; on a GPU 0.0002)", 0},
    {"rounds", 'r', "R", 0, "samples of each implementation, in turn (default 5; on a GPU 32)", 0},
    {"json", 'j', NULL, 0, "one JSON object per implementation and line", 0},
    {"csv", 'c', NULL, 0, "the same as a table with commas", 0},
    {"from", 'f', "FILE", 0,
     "measure nothing: show (and draw) what --csv wrote to FILE, - for stdin", 0},
    {"plot", 'p', "FILE", 0,
     "draw FILE, .svg or .png: time and memory against N, with peers bars of shares and ratios", 0},
    {0},
};

static const char doc[] =
    "Measures attention on random inputs, beside standard attention on the same threads: the "
    "scores of a head stored "
    "as a matrix, both products by OpenBLAS, a vectorised softmax.\v"
    "A PROBLEM is words key=value; nq={512,2048} stands for several problems; what is left out has "
    "a default:\n"
    "  b=1 hq=8 hkv=hq nq=1024 nk=nq d=64 dv=d (n: nq and nk, h: hq and hkv)\n"
    "  dtype=f32|f64|f16|bf16 o_dtype=dtype layout=bshd|bhsd|qkv|gap|strided\n"
    "  causal=0|1 top_left=0|1 window_left=L window_right=R scale=X softcap=X\n"
    "  mask=[DTYPE:]AXES bias=[DTYPE:]AXES (letters of bhqk) alibi=AXES sinks=AXES (of bh)\n"
    "  lens_q=a,b,.. lens_k=a,b,.. used_q=a,b,.. used_k=a,b,..\n"
    "  page=N leftpad_k=a,b,.. (keys in pages of N rows; rows before the first key)\n"
    "  q_origin=a,b,.. k_origin=a,b,.. (one for all sequences, or one each)\n"
    "  pass=forward|backward|training (both) dropout=P\n"
    "  inputs=normal|outlier|uniform|large|equal|positive|offset seed=S\n"
    "  precise=0|1 bf16x3=0|1 index=i32|i64 lse=0|1 row_max=0|1 offset=E (of pointers)\n"
    "  threads=T (0: all cores) cpu=scalar|avx2|avx512|neon|amx\n"
    "\n"
    "Printed: the median of five samples (fewer if a call takes over a second) and their "
    "quartiles, with threads=1 of "
    "processor time; GFLOP/s, "
    "counting 2 (d + dv) Nq Nk Hq and half of that if causal; the share of the multiply-add "
    "ceiling measured in the "
    "same run, where there is AMX also that of products of random tiles; the workspace beside Q, "
    "K, V and O; the peak "
    "memory of a process that does only this; the largest "
    "|O - O64| / sum p|v| against float64 on a sample of rows; how many times faster libattn is "
    "(the median over "
    "rounds, "
    "in each of which everyone has a turn); and at the end the geometric means of that and the "
    "worst cells.\n"
    "\n"
    "With --device cuda the others are PyTorch's: its cuDNN and flash backends, and standard "
    "attention in the "
    "problem's "
    "type. Times are the GPU's between two events: of calls replayed from a graph, and of calls "
    "enqueued one by one, "
    "from C or from Python. The ceiling is the product of two 8192 x 8192 matrices of that type by "
    "PyTorch.\n"
    "\n"
    "Peers are called from Python on the same tensors and threads, and timed there; what Python "
    "adds to a call is part "
    "of its time. To install them: python3 -m venv V && V/bin/pip install torch onnxruntime onnx "
    "&& V/bin/pip install "
    "--no-deps paddlepaddle (for the oneDNN inside), then --python V/bin/python.\n"
    "\n"
    "Examples:\n"
    "  attn bench \"hq=16 nq=4096 d=64 causal=1 threads=1\"\n"
    "  attn bench \"nq=2048\" \"nq=8192\" --json\n"
    "  attn bench --suite bench/suites/scaling.txt --plot scaling.svg\n"
    "  attn bench --peers --suite bench/suites/cpu-prefill.txt --csv --plot prefill.svg\n"
    "  attn bench --device cuda --impl libattn,cudnn,flash --suite bench/suites/cuda-prefill.txt "
    "--csv\n"
    "  grep -v dtype=f bench/results/cpu-amx-2026-11-21-prefill-torch.csv | attn bench --from - "
    "--plot bf16.svg";

typedef struct bench {
    bench_run run;
    const char *names; /* as given with --impl, or NULL */
    bool peers;
    enum bench_format format;
    const char *plot, *from;
} bench;

static void choose_implementations(bench *b)
{
    char copy[64], known[64] = "", *rest = copy, *name;
    for (int i = 0; i < BENCH_IMPLEMENTATIONS && b->run.on->names[i] != NULL; i++) {
        b->run.use[i] = b->names == NULL && (b->peers || b->run.on->by_default[i]);
        size_t end = strlen(known);
        snprintf(known + end, sizeof known - end, "%s%s", i == 0 ? "" : ", ", b->run.on->names[i]);
    }
    snprintf(copy, sizeof copy, "%s", b->names != NULL ? b->names : "");
    while (b->names != NULL && (name = strsep(&rest, ",")) != NULL) {
        int i = bench_find(b->run.on, name);
        if (i < 0) {
            exit(cli_error(CLI_USAGE, "--impl: \"%s\" is not one of %s", name, known));
        }
        b->run.use[i] = true;
    }
}

static void choose_plot(bench *b, const char *path)
{
    const char *ending = strrchr(path, '.');
    if (ending == NULL || (strcmp(ending, ".svg") != 0 && strcmp(ending, ".png") != 0)) {
        exit(cli_error(CLI_USAGE, "--plot: \"%s\" ends neither in .svg nor in .png", path));
    }
    b->plot = path;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    bench *b = state->input;
    switch (key) {
    case 's':
        if (strchr(text, '=') != NULL) {
            exit(cli_error(CLI_USAGE, "--suite: \"%s\" is a problem, not a file", text));
        }
        cli_add_problems(&b->run.list, text);
        return 0;
    case 'j':
        b->format = BENCH_JSON;
        return 0;
    case 'c':
        b->format = BENCH_CSV;
        return 0;
    case 'P':
        b->peers = true;
        return 0;
    case 'd':
        b->run.device = cli_device(text);
        return 0;
    case 'y':
        b->run.python = text;
        return 0;
    case 'r':
        b->run.rounds = (int)cli_integer("rounds", text, 1, BENCH_MAX_SAMPLES);
        return 0;
    case 'i':
        b->names = text;
        return 0;
    case 't':
        b->run.min_time = cli_real("min-time", text, 0, 3600);
        return 0;
    case 'f':
        b->from = text;
        return 0;
    case 'p':
        choose_plot(b, text);
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&b->run.list, text);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

static void print_problem(const bench *b, int index)
{
    bench_result shown[BENCH_IMPLEMENTATIONS];
    int count = 0;
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        if (b->run.use[i]) {
            shown[count++] = b->run.results[index * BENCH_IMPLEMENTATIONS + i];
        }
    }
    bench_print(b->format, shown, count);
}

/* Runs everything, once the command line has been read and checked. */
static void run(bench *b, const bench_record *record)
{
    int count = b->run.list.count * BENCH_IMPLEMENTATIONS;
    char error[1024];
    bench_print_record(b->format, record);
    for (int i = 0; i < b->run.list.count && b->run.status == CLI_OK; i++) {
        if (b->from == NULL) {
            bench_measure(&b->run, i);
        }
        if (b->run.status == CLI_OK) {
            print_problem(b, i);
            /* nobody reads on; main.c reports it */
            b->run.status = ferror(stdout) ? CLI_INTERNAL : CLI_OK;
        }
    }
    if (b->run.status == CLI_OK) {
        bench_print_summary(b->format, b->run.results, count);
    }
    if (b->run.status == CLI_OK && b->plot != NULL &&
        !bench_plot(b->run.results, count, record, b->plot, error, sizeof error)) {
        b->run.status = cli_error(CLI_INTERNAL, "%s", error);
    }
}

/* Checks that come before any measurement. */
static int prepare(bench *b)
{
    if (b->run.list.count == 0) {
        return cli_error(
            CLI_USAGE,
            "no problem given, for example \"hq=8 nq=2048 d=64\" (see attn bench --help)");
    }
    b->run.on = bench_device_of(b->run.device);
    b->run.min_time = b->run.min_time > 0 ? b->run.min_time : b->run.on->min_time;
    b->run.rounds = b->run.rounds > 0 ? b->run.rounds : b->run.on->rounds;
    choose_implementations(b);
    if (b->run.device == ATTN_DEVICE_CUDA && bench_gpu_open() != ATTN_OK) {
        return cli_error(CLI_USAGE, "unsupported: %s", attn_last_error());
    }
    b->run.results =
        calloc((size_t)b->run.list.count * BENCH_IMPLEMENTATIONS, sizeof *b->run.results);
    return b->run.results == NULL ? cli_error(CLI_INTERNAL, "out of memory") : CLI_OK;
}

static int prepare_and_run(bench *b, int argc, char **argv)
{
    static bench_record record;
    char error[1024];
    if (b->from != NULL && b->run.list.count > 0) {
        return cli_error(CLI_USAGE, "--from shows what was measured: no problems beside it");
    }
    if (b->plot != NULL && !bench_plot_possible(b->plot, error, sizeof error)) {
        return cli_error(CLI_USAGE, "%s", error);
    }
    if (b->from != NULL) {
        bench_read(&b->run, b->from, &record);
    } else {
        int status = prepare(b);
        if (status != CLI_OK) {
            return status;
        }
        bench_record_fill(&record, b->run.device, argc, argv);
    }
    run(b, &record);
    return b->run.status;
}

int cli_bench(int argc, char **argv)
{
    static const struct argp argp = {options, parse, "PROBLEM...", doc, NULL, NULL, NULL};
    bench b = {.run = {.python = "python3"}};
    cli_parse(&argp, argc, argv, &b);
    int status = prepare_and_run(&b, argc, argv);
    free(b.run.list.problems);
    free(b.run.results);
    return status;
}
