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

enum { MAX_IMPLEMENTATIONS = 2 };

static const char *const implementations[MAX_IMPLEMENTATIONS] = {"libattn", "standard"};

struct bench {
    cli_list list;
    bool use[MAX_IMPLEMENTATIONS];
    bool json;
    double min_time; /* seconds of a sample */
    const char *plot;
    bench_result *results; /* [count * MAX_IMPLEMENTATIONS] */
    int status;
};

/* ---- Measuring ------------------------------------------------------------------------------------------------- */

/* Five samples of min_time each, or more, or as many as ten seconds hold. */
static int samples_for(double seconds)
{
    return seconds <= 1 ? 5 : seconds >= 10 ? 1 : seconds >= 5 ? 2 : 3;
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

/* The first timed call tells how many make a sample. */
static int64_t calibrate(struct bench *b, worker *w, bench_result *r)
{
    double seconds = 0;
    if (!worker_sample(w, 1, &seconds)) {
        give_up(b, r, w);
        return 0;
    }
    r->samples = samples_for(seconds);
    return seconds >= b->min_time ? 1 : (int64_t)(b->min_time / (seconds + 1e-9)) + 1;
}

static void measure_rounds(struct bench *b, worker *w, bench_result *r, double *peak, int *peaks)
{
    int64_t repeats[MAX_IMPLEMENTATIONS] = {0};
    for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
        repeats[i] = r[i].measured && b->status == CLI_OK ? calibrate(b, &w[i], &r[i]) : 0;
    }
    *peaks = 0;
    for (int round = 0; round < BENCH_MAX_SAMPLES; round++) {
        bool busy = false;
        for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
            if (!r[i].measured || round >= r[i].samples || b->status != CLI_OK) {
                continue;
            }
            busy = true;
            cli_progress("round %d of %d: %s", round + 1, r[i].samples, w[i].implementation);
            if (!worker_sample(&w[i], repeats[i], &r[i].sample[round])) {
                give_up(b, &r[i], &w[i]);
            } else if (i == 0 || !r[0].measured) {
                *peaks += worker_peak(&w[i], 0.02, &peak[*peaks]);
            }
        }
        if (!busy) {
            break;
        }
    }
}

static void conclude(struct bench *b, worker *w, bench_result *r, double peak)
{
    for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
        cli_progress("error of %s against float64", implementations[i]);
        if (r[i].measured && b->status == CLI_OK && !worker_finish(&w[i], &r[i].report)) {
            give_up(b, &r[i], &w[i]);
        }
        if (r[i].measured) {
            r[i].seconds = stats_of(r[i].sample, r[i].samples);
            r[i].gflops = problem_flops(r[i].problem) / r[i].seconds.median * 1e-9;
            r[i].peak_gflops = peak > 0 ? peak : NAN;
            bool capped =
                i > 0 && r[i].problem->cpu[0] != '\0'; /* the cap is libattn's: OpenBLAS knows nothing of it */
            r[i].share = capped ? NAN : r[i].gflops / r[i].peak_gflops;
        }
    }
    cli_progress(NULL);
    r[0].ratio = r[1].ratio = r[0].measured && r[1].measured ? r[1].seconds.median / r[0].seconds.median : NAN;
}

static void measure(struct bench *b, int index)
{
    bench_result *r = &b->results[index * MAX_IMPLEMENTATIONS], shown[MAX_IMPLEMENTATIONS];
    worker w[MAX_IMPLEMENTATIONS] = {{0}};
    double peak[BENCH_MAX_SAMPLES * MAX_IMPLEMENTATIONS];
    int peaks, count = 0;
    for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
        r[i].implementation = implementations[i];
        r[i].problem = &b->list.problems[index];
        cli_progress("problem %d of %d: inputs and first call of %s", index + 1, b->list.count, implementations[i]);
        r[i].measured = b->use[i] && b->status == CLI_OK && worker_start(&w[i], implementations[i], r[i].problem);
        if (b->use[i] && b->status == CLI_OK && !r[i].measured) {
            give_up(b, &r[i], &w[i]);
        }
    }
    measure_rounds(b, w, r, peak, &peaks);
    conclude(b, w, r, stats_of(peak, peaks).median);
    for (int i = 0; i < MAX_IMPLEMENTATIONS; i++) {
        worker_stop(&w[i]);
        if (b->use[i]) {
            shown[count++] = r[i];
        }
    }
    if (b->status == CLI_OK) {
        b->json ? bench_print_json(shown, count) : bench_print_text(shown, count);
    }
}

/* ---- The command line ------------------------------------------------------------------------------------------ */

static const struct argp_option options[] = {
    {"suite", 's', "FILE", 0, "measure the problems of a file, one line each", 0},
    {"json", 'j', NULL, 0, "one JSON object per implementation and line", 0},
    {"impl", 'i', "NAMES", 0, "libattn, standard or both (default: libattn,standard)", 0},
    {"min-time", 't', "S", 0, "seconds of a sample (default 0.1)", 0},
    {"plot", 'p', "FILE", 0, "draw time and memory against N: FILE ends in .svg or .png", 0},
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
    "  inputs=normal|outlier|uniform|large|equal seed=S\n"
    "  precise=0|1 index=i32|i64 lse=0|1 row_max=0|1 offset=E (of pointers)\n"
    "  threads=T (0: all cores) cpu=scalar|avx2|avx512|neon|amx\n"
    "\n"
    "Printed: the median of at least five samples (fewer if a call takes over a second) and their quartiles; GFLOP/s, "
    "counting 2 (d + dv) Nq Nk Hq and half of that if causal; the share of the multiply-add ceiling measured in the "
    "same run; the workspace beside Q, K, V and O; the peak memory of a process that does only this; the largest "
    "|O - O64| / sum p|v| against float64 on a sample of rows; how many times faster libattn is.\n"
    "\n"
    "Examples:\n"
    "  attn bench \"hq=16 nq=4096 d=64 causal=1 threads=1\"\n"
    "  attn bench \"nq=2048\" \"nq=8192\" --json\n"
    "  attn bench --suite bench/scaling.txt --plot scaling.svg";

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
            exit(cli_error(CLI_USAGE, "--impl: \"%s\" is neither libattn nor standard", name));
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
        b->json = true;
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
    struct bench b = {.use = {true, true}, .min_time = 0.1};
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
    for (int i = 0; i < b.list.count && b.status == CLI_OK; i++) {
        measure(&b, i);
    }
    if (b.status == CLI_OK && b.plot != NULL &&
        !bench_plot(b.results, b.list.count * MAX_IMPLEMENTATIONS, b.plot, error, sizeof error)) {
        b.status = cli_error(CLI_INTERNAL, "%s", error);
    }
    free(b.results);
    free(b.list.problems);
    return b.status;
}
