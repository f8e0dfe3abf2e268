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
    /* shares of the samples' time that threads waited for a core, and the largest */
    double waits[BENCH_IMPLEMENTATIONS], waited;
};

/* The given number of rounds, or fewer: those that ten seconds hold. */
static int rounds_for(const bench_run *bench, double seconds)
{
    int most = seconds <= 1 ? BENCH_MAX_SAMPLES : seconds >= 10 ? 1 : seconds >= 5 ? 2 : 3;
    return bench->rounds < most ? bench->rounds : most;
}

/* A refusal is part of the results; any other failure ends the program after this problem. */
static void give_up(bench_run *bench, bench_result *result, const bench_worker *worker)
{
    result->measured = false;
    snprintf(result->why, sizeof result->why, "%.1000s", worker->why);
    if (worker->failure != WORKER_REFUSED) {
        bench->status = cli_error(worker->failure == WORKER_BAD_PROBLEM ? CLI_USAGE : CLI_INTERNAL,
                                  "%s", worker->why);
    }
}

/* Chooses the calls of a sample by the first timed call, and the number of rounds by the slowest
 * implementation. */
static int calibrate(bench_run *bench, bench_worker *worker, bench_result *result, int64_t *repeats)
{
    worker_times times;
    double slowest = 0;
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        if (!result[i].measured || bench->status != CLI_OK) {
            continue;
        }
        if (!bench->on->sample(&worker[i], 1, &times)) {
            give_up(bench, &result[i], &worker[i]);
            continue;
        }
        slowest = fmax(slowest, times.seconds);
        repeats[i] = times.seconds >= bench->min_time
                         ? 1
                         : (int64_t)(bench->min_time / (times.seconds + 1e-9)) + 1;
    }
    return rounds_for(bench, slowest);
}

/* Every second round goes backwards, and the ceiling follows another implementation each time. So
 * each follows different others, whose traces (heat, caches) differ. */
static struct round measure_round(bench_run *bench, bench_worker *worker, bench_result *result,
                                  const int64_t *repeats, int number)
{
    struct round round = {.peaks = {NAN, NAN, NAN}};
    int order[BENCH_IMPLEMENTATIONS], count = 0;
    for (int n = 0; n < BENCH_IMPLEMENTATIONS; n++) {
        int i = number % 2 == 0 ? n : BENCH_IMPLEMENTATIONS - 1 - n;
        if (result[i].measured) {
            order[count++] = i;
        }
    }
    for (int n = 0; n < count && bench->status == CLI_OK; n++) {
        int i = order[n];
        worker_times times;
        if (!bench->on->sample(&worker[i], repeats[i], &times)) {
            give_up(bench, &result[i], &worker[i]);
            continue;
        }
        round.seconds[i] = times.seconds, round.one_by_one[i] = times.one_by_one;
        round.waits[i] = times.waited / times.seconds;
        round.waited = fmax(round.waited, round.waits[i]);
        if (n == number % count) {
            bench->on->peak(&worker[i], bench->python, &round.peaks);
        }
    }
    return round;
}

/* Measures rounds again in which other programs kept a core busy, up to as many again; the quietest
 * rounds count. */
static int measure_rounds(bench_run *bench, bench_worker *worker, bench_result *result,
                          struct round *rounds)
{
    int64_t repeats[BENCH_IMPLEMENTATIONS] = {0};
    int count = calibrate(bench, worker, result, repeats);
    for (int n = 0, worst = 0; n < 2 * count && bench->status == CLI_OK; n++) {
        cli_progress("round %d", n + 1);
        struct round round = measure_round(bench, worker, result, repeats, n);
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

static void conclude_one(bench_result *result, const struct round *rounds, int count, int i)
{
    double peak[BENCH_MAX_SAMPLES], amx_peak[BENCH_MAX_SAMPLES], read[BENCH_MAX_SAMPLES];
    for (int n = 0; n < count; n++) {
        peak[n] = rounds[n].peaks.gflops, amx_peak[n] = rounds[n].peaks.tiles;
        read[n] = rounds[n].peaks.read;
        result->waited = fmax(result->waited, rounds[n].waits[i]);
    }
    result->samples = count;
    result->seconds = over_rounds(rounds, count, i, -1);
    result->one_by_one = one_by_one(rounds, count, i, -1);
    result->gflops = problem_flops(result->problem) / result->seconds.median * 1e-9;
    result->peak_gflops = stats_of(peak, count).median;
    /* the cap is libattn's; other implementations ignore it */
    bool capped = i > 0 && result->problem->cpu[0] != '\0';
    result->share =
        capped || !(result->peak_gflops > 0) ? NAN : result->gflops / result->peak_gflops;
    result->amx_peak_gflops = stats_of(amx_peak, count).median;
    result->amx_share = result->gflops / result->amx_peak_gflops;
    result->read_rate = stats_of(read, count).median;
    result->cache_rate =
        problem_is_decode(result->problem)
            ? problem_key_bytes(result->problem, true) / result->seconds.median * 1e-9
            : NAN;
    result->cache_share = result->cache_rate / result->read_rate;
}

/* Ratios are taken round by round, so a slow phase of the machine cancels out. A wrong result has
 * no speed. */
static void conclude(bench_run *bench, bench_worker *worker, bench_result *result,
                     const struct round *rounds, int count)
{
    result[0].ratio = result[0].one_by_one_ratio = NAN;
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        if (result[i].measured && bench->status == CLI_OK) {
            cli_progress("error of %s against float64", result[i].implementation);
            if (!bench->on->finish(&worker[i], &result[i].report)) {
                give_up(bench, &result[i], &worker[i]);
            }
        }
        if (result[i].measured) {
            conclude_one(&result[i], rounds, count, i);
        }
        if (i > 0) {
            bool both = result[0].measured && !bench_is_wrong(&result[0]) && result[i].measured &&
                        !bench_is_wrong(&result[i]);
            result[i].ratio = both ? over_rounds(rounds, count, i, 0).median : NAN;
            result[i].one_by_one_ratio = both ? one_by_one(rounds, count, i, 0) : NAN;
        }
        if (i > 0 && !bench->on->binding[i]) {
            result[0].ratio = fmin(result[0].ratio, result[i].ratio);
            result[0].one_by_one_ratio =
                fmin(result[0].one_by_one_ratio, result[i].one_by_one_ratio);
        }
    }
    cli_progress(NULL);
}

void bench_measure(bench_run *bench, int index)
{
    bench_result *result = &bench->results[index * BENCH_IMPLEMENTATIONS];
    bench_worker w[BENCH_IMPLEMENTATIONS] = {{0}};
    struct round rounds[BENCH_MAX_SAMPLES];
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        const char *name = bench->on->names[i];
        result[i].implementation = name;
        result[i].problem = &bench->list.problems[index];
        result[i].device = bench->device;
        if (bench->use[i] && bench->status == CLI_OK) {
            cli_progress("problem %d of %d: inputs and first call of %s", index + 1,
                         bench->list.count, name);
            result[i].measured = bench->on->start(&w[i], name, bench->python, result[i].problem);
            if (!result[i].measured) {
                give_up(bench, &result[i], &w[i]);
            }
        }
    }
    int measured = measure_rounds(bench, w, result, rounds);
    conclude(bench, w, result, rounds, measured);
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        bench->on->stop(&w[i]);
    }
}
