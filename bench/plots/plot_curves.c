/*
 * plot_curves.c: see plot_curves.h. Both axes are logarithmic.
 */
#include "plot_curves.h"
#include "plot_page.h"

#include <string.h>

enum { MAX_CURVES = PLOT_COLOURS };

/* Curve = implementation + the problem without its length. */
struct curve {
    char title[512];
    const char *implementation;
    char rest[384];
};

static void name_curve(const bench_result *result, struct curve *c)
{
    static const char kept_from[] = " d=";
    char line[BENCH_MAX_LINE];
    problem_spec problem = *result->problem;
    problem.nq = problem.nk = 0;
    problem_print(&problem, line, sizeof line);
    char *length = strstr(line, "nq=0");
    if (length != NULL) { /* "b=1 hq=8 nq=0 d=64 ..": cut the length out */
        char *after = strstr(length, kept_from);
        memmove(length, after == NULL ? length + 4 : after + 1,
                strlen(after == NULL ? length + 4 : after + 1) + 1);
    }
    snprintf(c->rest, sizeof c->rest, "%.380s", line);
    c->implementation = result->implementation;
    snprintf(c->title, sizeof c->title, "%s", result->implementation);
}

static bool is_on(const bench_result *result, const struct curve *c)
{
    struct curve own;
    if (!result->measured) {
        return false;
    }
    name_curve(result, &own);
    return strcmp(own.implementation, c->implementation) == 0 && strcmp(own.rest, c->rest) == 0;
}

static int find_curves(const bench_result *results, int count, struct curve *curves)
{
    int found = 0;
    for (int i = 0; i < count && found < MAX_CURVES; i++) {
        bool known = !results[i].measured;
        for (int n = 0; n < found && !known; n++) {
            known = is_on(&results[i], &curves[n]);
        }
        if (!known) {
            name_curve(&results[i], &curves[found++]);
        }
    }
    bool several = false; /* several problems: their words belong into the legend */
    for (int n = 1; n < found; n++) {
        several |= strcmp(curves[n].rest, curves[0].rest) != 0;
    }
    for (int n = 0; n < found && several; n++) {
        snprintf(curves[n].title, sizeof curves[n].title, "%s, %s", curves[n].implementation,
                 curves[n].rest);
    }
    return found;
}

static void send_data(FILE *gnuplot, const bench_result *results, int count,
                      const struct curve *curves, int found)
{
    for (int n = 0; n < found; n++) {
        fprintf(gnuplot, "$curve%d << EOD\n", n);
        for (int i = 0; i < count; i++) {
            const bench_result *result = &results[i];
            if (is_on(result, &curves[n])) {
                fprintf(gnuplot, "%lld %.9g %.9g %.9g\n", (long long)result->problem->nk,
                        result->seconds.median, result->report.peak_rss_bytes,
                        result->report.workspace_bytes);
            }
        }
        fputs("EOD\n", gnuplot);
    }
}

static void send_curves(FILE *gnuplot, const struct curve *curves, int found, bool memory)
{
    fputs("plot ", gnuplot);
    for (int n = 0; n < found; n++) {
        fprintf(
            gnuplot,
            "%s$curve%d using 1:%s with linespoints lw 2.5 pt 7 ps 0.7 lc rgb '%s' title \"%s%s\"",
            n == 0 ? "" : ", ", n, memory ? "($3/2**20)" : "2", plot_colour[n], curves[n].title,
            memory ? ": whole process" : "");
        if (memory) {
            fprintf(gnuplot,
                    ", $curve%d using 1:($4/2**20) with lines lw 2 dt 2 lc rgb '%s' title \"%s: "
                    "workspace\"",
                    n, plot_colour[n], curves[n].title);
        }
    }
    fputc('\n', gnuplot);
}

static void send_page(FILE *gnuplot, const char *path, const struct curve *curves, int found,
                      const char *title)
{
    plot_start(gnuplot, path, title, 1080, 520);
    fprintf(gnuplot,
            "set multiplot layout 1,2 title \"%s\\n%s\"\n"
            "set logscale x 2\nset logscale y 10\nset grid ytics xtics lt 1 lw 0.7 lc rgb "
            "'#c4c4c4'\nset border 3\n"
            "set tics nomirror\nset key left top Left reverse\nset xlabel 'sequence length N'\nset "
            "format y '%%g'\n"
            "set offsets graph 0.03, graph 0.03, 0, 0\n"
            "set title 'time of one call'\nset ylabel 'seconds'\n",
            title, curves[0].rest);
    send_curves(gnuplot, curves, found, false);
    fputs("set title 'memory'\nset ylabel 'MiB'\n", gnuplot);
    send_curves(gnuplot, curves, found, true);
    fputs("unset multiplot\nunset output\n", gnuplot);
}

void plot_curves(FILE *gnuplot, const char *path, const bench_result *results, int count,
                 const char *title)
{
    struct curve curves[MAX_CURVES];
    int found = find_curves(results, count, curves);
    send_data(gnuplot, results, count, curves, found);
    send_page(gnuplot, path, curves, found, title);
}
