/*
 * plot.c: `attn bench --plot`: time and memory against the sequence length, both axes logarithmic,
 * drawn by gnuplot. Problems that differ in length alone are one curve per implementation. With
 * peers: plot_bars.c.
 */
#include "array_file.h"
#include "plot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CURVES = PLOT_COLOURS };

const char *const plot_colour[PLOT_COLOURS] = {"#0b6e99", "#c2410c", "#4d7c0f", "#7e22ce",
                                               "#0f766e", "#be123c", "#a16207", "#475569"};

/* Curve = implementation + the problem without its length. */
struct curve {
    char title[512];
    const char *implementation;
    char rest[384];
};

static void name_curve(const bench_result *r, struct curve *c)
{
    static const char kept_from[] = " d=";
    char line[BENCH_MAX_LINE];
    problem p = *r->problem;
    p.nq = p.nk = 0;
    problem_print(&p, line, sizeof line);
    char *length = strstr(line, "nq=0");
    if (length != NULL) { /* "b=1 hq=8 nq=0 d=64 ..": cut the length out */
        char *after = strstr(length, kept_from);
        memmove(length, after == NULL ? length + 4 : after + 1,
                strlen(after == NULL ? length + 4 : after + 1) + 1);
    }
    snprintf(c->rest, sizeof c->rest, "%.380s", line);
    c->implementation = r->implementation;
    snprintf(c->title, sizeof c->title, "%s", r->implementation);
}

static bool is_on(const bench_result *r, const struct curve *c)
{
    struct curve own;
    if (!r->measured) {
        return false;
    }
    name_curve(r, &own);
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
            const bench_result *r = &results[i];
            if (is_on(r, &curves[n])) {
                fprintf(gnuplot, "%lld %.9g %.9g %.9g\n", (long long)r->problem->nk,
                        r->seconds.median, r->report.peak_rss_bytes, r->report.workspace_bytes);
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

/* An SVG's <title>, which takes letters, digits and underscores only. */
static void send_name(FILE *gnuplot, const char *title)
{
    fputs(" name '", gnuplot);
    for (const char *c = title; *c != '\0'; c++) {
        fputc((*c | 32) >= 'a' && (*c | 32) <= 'z' ? *c
              : *c >= '0' && *c <= '9'             ? *c
                                                   : '_',
              gnuplot);
    }
    fputs("'", gnuplot);
}

void plot_start(FILE *gnuplot, const char *path, const char *title, int width, int height)
{
    bool svg = strcmp(path + strlen(path) - 4, ".svg") == 0;
    fprintf(gnuplot, "set terminal %s noenhanced size %d,%d font '%s' background rgb 'white'",
            svg ? "svg" : "pngcairo", svg ? width : width * 3 / 2, svg ? height : height * 3 / 2,
            svg ? "Helvetica,15" : "Sans,15");
    if (svg) {
        send_name(gnuplot, title);
    }
    fputs("\nset output '", gnuplot);
    /* a string in which gnuplot takes nothing but quotes for special */
    for (const char *c = path; *c != '\0'; c++) {
        fputs(*c == '\'' ? "''" : (const char[]){*c, '\0'}, gnuplot);
    }
    fputs("'\n", gnuplot);
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

/* True with an implementation beside libattn and standard attention. */
static bool with_peers(const bench_result *results, int count)
{
    bool peers = false;
    for (int i = 0; i < count; i++) {
        peers |= results[i].measured && strcmp(results[i].implementation, "libattn") != 0 &&
                 strcmp(results[i].implementation, "standard") != 0;
    }
    return peers;
}

bool bench_plot_possible(const char *path, char *error, size_t size)
{
    if (!array_file_can_write(path)) {
        snprintf(error, size, "--plot: cannot write \"%s\": no such directory, or not allowed",
                 path);
        return false;
    }
    if (system("command -v gnuplot > /dev/null 2>&1") != 0) {
        snprintf(error, size, "--plot: gnuplot is not installed (Debian: gnuplot-nox)");
        return false;
    }
    return true;
}

/* The record without the compiler, and without characters that mean something in gnuplot's quotes,
 * because it may come from a file. */
static void make_title(char *title, size_t size, const char *machine)
{
    size_t used = (size_t)snprintf(title, size, "Exact attention on ");
    for (const char *c = machine; *c != '\0' && *c != ';' && used + 1 < size; c++) {
        title[used++] = strchr("\"\\`", *c) != NULL ? ' ' : *c;
    }
    title[used] = '\0';
}

bool bench_plot(const bench_result *results, int count, const bench_record *record,
                const char *path, char *error, size_t size)
{
    char title[256];
    make_title(title, sizeof title, record->machine);
    struct curve curves[MAX_CURVES];
    int found = find_curves(results, count, curves);
    if (found == 0) {
        snprintf(error, size, "--plot: nothing was measured");
        return false;
    }
    FILE *gnuplot = popen("gnuplot 2> /dev/null", "w");
    if (gnuplot == NULL) {
        snprintf(error, size, "--plot: cannot start gnuplot: %s", strerror(errno));
        return false;
    }
    if (with_peers(results, count) || results[0].device == ATTN_DEVICE_CUDA) {
        plot_bars(gnuplot, path, results, count, title);
    } else {
        send_data(gnuplot, results, count, curves, found);
        send_page(gnuplot, path, curves, found, title);
    }
    bool ok = pclose(gnuplot) == 0;
    if (!ok) {
        snprintf(error, size, "--plot: gnuplot could not draw \"%s\"", path);
    }
    return ok;
}
