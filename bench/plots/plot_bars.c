/*
 * plot_bars.c: `attn bench --plot` with peers: each problem is a group of bars, one per
 * implementation. The upper row shows the share of the ceiling measured in the same run, the lower
 * row the factor by which libattn is faster.
 */
#include "plot.h"

#include <math.h>
#include <string.h>

/* Words that distinguish the problems stand below each group, the others in the title. */
struct varied {
    bool type, d, heads;
};

static struct varied varied_in(const bench_result *results, int count)
{
    struct varied v = {false, false, false};
    const problem *first = results[0].problem;
    for (int i = 1; i < count; i++) {
        const problem *p = results[i].problem;
        v.type |= p->dtype != first->dtype;
        v.d |= p->d != first->d;
        v.heads |= p->hq != first->hq || p->hkv != first->hkv;
    }
    return v;
}

/* "bf16 d=64 H=16/4 " of those words that vary, or that don't */
static void print_words(FILE *gnuplot, const problem *p, struct varied v, bool which)
{
    static const char *const type[] = {
        [ATTN_F64] = "f64", [ATTN_F32] = "f32", [ATTN_F16] = "f16", [ATTN_BF16] = "bf16"};
    if (v.type == which) {
        fprintf(gnuplot, "%s ", type[p->dtype]);
    }
    if (v.d == which) {
        fprintf(gnuplot, "d=%lld ", (long long)p->d);
    }
    if (v.heads == which) {
        fprintf(gnuplot, p->hkv == p->hq ? "H=%lld " : "H=%lld/%lld ", (long long)p->hq,
                (long long)p->hkv);
    }
}

static void print_label(FILE *gnuplot, const problem *p, struct varied v)
{
    fputc('"', gnuplot);
    print_words(gnuplot, p, v, true);
    fprintf(gnuplot, p->nk == p->nq ? "N=%lld" : "N=%lld/%lld", (long long)p->nq, (long long)p->nk);
    fprintf(gnuplot, "%s\"", p->causal ? " causal" : "");
}

/* The share is of tile products where the machine has them and tiles take the type as it is. */
static double share_of(const bench_result *r)
{
    bool tiles =
        isfinite(r->amx_share) && (r->problem->dtype == ATTN_BF16 || r->problem->dtype == ATTN_F16);
    return tiles ? r->amx_share : r->share;
}

/* Implementations follow each other in groups of `kinds`; a missing number is a gap. */
static void send_data(FILE *gnuplot, const bench_result *results, int count, int kinds)
{
    struct varied v = varied_in(results, count);
    fputs("set datafile missing 'nan'\n$data << EOD\n", gnuplot);
    for (int at = 0; at < count; at += kinds) {
        print_label(gnuplot, results[at].problem, v);
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
            fprintf(gnuplot, "%s$data using %d:xtic(1) lc rgb '%s' title \"%s%s\"", separator,
                    2 + 2 * i + ratios, plot_colour[i % PLOT_COLOURS], ratios ? "against " : "",
                    results[i].implementation);
            separator = ", ";
        }
    }
    fputs(ratios ? ", 1 lc rgb '#475569' dt 2 notitle\n" : "\n", gnuplot);
}

void plot_bars(FILE *gnuplot, const char *path, const bench_result *results, int count,
               const char *title)
{
    int kinds = 1;
    while (kinds < count && results[kinds].problem == results[0].problem) {
        kinds++;
    }
    plot_start(gnuplot, path, 300 + 55 * (count / kinds), 800);
    send_data(gnuplot, results, count, kinds);
    fprintf(gnuplot, "set multiplot layout 2,1 title \"%s\\n", title);
    print_words(gnuplot, results[0].problem, varied_in(results, count), false);
    fputs("\"\nset style data histograms\nset style histogram clustered gap 1\nset style fill "
          "solid 0.9 noborder\n"
          "set grid ytics lt 1 lw 0.7 lc rgb '#c4c4c4'\nset border 3\nset tics nomirror\nset xtics "
          "rotate by -40\n"
          "set key top left Left reverse horizontal\nset yrange [0:]\nset offsets 0, 0, graph "
          "0.15, 0\n"
          "set rmargin 16\nset ylabel '% of the ceiling measured in the same run'\n",
          gnuplot);
    send_bars(gnuplot, results, count, kinds, false);
    fputs("set ylabel 'libattn is .. times as fast'\n", gnuplot);
    send_bars(gnuplot, results, count, kinds, true);
    fputs("unset multiplot\nunset output\n", gnuplot);
}
