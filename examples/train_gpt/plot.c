/*
 * plot.c: see plot.h.
 */
#include "plot.h"

#include <math.h>
#include <stdlib.h>

static void send_data(FILE *gnuplot, const gpt_trainer *trainer)
{
    fputs("$train << EOD\n", gnuplot);
    for (int64_t i = 0; i < trainer->step; i++) {
        fprintf(gnuplot, "%lld %.6g\n", (long long)i, trainer->losses[i]);
    }
    fputs("EOD\n$valid << EOD\n", gnuplot);
    for (int64_t i = 0; i <= trainer->step; i++) {
        if (!isnan(trainer->valid[i])) {
            fprintf(gnuplot, "%lld %.6g\n", (long long)i, trainer->valid[i]);
        }
    }
    fputs("EOD\n", gnuplot);
}

static void send_name(FILE *gnuplot, const char *path)
{
    fputs("set output '", gnuplot);
    /* a string in which gnuplot takes quotes alone for special */
    for (const char *c = path; *c != '\0'; c++) {
        fputs(*c == '\'' ? "''" : (const char[]){*c, '\0'}, gnuplot);
    }
    fputs("'\n", gnuplot);
}

const char *plot_losses(const gpt_trainer *trainer, const char *path)
{
    if (system("command -v gnuplot > /dev/null 2>&1") != 0) {
        return "gnuplot is not installed (Debian: gnuplot-nox)";
    }
    FILE *gnuplot = popen("gnuplot 2> /dev/null", "w");
    if (gnuplot == NULL) {
        return "cannot start gnuplot";
    }
    fputs("set terminal pngcairo noenhanced size 1400,800 font 'Sans,15' background rgb 'white'\n",
          gnuplot);
    send_name(gnuplot, path);
    send_data(gnuplot, trainer);
    fprintf(gnuplot,
            "set border 3\nset tics nomirror\nset grid ytics lt 1 lw 0.7 lc rgb '#c4c4c4'\nset "
            "yrange [0:*]\n"
            "set xlabel 'step'\nset ylabel 'loss, nats a byte'\n"
            "set title \"%lld parameters, context %lld, %s attention\"\n"
            "plot $train with lines lw 1 lc rgb '#8fb8cc' title 'training, each batch', "
            "$valid with linespoints lw 2.5 pt 7 ps 0.9 lc rgb '#0b6e99' title 'validation', "
            "%.6f with lines lw 2 dt 2 lc rgb '#c2410c' title 'entropy of bytes by "
            "themselves'\nunset output\n",
            (long long)trainer->model->count, (long long)trainer->config.context,
            attention_kind_name[trainer->config.attention], trainer->text->entropy);
    return pclose(gnuplot) == 0 ? NULL : "gnuplot could not draw it";
}
