/*
 * bench_measure.c: the order of measuring. Each implementation on the CPU is a process (worker.h);
 * for a GPU see bench_gpu.c. They are sampled in turn, round after round, and the ceiling of
 * multiply-adds or of matrix products is measured between them in every round.
 */
#include "bench_measure.h"
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The times of one turn of every implementation. */
struct round {
    double seconds[BENCH_IMPLEMENTATIONS], one_by_one[BENCH_IMPLEMENTATIONS];
    worker_peaks peaks;
    double waited; /* the largest share of a sample's time that threads waited for a core */
};

/* The given number of rounds, or fewer: those that ten seconds hold. */
static int rounds_for(const bench_run *b, double seconds)
{
    int most = seconds <= 1 ? BENCH_MAX_SAMPLES : seconds >= 10 ? 1 : seconds >= 5 ? 2 : 3;
    return b->rounds < most ? b->rounds : most;
}

/* A refusal is part of the results; any other failure ends the program after this problem. */
static void give_up(bench_run *b, bench_result *r, const worker *w)
{
    r->measured = false;
    snprintf(r->why, sizeof r->why, "%.1000s", w->why);
    if (w->failure != WORKER_REFUSED) {
        b->status =
            cli_error(w->failure == WORKER_BAD_PROBLEM ? CLI_USAGE : CLI_INTERNAL, "%s", w->why);
    }
}

/* Chooses the calls of a sample by the first timed call, and the number of rounds by the slowest
 * implementation. */
static int calibrate(bench_run *b, worker *w, bench_result *r, int64_t *repeats)
{
    worker_times times;
    double slowest = 0;
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        if (!r[i].measured || b->status != CLI_OK) {
            continue;
        }
        if (!b->on->sample(&w[i], 1, &times)) {
            give_up(b, &r[i], &w[i]);
            continue;
        }
        slowest = fmax(slowest, times.seconds);
        repeats[i] =
            times.seconds >= b->min_time ? 1 : (int64_t)(b->min_time / (times.seconds + 1e-9)) + 1;
    }
    return rounds_for(b, slowest);
}

/* Every second round goes backwards, and the ceiling follows another implementation each time. So
 * each follows different others, whose traces (heat, caches) differ. */
static struct round measure_round(bench_run *b, worker *w, bench_result *r, const int64_t *repeats,
                                  int number)
{
    struct round round = {.peaks = {NAN, NAN}};
    int order[BENCH_IMPLEMENTATIONS], count = 0;
    for (int n = 0; n < BENCH_IMPLEMENTATIONS; n++) {
        int i = number % 2 == 0 ? n : BENCH_IMPLEMENTATIONS - 1 - n;
        if (r[i].measured) {
            order[count++] = i;
        }
    }
    for (int n = 0; n < count && b->status == CLI_OK; n++) {
        int i = order[n];
        worker_times times;
        if (!b->on->sample(&w[i], repeats[i], &times)) {
            give_up(b, &r[i], &w[i]);
            continue;
        }
        round.seconds[i] = times.seconds, round.one_by_one[i] = times.one_by_one;
        round.waited = fmax(round.waited, times.waited / times.seconds);
        if (n == number % count) {
            b->on->peak(&w[i], b->python, &round.peaks);
        }
    }
    return round;
}

/* Measures rounds again in which other programs kept a core busy, up to as many again; the quietest
 * rounds count. */
static int measure_rounds(bench_run *b, worker *w, bench_result *r, struct round *rounds)
{
    int64_t repeats[BENCH_IMPLEMENTATIONS] = {0};
    int count = calibrate(b, w, r, repeats);
    for (int n = 0, worst = 0; n < 2 * count && b->status == CLI_OK; n++) {
        cli_progress("round %d", n + 1);
        struct round round = measure_round(b, w, r, repeats, n);
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

/* Median over the rounds of implementation i's time / base's; base < 0: of its time. */
static stats_summary over_rounds(const struct round *rounds, int count, int i, int base)
{
    double x[BENCH_MAX_SAMPLES];
    for (int n = 0; n < count; n++) {
        x[n] = rounds[n].seconds[i] / (base < 0 ? 1 : rounds[n].seconds[base]);
    }
    return stats_of(x, count);
}

static double one_by_one(const struct round *rounds, int count, int i, int base)
{
    double x[BENCH_MAX_SAMPLES];
    for (int n = 0; n < count; n++) {
        x[n] = rounds[n].one_by_one[i] / (base < 0 ? 1 : rounds[n].one_by_one[base]);
    }
    return stats_of(x, count).median;
}

static void conclude_one(bench_result *r, const struct round *rounds, int count, int i)
{
    double peak[BENCH_MAX_SAMPLES], amx_peak[BENCH_MAX_SAMPLES];
    for (int n = 0; n < count; n++) {
        peak[n] = rounds[n].peaks.gflops, amx_peak[n] = rounds[n].peaks.tiles;
        r->waited = fmax(r->waited, rounds[n].waited);
    }
    r->samples = count;
    r->seconds = over_rounds(rounds, count, i, -1);
    r->one_by_one = one_by_one(rounds, count, i, -1);
    r->gflops = problem_flops(r->problem) / r->seconds.median * 1e-9;
    r->peak_gflops = stats_of(peak, count).median;
    /* the cap is libattn's; other implementations ignore it */
    bool capped = i > 0 && r->problem->cpu[0] != '\0';
    r->share = capped || !(r->peak_gflops > 0) ? NAN : r->gflops / r->peak_gflops;
    r->amx_peak_gflops = stats_of(amx_peak, count).median;
    r->amx_share = r->gflops / r->amx_peak_gflops;
}

/* Ratios are taken round by round, so a slow phase of the machine cancels out. A wrong result has
 * no speed. */
static void conclude(bench_run *b, worker *w, bench_result *r, const struct round *rounds,
                     int count)
{
    r[0].ratio = r[0].one_by_one_ratio = NAN;
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        if (r[i].measured && b->status == CLI_OK) {
            cli_progress("error of %s against float64", r[i].implementation);
            if (!b->on->finish(&w[i], &r[i].report)) {
                give_up(b, &r[i], &w[i]);
            }
        }
        if (r[i].measured) {
            conclude_one(&r[i], rounds, count, i);
        }
        if (i > 0) {
            bool both =
                r[0].measured && !bench_is_wrong(&r[0]) && r[i].measured && !bench_is_wrong(&r[i]);
            r[i].ratio = both ? over_rounds(rounds, count, i, 0).median : NAN;
            r[i].one_by_one_ratio = both ? one_by_one(rounds, count, i, 0) : NAN;
            r[0].ratio = fmin(r[0].ratio, r[i].ratio);
            r[0].one_by_one_ratio = fmin(r[0].one_by_one_ratio, r[i].one_by_one_ratio);
        }
    }
    cli_progress(NULL);
}

void bench_measure(bench_run *b, int index)
{
    bench_result *r = &b->results[index * BENCH_IMPLEMENTATIONS];
    worker w[BENCH_IMPLEMENTATIONS] = {{0}};
    struct round rounds[BENCH_MAX_SAMPLES];
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        const char *name = b->on->names[i];
        r[i].implementation = name;
        r[i].problem = &b->list.problems[index];
        r[i].device = b->device;
        if (b->use[i] && b->status == CLI_OK) {
            cli_progress("problem %d of %d: inputs and first call of %s", index + 1, b->list.count,
                         name);
            r[i].measured = b->on->start(&w[i], name, b->python, r[i].problem);
            if (!r[i].measured) {
                give_up(b, &r[i], &w[i]);
            }
        }
    }
    int measured = measure_rounds(b, w, r, rounds);
    conclude(b, w, r, rounds, measured);
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        b->on->stop(&w[i]);
    }
}
