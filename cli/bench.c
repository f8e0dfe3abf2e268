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
     "all of libattn, standard, torch, onnxruntime, onednn and ggml, as far as they are installed",
     0},
    {"impl", 'i', "NAMES", 0,
     "some of these (default: libattn,standard), or libattn.torch, libattn as its Python package "
     "runs it for PyTorch; with --device cuda some of libattn,cudnn,flash,efficient,standard,flex "
     "(default: all but flex)",
     0},
    {"python", 'y', "PROGRAM", 0, "the Python that has the peers (default python3)", 0},
    {"min-time", 't', "S", 0, "seconds of a sample (default 0.1; on a GPU 0.0002)", 0},
    {"rounds", 'r', "R", 0, "samples of each implementation, in turn (default 5; on a GPU 32)", 0},
    {"cold", 'C', NULL, 0,
     "with --device cuda: calls take turns on copies of K and V, which the L2 cache cannot hold",
     0},
    {"json", 'j', NULL, 0, "one JSON object per implementation and problem", 0},
    {"csv", 'c', NULL, 0, "one line of values with commas per implementation and problem", 0},
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
    "A PROBLEM is one argument, in quotes: words key=value; nq={512,2048} stands for several "
    "problems; what is left out has a default:\n"
    "  b=1 hq=8 hkv=hq nq=1024 nk=nq d=64 dv=d (n: nq and nk, h: hq and hkv)\n"
    "  dtype=f32|f64|f16|bf16 o_dtype=dtype layout=bshd|bhsd|qkv|gap|strided|loose\n"
    "  (qkv: packed; gap: unused elements between rows; strided: Q backwards, KV\n"
    "  heads of stride 0; loose: huge strides along axes of one element)\n"
    "  causal=0|1 top_left=0|1 window_left=L window_right=R scale=X softcap=X\n"
    "  mask=[DTYPE:]AXES bias=[DTYPE:]AXES (letters of bhqk, or 1)\n"
    "  (DTYPE of a mask: bool|u8|i8|i32|i64|b1x8; of a bias: f64|f32|f16|bf16)\n"
    "  alibi=AXES sinks=AXES (letters of bh, or 1)\n"
    "  lens_q=a,b,.. lens_k=a,b,.. (sequences packed one after the other)\n"
    "  outside=N (rows and keys before the first of these and after the last)\n"
    "  used_q=a,b,.. used_k=a,b,.. leftpad_k=a,b,.. (rows before the first key)\n"
    "  page=N (keys in pages of N rows) prefix=N (keys in shared pages)\n"
    "  view=0|1 (V is the first columns of K)\n"
    "  q_origin=a,b,.. k_origin=a,b,.. (one for all sequences, or one each)\n"
    "  kv_dtype=i8|i4x2|e4m3|e5m2 (quantised K and V) kv_shift=0|1\n"
    "  kv_scale=[DTYPE:]AXES (letters of bkh, or 1) kv_group=N (columns of a scale)\n"
    "  pass=forward|backward|training (both) grad_dtype=dtype|f32 (dq, dk, dv)\n"
    "  d_lse=0|1 d_bias=DTYPE d_alibi=0|1 d_sinks=0|1\n"
    "  dropout=P dropout_seed=S dropout_offset=O\n"
    "  inputs=normal|outlier|uniform|large|equal|positive|offset|even|rising|wild\n"
    "  (outlier: one in 1000 is ten times as large; large: scores in thousands;\n"
    "  equal, positive, offset, even: values of one sign or without spread;\n"
    "  rising: K grows along the keys; wild: powers of two, to the type's ends)\n"
    "  seed=S sown=N (one number in N is a NaN) infinite=N (is an infinity)\n"
    "  offset=E (elements, of pointers)\n"
    "  precise=0|1 bf16x3=0|1 index=i32|i64 lse=0|1 row_max=0|1\n"
    "  threads=T (0: all cores) cpu=scalar|avx2|avx512|avx512bf16|neon|neonbf16|amx\n"
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
    "--no-deps paddlepaddle (for the oneDNN inside) llama-cpp-python (for ggml, compiled), then "
    "--python V/bin/python; libattn.torch: "
    "V/bin/pip install . in the source tree.\n"
    "\n"
    "Examples:\n"
    "  attn bench \"hq=16 nq=4096 d=64 causal=1 threads=1\"\n"
    "  attn bench \"nq=2048\" \"nq=8192\" --json\n"
    "  attn bench --suite bench/suites/scaling.txt --plot scaling.svg\n"
    "  attn bench --peers --suite bench/suites/cpu-prefill.txt --csv --plot p.svg\n"
    "  attn bench --device cuda --impl libattn,cudnn,flash --csv \\\n"
    "    --suite bench/suites/cuda-prefill.txt\n"
    "  grep -v dtype=f bench/results/cpu-amx-2026-11-21-prefill-torch.csv |\n"
    "    attn bench --from - --plot bf16.svg";

typedef struct bench_state {
    bench_run run;
    const char *names; /* as given with --impl, or NULL */
    bool peers, cold;
    enum bench_format format;
    const char *plot, *from;
} bench_state;

static void choose_implementations(bench_state *bench)
{
    char copy[96], known[96] = "", *rest = copy, *name;
    for (int i = 0; i < BENCH_IMPLEMENTATIONS && bench->run.on->names[i] != NULL; i++) {
        bool peer = bench->peers && !bench->run.on->binding[i];
        bench->run.use[i] = bench->names == NULL && (peer || bench->run.on->by_default[i]);
        size_t end = strlen(known);
        snprintf(known + end, sizeof known - end, "%s%s", i == 0 ? "" : ", ",
                 bench->run.on->names[i]);
    }
    snprintf(copy, sizeof copy, "%s", bench->names != NULL ? bench->names : "");
    while (bench->names != NULL && (name = strsep(&rest, ",")) != NULL) {
        int i = bench_find(bench->run.on, name);
        if (i < 0) {
            exit(cli_error(CLI_USAGE, "--impl: \"%s\" is not one of %s", name, known));
        }
        bench->run.use[i] = true;
    }
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    bench_state *bench = state->input;
    switch (key) {
    case 's':
        if (strchr(text, '=') != NULL) {
            exit(cli_error(CLI_USAGE, "--suite: \"%s\" is a problem, not a file", text));
        }
        cli_add_problems(&bench->run.list, text);
        return 0;
    case 'j':
        bench->format = BENCH_JSON;
        return 0;
    case 'c':
        bench->format = BENCH_CSV;
        return 0;
    case 'P':
        bench->peers = true;
        return 0;
    case 'C':
        bench->cold = true;
        return 0;
    case 'd':
        bench->run.device = cli_device(text);
        return 0;
    case 'y':
        bench->run.python = text;
        return 0;
    case 'r':
        bench->run.rounds = (int)cli_integer("rounds", text, 1, BENCH_MAX_SAMPLES);
        return 0;
    case 'i':
        bench->names = text;
        return 0;
    case 't':
        bench->run.min_time = cli_real("min-time", text, 0, 3600);
        return 0;
    case 'f':
        bench->from = text;
        return 0;
    case 'p':
        bench->plot = text;
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&bench->run.list, text);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

static void print_problem(const bench_state *bench, int index)
{
    bench_result shown[BENCH_IMPLEMENTATIONS];
    int count = 0;
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        if (bench->run.use[i]) {
            shown[count++] = bench->run.results[index * BENCH_IMPLEMENTATIONS + i];
        }
    }
    bench_print(bench->format, shown, count);
}

/* Runs everything, once the command line has been read and checked. */
static void run(bench_state *bench, const bench_record *record)
{
    int count = bench->run.list.count * BENCH_IMPLEMENTATIONS;
    char error[1024];
    bench_print_record(bench->format, record);
    for (int i = 0; i < bench->run.list.count && bench->run.status == CLI_OK; i++) {
        if (bench->from == NULL) {
            bench_measure(&bench->run, i);
        }
        if (bench->run.status == CLI_OK) {
            print_problem(bench, i);
            /* nobody reads on; main.c reports it */
            bench->run.status = ferror(stdout) ? CLI_INTERNAL : CLI_OK;
        }
    }
    if (bench->run.status == CLI_OK) {
        bench_print_summary(bench->format, bench->run.results, count);
    }
    if (bench->run.status == CLI_OK && bench->plot != NULL &&
        !bench_plot(bench->run.results, count, record, bench->plot, error, sizeof error)) {
        bench->run.status = cli_error(CLI_INTERNAL, "%s", error);
    }
}

/* Checks that come before any measurement. */
static int prepare(bench_state *bench)
{
    if (bench->run.list.count == 0) {
        return cli_error(
            CLI_USAGE,
            "no problem given, for example \"hq=8 nq=2048 d=64\" (see attn bench --help)");
    }
    if (bench->cold && bench->run.device != ATTN_DEVICE_CUDA) {
        return cli_error(CLI_USAGE, "--cold is for --device cuda");
    }
    bench->cold ? bench_gpu_cool() : (void)0;
    bench->run.on = bench_device_of(bench->run.device);
    bench->run.min_time = bench->run.min_time > 0 ? bench->run.min_time : bench->run.on->min_time;
    bench->run.rounds = bench->run.rounds > 0 ? bench->run.rounds : bench->run.on->rounds;
    choose_implementations(bench);
    if (bench->run.device == ATTN_DEVICE_CUDA && bench_gpu_open() != ATTN_OK) {
        return cli_error(CLI_USAGE, "unsupported: %s", attn_last_error());
    }
    bench->run.results =
        calloc((size_t)bench->run.list.count * BENCH_IMPLEMENTATIONS, sizeof *bench->run.results);
    return bench->run.results == NULL ? cli_error(CLI_INTERNAL, "out of memory") : CLI_OK;
}

static int prepare_and_run(bench_state *bench, int argc, char **argv)
{
    static bench_record record;
    char error[1024];
    if (bench->from != NULL && bench->run.list.count > 0) {
        return cli_error(CLI_USAGE, "--from shows what was measured: no problems beside it");
    }
    if (bench->plot != NULL && !bench_plot_possible(bench->plot, error, sizeof error)) {
        return cli_error(CLI_USAGE, "%s", error);
    }
    if (bench->from != NULL) {
        bench_read(&bench->run, bench->from, &record);
    } else {
        int status = prepare(bench);
        if (status != CLI_OK) {
            return status;
        }
        bench_record_fill(&record, bench->run.device, argc, argv);
    }
    run(bench, &record);
    return bench->run.status;
}

int cli_bench(int argc, char **argv)
{
    static const struct argp argp = {options, parse, "PROBLEM...", doc, NULL, NULL, NULL};
    bench_state bench = {.run = {.python = "python3"}};
    cli_parse(&argp, argc, argv, &bench);
    int status = prepare_and_run(&bench, argc, argv);
    free(bench.run.list.problems);
    free(bench.run.results);
    return status;
}
