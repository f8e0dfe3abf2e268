/*
 * plot_bars.c: `attn bench --plot` with peers: each problem a group of bars, one per implementation. Above the share of
 * the ceiling measured in the same run, below how many times as fast libattn is.
 */
#include "plot.h"

#include <math.h>
#include <string.h>

/* "bf16 d=64 N=2048 causal" */
static void print_label(FILE *gnuplot, const problem *p)
{
    static const char *const type[] = {
        [ATTN_F64] = "f64", [ATTN_F32] = "f32", [ATTN_F16] = "f16", [ATTN_BF16] = "bf16"};
    fprintf(gnuplot, "\"%s d=%lld N=%lld", type[p->dtype], (long long)p->d, (long long)p->nq);
    if (p->nk != p->nq) {
        fprintf(gnuplot, "/%lld", (long long)p->nk);
    }
    if (p->hkv != p->hq) {
        fprintf(gnuplot, " H=%lld/%lld", (long long)p->hq, (long long)p->hkv);
    }
    fprintf(gnuplot, "%s\"", p->causal ? " causal" : "");
}

/* Of tile products where there are any and the type is one that tiles take as it is. */
static double share_of(const bench_result *r)
{
    bool tiles = isfinite(r->amx_share) && (r->problem->dtype == ATTN_BF16 || r->problem->dtype == ATTN_F16);
    return tiles ? r->amx_share : r->share;
}

/* Implementations follow each other in groups of `kinds`; nobody's number is a gap. */
static void send_data(FILE *gnuplot, const bench_result *results, int count, int kinds)
{
    fputs("set datafile missing 'nan'\n$data << EOD\n", gnuplot);
    for (int at = 0; at < count; at += kinds) {
        print_label(gnuplot, results[at].problem);
        for (int i = 0; i < kinds; i++) {
            const bench_result *r = &results[at + i];
            fprintf(gnuplot, " %.4g %.4g", r->measured ? 100 * share_of(r) : (double)NAN,
                    r->measured ? r->ratio : (double)NAN);
        }
        fputc('\n', gnuplot);
    }
    fputs("EOD\n", gnuplot);
}

static bool is_there(const bench_result *results, int count, int kinds, int i)
{
    for (int at = i; at < count; at += kinds) {
        if (results[at].measured) {
            return true;
        }
    }
    return false;
}

static void send_bars(FILE *gnuplot, const bench_result *results, int count, int kinds, bool ratios)
{
    const char *separator = "plot ";
    for (int i = ratios ? 1 : 0; i < kinds; i++) {
        if (is_there(results, count, kinds, i)) {
            fprintf(gnuplot, "%s$data using %d:xtic(1) lc rgb '%s' title \"%s%s\"", separator, 2 + 2 * i + ratios,
                    plot_colour[i % PLOT_COLOURS], ratios ? "against " : "", results[i].implementation);
            separator = ", ";
        }
    }
    fputs(ratios ? ", 1 lc rgb '#475569' dt 2 notitle\n" : "\n", gnuplot);
}

void plot_bars(FILE *gnuplot, const char *path, const bench_result *results, int count)
{
    int kinds = 1;
    while (kinds < count && results[kinds].problem == results[0].problem) {
        kinds++;
    }
    plot_start(gnuplot, path, 300 + 55 * (count / kinds), 900);
    send_data(gnuplot, results, count, kinds);
    fprintf(gnuplot, "set multiplot layout 2,1 title \"Exact attention on this machine's %s\"\n",
            results[0].device == ATTN_DEVICE_CUDA ? "GPU" : "CPU");
    fputs("set style data histograms\nset style histogram clustered gap 1\nset style fill solid 0.9 noborder\n"
          "set grid ytics lt 1 lw 0.7 lc rgb '#c4c4c4'\nset border 3\nset tics nomirror\nset xtics rotate by -40\n"
          "set key top left Left reverse horizontal\nset yrange [0:]\nset offsets 0, 0, graph 0.15, 0\n"
          "set rmargin 8\nset ylabel '% of the ceiling measured in the same run'\n",
          gnuplot);
    send_bars(gnuplot, results, count, kinds, false);
    fputs("set ylabel 'libattn is .. times as fast'\n", gnuplot);
    send_bars(gnuplot, results, count, kinds, true);
    fputs("unset multiplot\nunset output\n", gnuplot);
}
