/*
 * plan_plot.c: see plan_plot.h.
 */
#include "plan_plot.h"
#include "plot_page.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double far_bytes(const traffic_bytes *bytes)
{
    return bytes->read + bytes->written;
}

static void send_data(FILE *gnuplot, const plan_io_story *story)
{
    const plan_io *io = &story->io;
    fputs("$traffic << EOD\n", gnuplot);
    for (int i = 0; i < PLAN_POINTS; i++) {
        const plan_point *point = &io->points[i];
        fprintf(gnuplot, "%g %g %g %g\n", point->near / 1024, far_bytes(&point->tiled) / 1048576,
                far_bytes(&point->best_bytes) / 1048576, far_bytes(&point->standard) / 1048576);
    }
    fputs("EOD\n$memory << EOD\n", gnuplot);
    for (int i = 0; i < PLAN_LENGTHS; i++) {
        const plan_length *length = &io->lengths[i];
        fprintf(gnuplot, "%lld %g %g %g %g\n", (long long)length->n, length->tiled / 1048576,
                length->standard / 1048576, length->kept_tiled / 1048576,
                length->kept_standard / 1048576);
    }
    fputs("EOD\n", gnuplot);
}

/* A column of a block of data as a curve. */
static void send_curve(FILE *gnuplot, const char *data, int column, int colour, const char *name)
{
    fprintf(gnuplot,
            "%s%s using 1:%d with linespoints lw 2 pt 7 ps 0.6 dt %d lc rgb '%s' title '%s'",
            column == 2 ? "plot " : ", ", data, column, strstr(name, "kept") == name ? 2 : 1,
            plot_colour[colour], name);
}

static void send_traffic(FILE *gnuplot)
{
    fputs("set title 'traffic against M'\nset xlabel 'M'\nset ylabel 'MiB'\n"
          "set logscale x 2\nset key right top\n"
          "set xtics ('16 KiB' 16, '256 KiB' 256, '4 MiB' 4096, '64 MiB' 65536)\n",
          gnuplot);
    send_curve(gnuplot, "$traffic", 2, 0, "these tiles");
    send_curve(gnuplot, "$traffic", 3, 2, "best tiles for M");
    send_curve(gnuplot, "$traffic", 4, 1, "standard");
    fputc('\n', gnuplot);
}

static void send_roof(FILE *gnuplot, const plan_io_story *story)
{
    const traffic_roof tiled = plan_io_roof(story, &story->last_tiled),
                       standard = plan_io_roof(story, &story->last_standard);
    const double left = fmin(fmin(tiled.intensity, standard.intensity), tiled.ridge) / 4,
                 right = fmax(fmax(tiled.intensity, standard.intensity), tiled.ridge) * 4;
    fprintf(gnuplot,
            "set title 'roofline'\nset xlabel 'FLOP per byte'\nset ylabel 'GFLOP/s'\n"
            "set logscale x 10\nset xtics auto\nset key left bottom Left reverse\n"
            "set xrange [%g:%g]\nset yrange [*:%g]\n"
            "$tiled << EOD\n%g %g\nEOD\n$standard << EOD\n%g %g\nEOD\n"
            "roof(x) = x * %g < %g ? x * %g : %g\n"
            "plot roof(x) with lines lw 2 lc rgb '%s' title '%s', $tiled using 1:2 with points "
            "pt 7 ps 1.4 lc rgb '%s' title 'tiled', $standard using 1:2 with points pt 5 ps 1.4 "
            "lc rgb '%s' title 'standard'\nset xrange [*:*]\nset yrange [*:*]\n",
            left, right, 2 * story->peak, tiled.intensity, tiled.rate * 1e-9, standard.intensity,
            standard.rate * 1e-9, story->read, story->peak, story->read, story->peak,
            plot_colour[7], story->source, plot_colour[0], plot_colour[1]);
}

static void send_memory(FILE *gnuplot)
{
    fputs("set title 'memory against N'\nset xlabel 'N'\nset ylabel 'MiB'\n"
          "set logscale x 2\nset key left top Left reverse\n"
          "set xtics ('1k' 1024, '4k' 4096, '16k' 16384, '64k' 65536, '128k' 131072)\n",
          gnuplot);
    send_curve(gnuplot, "$memory", 2, 0, "tiled");
    send_curve(gnuplot, "$memory", 3, 1, "standard");
    send_curve(gnuplot, "$memory", 4, 2, "kept for backward, P recomputed");
    send_curve(gnuplot, "$memory", 5, 3, "kept for backward, P stored");
    fputc('\n', gnuplot);
}

bool plan_plot(const plan_io_story *story, const char *title, const char *path, char *error,
               size_t size)
{
    const bool roof = story->source != NULL && story->peak > 0 && story->read > 0;
    FILE *gnuplot = popen("gnuplot 2> /dev/null", "w");
    if (gnuplot == NULL) {
        snprintf(error, size, "--plot: cannot start gnuplot: %s", strerror(errno));
        return false;
    }
    plot_start(gnuplot, path, "IO analysis of attention", 1400, 480);
    send_data(gnuplot, story);
    fprintf(gnuplot,
            "set multiplot layout 1,%d title '%s'\nset logscale y 10\nset grid\n"
            "set format y '%%g'\n",
            roof ? 3 : 2, title);
    send_traffic(gnuplot);
    if (roof) {
        send_roof(gnuplot, story);
    }
    send_memory(gnuplot);
    fputs("unset multiplot\n", gnuplot);
    const bool ok = pclose(gnuplot) == 0;
    if (!ok) {
        snprintf(error, size, "--plot: gnuplot could not draw \"%s\"", path);
    }
    return ok;
}
