/*
 * bench.c: `attn bench`: the command line and the order of measuring. Each implementation is a process (worker.h); they
 * are sampled in turn, round after round, with the FMA ceiling measured in every round between them.
 */
#include "bench.h"
#include "cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IMPLEMENTATIONS = 4 };

static const char *const implementations[MAX_IMPLEMENTATIONS] = {"libattn", "standard", "torch", "onnxruntime"};

struct bench {
    cli_list list;
    bool use[MAX_IMPLEMENTATIONS];
    enum bench_format format;
    double min_time; /* seconds of a sample */
    int rounds;      /* samples of calls that take less than a second */
    const char *python, *plot;
    bench_result *results; /* [count * MAX_IMPLEMENTATIONS] */
    int status;
};

/* ---- Measuring ------------------------------------------------------------------------------------------------- */

/* What one turn of everyone gave. */
struct round {
    double seconds[MAX_IMPLEMENTATIONS];
    double peak_gflops, amx_peak_gflops;
    double waited; /* the largest share of a sample's time that threads waited for a core */
};

/* As many rounds as asked for, or as ten seconds hold. */
static int rounds_for(const struct bench *b, double seconds)
{
    int most = seconds <= 1 ? BENCH_MAX_SAMPLES : seconds >= 10 ? 1 : seconds >= 5 ? 2 : 3;
    return b->rounds < most ? b->rounds : most;
}

/* A refusal is part of the results; anything else ends the program after this problem. */
static void give_up(struct bench *b, bench_result *r, const worker *w)
{
    r->measured = false;
    snprintf(r->why, sizeof r->why, "%.1000s", w->why);
    if (w->failure != WORKER_REFUSED) {
        b->status = cli_error(w->failure == WORKER_BAD_PROBLEM ? CLI_USAGE : CLI_INTERNAL, "%s", w->why);
    }
}

/* The first timed call tells how many make a sample, and the slowest implementation how many rounds there are. */
static int calibrate(struct bench *b, worker *w, bench_result *r, int64_t *repeats)
{
    double seconds, waited, slowest = 0;
    for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
        if (!r[i].measured || b->status != CLI_OK) {
            continue;
        }
        if (!worker_sample(&w[i], 1, &seconds, &waited)) {
            give_up(b, &r[i], &w[i]);
            continue;
        }
        slowest = fmax(slowest, seconds);
        repeats[i] = seconds >= b->min_time ? 1 : (int64_t)(b->min_time / (seconds + 1e-9)) + 1;
    }
    return rounds_for(b, slowest);
}

static struct round measure_round(struct bench *b, worker *w, bench_result *r, const int64_t *repeats)
{
    struct round round = {.peak_gflops = NAN, .amx_peak_gflops = NAN};
    for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
        if (!r[i].measured || b->status != CLI_OK) {
            continue;
        }
        double waited;
        if (!worker_sample(&w[i], repeats[i], &round.seconds[i], &waited)) {
            give_up(b, &r[i], &w[i]);
            continue;
        }
        round.waited = fmax(round.waited, waited / round.seconds[i]);
        if (isnan(round.peak_gflops)) {
            worker_peak(&w[i], 0.02, &round.peak_gflops, &round.amx_peak_gflops);
        }
    }
    return round;
}

/* Rounds in which others kept a core busy are measured again, up to as many; the quietest count. */
static int measure_rounds(struct bench *b, worker *w, bench_result *r, struct round *rounds)
{
    int64_t repeats[MAX_IMPLEMENTATIONS] = {0};
    int count = calibrate(b, w, r, repeats);
    for (int n = 0, worst = 0; n < 2 * count && b->status == CLI_OK; n++) {
        cli_progress("round %d", n + 1);
        struct round round = measure_round(b, w, r, repeats);
        int at = n < count ? n : worst;
        if (n < count || round.waited < rounds[worst].waited) {
            rounds[at] = round;
        }
        worst = 0;
        for (int i = 1; i < count && n + 1 >= count; i++) {
            worst = rounds[i].waited > rounds[worst].waited ? i : worst;
        }
        if (n + 1 >= count && !(rounds[worst].waited > 0.05)) {
            break;
        }
    }
    return count;
}

/* The median over rounds of implementation i's time / base's; base < 0: its time. */
static stats_summary over_rounds(const struct round *rounds, int count, int i, int base)
{
    double x[BENCH_MAX_SAMPLES];
    for (int n = 0; n < count; n++) {
        x[n] = rounds[n].seconds[i] / (base < 0 ? 1 : rounds[n].seconds[base]);
    }
    return stats_of(x, count);
}

static void conclude_one(bench_result *r, const struct round *rounds, int count, int i)
{
    double peak[BENCH_MAX_SAMPLES], amx_peak[BENCH_MAX_SAMPLES];
    for (int n = 0; n < count; n++) {
        peak[n] = rounds[n].peak_gflops, amx_peak[n] = rounds[n].amx_peak_gflops;
        r->waited = fmax(r->waited, rounds[n].waited);
    }
    r->samples = count;
    r->seconds = over_rounds(rounds, count, i, -1);
    r->gflops = problem_flops(r->problem) / r->seconds.median * 1e-9;
    r->peak_gflops = stats_of(peak, count).median;
    bool capped = i > 0 && r->problem->cpu[0] != '\0'; /* the cap is libattn's: others know nothing of it */
    r->share = capped || !(r->peak_gflops > 0) ? NAN : r->gflops / r->peak_gflops;
    double tiles = stats_of(amx_peak, count).median;
    r->amx_peak_gflops = tiles > 0 ? tiles : NAN;
    r->amx_share = r->gflops / r->amx_peak_gflops;
}

/* Ratios are taken round by round, so that what slows a machine down for a while cancels out. A wrong result has no
 * speed. */
static void conclude(struct bench *b, worker *w, bench_result *r, const struct round *rounds, int count)
{
    r[0].ratio = NAN;
    for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
        cli_progress("error of %s against float64", implementations[i]);
        if (r[i].measured && b->status == CLI_OK && !worker_finish(&w[i], &r[i].report)) {
            give_up(b, &r[i], &w[i]);
        }
        if (r[i].measured) {
            conclude_one(&r[i], rounds, count, i);
        }
        if (i > 0) {
            bool both = r[0].measured && r[i].measured && !bench_is_wrong(&r[i]);
            r[i].ratio = both ? over_rounds(rounds, count, i, 0).median : NAN;
            r[0].ratio = fmin(r[0].ratio, r[i].ratio);
        }
    }
    cli_progress(NULL);
}

static void measure(struct bench *b, int index)
{
    bench_result *r = &b->results[index * MAX_IMPLEMENTATIONS], shown[MAX_IMPLEMENTATIONS];
    worker w[MAX_IMPLEMENTATIONS] = {{0}};
    struct round rounds[BENCH_MAX_SAMPLES];
    int count = 0;
    for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
        r[i].implementation = implementations[i];
        r[i].problem = &b->list.problems[index];
        cli_progress("problem %d of %d: inputs and first call of %s", index + 1, b->list.count, implementations[i]);
        r[i].measured =
            b->use[i] && b->status == CLI_OK && worker_start(&w[i], implementations[i], b->python, r[i].problem);
        if (b->use[i] && b->status == CLI_OK && !r[i].measured) {
            give_up(b, &r[i], &w[i]);
        }
    }
    int measured = measure_rounds(b, w, r, rounds);
    conclude(b, w, r, rounds, measured);
    for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
        worker_stop(&w[i]);
        if (b->use[i]) {
            shown[count++] = r[i];
        }
    }
    if (b->status == CLI_OK) {
        bench_print(b->format, shown, count);
    }
}

/* ---- The command line ------------------------------------------------------------------------------------------ */

static const struct argp_option options[] = {
    {"suite", 's', "FILE", 0, "measure the problems of a file, one line each", 0},
    {"peers", 'P', NULL, 0, "all of libattn, standard, torch and onnxruntime, as far as they are installed", 0},
    {"impl", 'i', "NAMES", 0, "some of these (default: libattn,standard)", 0},
    {"python", 'y', "PROGRAM", 0, "the Python that has the peers (default python3)", 0},
    {"min-time", 't', "S", 0, "seconds of a sample (default 0.1)", 0},
    {"rounds", 'r', "R", 0, "samples of each implementation, in turn (default 5)", 0},
    {"json", 'j', NULL, 0, "one JSON object per implementation and line", 0},
    {"csv", 'c', NULL, 0, "the same as a table with commas", 0},
    {"plot", 'p', "FILE", 0, "draw FILE, .svg or .png: time and memory against N, with peers bars of shares and ratios",
     0},
    {0},
};

static const char doc[] =
    "Measures attention on random inputs, beside standard attention on the same threads: the scores of a head stored "
    "as a matrix, both products by OpenBLAS, a vectorised softmax.\v"
    "A PROBLEM is words key=value; what is left out has a default:\n"
    "  b=1 hq=8 hkv=hq nq=1024 nk=nq d=64 dv=d (n: nq and nk, h: hq and hkv)\n"
    "  dtype=f32|f64|f16|bf16 o_dtype=dtype layout=bshd|bhsd|qkv|gap|strided\n"
    "  causal=0|1 top_left=0|1 window_left=L window_right=R scale=X softcap=X\n"
    "  mask=AXES bias=[DTYPE:]AXES (letters of bhqk) alibi=AXES sinks=AXES (of bh)\n"
    "  lens_q=a,b,.. lens_k=a,b,.. used_q=a,b,.. used_k=a,b,..\n"
    "  pass=forward|backward|training (both) dropout=P\n"
    "  inputs=normal|outlier|uniform|large|equal seed=S\n"
    "  precise=0|1 index=i32|i64 lse=0|1 row_max=0|1 offset=E (of pointers)\n"
    "  threads=T (0: all cores) cpu=scalar|avx2|avx512|neon|amx\n"
    "\n"
    "Printed: the median of five samples (fewer if a call takes over a second) and their quartiles, with threads=1 of "
    "processor time; GFLOP/s, "
    "counting 2 (d + dv) Nq Nk Hq and half of that if causal; the share of the multiply-add ceiling measured in the "
    "same run, where there is AMX also that of products of random tiles; the workspace beside Q, K, V and O; the peak "
    "memory of a process that does only this; the largest "
    "|O - O64| / sum p|v| against float64 on a sample of rows; how many times faster libattn is (the median over "
    "rounds, "
    "in each of which everyone has a turn); and at the end the geometric means of that and the worst cells.\n"
    "\n"
    "Peers are called from Python on the same tensors and threads, and timed there; what Python adds to a call is part "
    "of its time. To install them: python3 -m venv V && V/bin/pip install torch onnxruntime onnx, then --python "
    "V/bin/python.\n"
    "\n"
    "Examples:\n"
    "  attn bench \"hq=16 nq=4096 d=64 causal=1 threads=1\"\n"
    "  attn bench \"nq=2048\" \"nq=8192\" --json\n"
    "  attn bench --suite bench/scaling.txt --plot scaling.svg\n"
    "  attn bench --peers --suite bench/cpu-prefill.txt --csv --plot prefill.svg";

static void choose_implementations(struct bench *b, const char *names)
{
    char copy[64], *rest = copy, *name;
    memset(b->use, 0, sizeof b->use);
    snprintf(copy, sizeof copy, "%s", names);
    while ((name = strsep(&rest, ",")) != NULL) {
        bool known = false;
        for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
            known |= strcmp(name, implementations[i]) == 0;
            b->use[i] |= strcmp(name, implementations[i]) == 0;
        }
        if (!known) {
            exit(cli_error(CLI_USAGE, "--impl: \"%s\" is not one of libattn, standard, torch, onnxruntime", name));
        }
    }
}

static void choose_plot(struct bench *b, const char *path)
{
    const char *ending = strrchr(path, '.');
    if (ending == NULL || (strcmp(ending, ".svg") != 0 && strcmp(ending, ".png") != 0)) {
        exit(cli_error(CLI_USAGE, "--plot: \"%s\" ends neither in .svg nor in .png", path));
    }
    b->plot = path;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct bench *b = state->input;
    switch (key) {
    case 's':
        if (strchr(text, '=') != NULL) {
            exit(cli_error(CLI_USAGE, "--suite: \"%s\" is a problem, not a file", text));
        }
        cli_add_problems(&b->list, text);
        return 0;
    case 'j':
        b->format = BENCH_JSON;
        return 0;
    case 'c':
        b->format = BENCH_CSV;
        return 0;
    case 'P':
        memset(b->use, true, sizeof b->use);
        return 0;
    case 'y':
        b->python = text;
        return 0;
    case 'r':
        b->rounds = (int)cli_integer("rounds", text, 1, BENCH_MAX_SAMPLES);
        return 0;
    case 'i':
        choose_implementations(b, text);
        return 0;
    case 't':
        b->min_time = cli_real("min-time", text);
        return 0;
    case 'p':
        choose_plot(b, text);
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&b->list, text);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

int cli_bench(int argc, char **argv)
{
    static const struct argp argp = {options, parse, "PROBLEM...", doc, NULL, NULL, NULL};
    struct bench b = {.use = {true, true}, .min_time = 0.1, .rounds = 5, .python = "python3"};
    char error[1024];
    cli_parse(&argp, argc, argv, &b);
    if (b.list.count == 0) {
        return cli_error(CLI_USAGE, "no problem given, for example \"hq=8 nq=2048 d=64\" (see attn bench --help)");
    }
    if (b.plot != NULL && !bench_plot_possible(b.plot, error, sizeof error)) {
        return cli_error(CLI_USAGE, "%s", error);
    }
    b.results = calloc((size_t)b.list.count * MAX_IMPLEMENTATIONS, sizeof *b.results);
    if (b.results == NULL) {
        return cli_error(CLI_INTERNAL, "out of memory");
    }
    bench_print_record(b.format, argc, argv);
    for (int i = 0; i < b.list.count && b.status == CLI_OK; i++) {
        measure(&b, i);
    }
    if (b.status == CLI_OK) {
        bench_print_summary(b.format, b.results, b.list.count * MAX_IMPLEMENTATIONS);
    }
    if (b.status == CLI_OK && b.plot != NULL &&
        !bench_plot(b.results, b.list.count * MAX_IMPLEMENTATIONS, b.plot, error, sizeof error)) {
        b.status = cli_error(CLI_INTERNAL, "%s", error);
    }
    free(b.results);
    free(b.list.problems);
    return b.status;
}
