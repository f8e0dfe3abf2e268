/*
 * plot.c: see plot.h. The page is one of bars with peers or on a GPU, else one of curves.
 */
#include "plot.h"
#include "array_file.h"
#include "plot_bars.h"
#include "plot_curves.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    const char *ending = strrchr(path, '.');
    if (ending == NULL || (strcmp(ending, ".svg") != 0 && strcmp(ending, ".png") != 0)) {
        snprintf(error, size, "--plot: \"%s\" ends neither in .svg nor in .png", path);
        return false;
    }
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
    bool measured = false;
    for (int i = 0; i < count; i++) {
        measured |= results[i].measured;
    }
    if (!measured) {
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
        plot_curves(gnuplot, path, results, count, title);
    }
    bool ok = pclose(gnuplot) == 0;
    if (!ok) {
        snprintf(error, size, "--plot: gnuplot could not draw \"%s\"", path);
    }
    return ok;
}
