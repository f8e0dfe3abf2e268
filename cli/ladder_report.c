/*
 * ladder_report.c: see ladder_report.h.
 */
#include "ladder_report.h"
#include "cli.h"
#include "plot.h"
#include "plot_page.h"
#include "style.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double moved(const ladder_result *result)
{
    return result->moved.read + result->moved.written;
}

/* ---- words ----------------------------------------------------------------------------------- */

void ladder_tell_text(const problem_spec *problem, const ladder_result results[LADDER_STEPS])
{
    char line[4096];
    const double library = results[LADDER_STEPS - 1].seconds;
    problem_print(problem, line, sizeof line);
    printf("%s%s%s\n\n%-10s %-36s %10s %11s %9s %8s %9s\n", cli_colour(CLI_LABEL), line,
           cli_colour(CLI_PLAIN), "step", "", "memory", "bytes moved", "time", "/libattn", "error");
    for (int i = 0; i < LADDER_STEPS; i++) {
        const ladder_result *result = &results[i];
        cli_text memory, bytes, time;
        cli_bytes(memory, result->extra);
        if (!result->done) {
            printf("%-10s %-36s %10s  does not fit\n", ladder_step[i], ladder_says[i], memory);
            continue;
        }
        cli_bytes(bytes, moved(result));
        cli_seconds(time, result->seconds);
        printf("%-10s %-36s %10s %11s %9s %8.1f %9.1e%s\n", ladder_step[i], ladder_says[i], memory,
               bytes, time, result->seconds / library, result->errors.relative,
               isfinite(result->errors.relative) ? "" : "  (not finite)");
    }
    puts("\nmemory: besides Q, K, V, O. bytes moved: counted by each step as if only the row or "
         "the tile at hand\nwere near; libattn's by its plan. error: largest |O - O64| / sum p "
         "|v|; a rounding is 6e-8.\n");
}

void ladder_flaws_text(const ladder_flaw flaws[LADDER_FLAWS])
{
    printf("%sPublished forms with a flaw, on inputs that break them%s\n\n", cli_colour(CLI_LABEL),
           cli_colour(CLI_PLAIN));
    for (int i = 0; i < LADDER_FLAWS; i++) {
        const ladder_flaw *flaw = &flaws[i];
        printf("%-32s %s\n%-32s ", flaw->form, flaw->input, "");
        if (flaw->wrong_rows > 0) {
            printf("%s%lld of %lld rows are NaN or infinite%s", cli_colour(CLI_BAD),
                   (long long)flaw->wrong_rows, (long long)flaw->rows, cli_colour(CLI_PLAIN));
        } else {
            printf("%serror %.1e%s", cli_colour(CLI_BAD), flaw->error, cli_colour(CLI_PLAIN));
        }
        printf("; tiles: error %.1e\n", flaw->right);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* JSON has no NaN and no infinity: null. */
static void add_number(cJSON *object, const char *name, double value)
{
    isfinite(value) ? cJSON_AddNumberToObject(object, name, value)
                    : cJSON_AddNullToObject(object, name);
}

void ladder_tell_json(const problem_spec *problem, const ladder_result results[LADDER_STEPS])
{
    char line[4096];
    cJSON *object = cJSON_CreateObject();
    problem_print(problem, line, sizeof line);
    cJSON_AddStringToObject(object, "problem", line);
    cJSON *steps = cJSON_AddArrayToObject(object, "steps");
    for (int i = 0; i < LADDER_STEPS; i++) {
        cJSON *step = cJSON_CreateObject();
        cJSON_AddStringToObject(step, "step", ladder_step[i]);
        cJSON_AddBoolToObject(step, "done", results[i].done);
        add_number(step, "extra_bytes", results[i].extra);
        if (results[i].done) {
            add_number(step, "bytes_moved", moved(&results[i]));
            add_number(step, "seconds", results[i].seconds);
            add_number(step, "error", results[i].errors.relative);
        }
        cJSON_AddItemToArray(steps, step);
    }
    cli_print_json(object);
}

void ladder_flaws_json(const ladder_flaw flaws[LADDER_FLAWS])
{
    cJSON *object = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(object, "flaws");
    for (int i = 0; i < LADDER_FLAWS; i++) {
        cJSON *flaw = cJSON_CreateObject();
        cJSON_AddStringToObject(flaw, "form", flaws[i].form);
        cJSON_AddStringToObject(flaw, "input", flaws[i].input);
        add_number(flaw, "rows", (double)flaws[i].rows);
        add_number(flaw, "wrong_rows", (double)flaws[i].wrong_rows);
        add_number(flaw, "error", flaws[i].error);
        add_number(flaw, "error_of_tiles", flaws[i].right);
        cJSON_AddItemToArray(list, flaw);
    }
    cli_print_json(object);
}

/* ---- the picture ----------------------------------------------------------------------------- */

bool ladder_plot_possible(const char *path, char *error, size_t size)
{
    return bench_plot_possible(path, error, size);
}

static void send_panel(FILE *gnuplot, const char *title, int column)
{
    fprintf(gnuplot, "set title '%s'\nplot $data using %d:xtic(1) lc rgb '%s' notitle\n", title,
            column, plot_colour[column - 2]);
}

bool ladder_plot(const problem_spec *problem, const ladder_result results[LADDER_STEPS],
                 const char *path, char *error, size_t size)
{
    char line[4096];
    FILE *gnuplot = popen("gnuplot 2> /dev/null", "w");
    if (gnuplot == NULL) {
        snprintf(error, size, "--plot: cannot start gnuplot: %s", strerror(errno));
        return false;
    }
    problem_print(problem, line, sizeof line);
    plot_start(gnuplot, path, "Attention in steps", 860, 720);
    fputs("set datafile missing 'nan'\n$data << EOD\n", gnuplot);
    for (int i = 0; i < LADDER_STEPS; i++) {
        fprintf(gnuplot, "\"%s\" %g %g\n", ladder_step[i],
                results[i].done ? results[i].seconds * 1e3 : (double)NAN,
                results[i].done ? moved(&results[i]) / 1048576 : (double)NAN);
    }
    fprintf(gnuplot,
            "EOD\nset multiplot layout 2,1 title 'Attention in steps: %s'\nset style data "
            "histograms\nset style fill solid\nset boxwidth 0.7\nset logscale y\nset grid y\n"
            "set yrange [*:*]\n",
            line);
    send_panel(gnuplot, "milliseconds", 2);
    send_panel(gnuplot, "MiB moved", 3);
    fputs("unset multiplot\n", gnuplot);
    const bool ok = pclose(gnuplot) == 0;
    if (!ok) {
        snprintf(error, size, "--plot: gnuplot could not draw \"%s\"", path);
    }
    return ok;
}
