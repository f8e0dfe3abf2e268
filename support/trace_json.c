/*
 * trace_json.c: the steps of a trace as JSON objects, one a line, for programs and for the page.
 * Written without a JSON library: the page has none.
 */
#include "trace_run.h"

#include <math.h>
#include <stdlib.h>

static void open_step(FILE *to, const char *step)
{
    fprintf(to, "{\"step\":\"%s\"", step);
}

static void close_step(FILE *to)
{
    fputs("}\n", to);
}

/* The fewest digits that read back to the same number. JSON has no infinity: null is a score that
 * is masked. */
static void write_number(FILE *to, double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.15g", x);
    if (strtod(text, NULL) != x) {
        snprintf(text, sizeof text, "%.17g", x);
    }
    fputs(isfinite(x) ? text : "null", to);
}

static void write_grid(FILE *to, const char *name, int64_t rows, int64_t columns, const double *x)
{
    fprintf(to, ",\"%s\":[", name);
    for (int64_t at = 0; at < rows * columns; at++) {
        fputs(at % columns > 0 ? "," : at > 0 ? "],[" : "[", to);
        write_number(to, x[at]);
    }
    fputs("]]", to);
}

/* `text` has no quotes and no backslashes. */
static void write_text(FILE *to, const char *name, const char *text)
{
    fprintf(to, ",\"%s\":\"%s\"", name, text);
}

static void open_place(FILE *to, const char *step, const trace_place *place)
{
    static const char *const kind_name[] = {"SKIP", "FULL", "PARTIAL"};
    open_step(to, step);
    fprintf(to, ",\"row\":%lld,\"rows\":%lld,\"key\":%lld,\"keys\":%lld", (long long)place->row,
            (long long)place->rows, (long long)place->key, (long long)place->keys);
    write_text(to, "kind", kind_name[place->kind]);
}

static void tell_tile(void *user, const trace_tile *tile)
{
    const trace_report *report = user;
    const int64_t rows = tile->place.rows, dv = report->head->dv;
    open_place(report->to, "tile", &tile->place);
    if (tile->place.kind != TRACE_SKIP) {
        write_grid(report->to, "scores", rows, tile->place.keys, tile->scores);
        write_grid(report->to, "tile_maximum", 1, rows, tile->tile_maximum);
        write_grid(report->to, "maximum", 1, rows, tile->maximum);
        write_grid(report->to, "alpha", 1, rows, tile->alpha);
        write_grid(report->to, "sum", 1, rows, tile->sum);
        write_grid(report->to, "o_before", rows, dv, tile->before);
        write_grid(report->to, "o_after", rows, dv, tile->after);
    }
    close_step(report->to);
}

static void tell_grad_tile(void *user, const trace_grad_tile *tile)
{
    const trace_report *report = user;
    const trace_place *place = &tile->place;
    const int64_t rows = place->rows, keys = place->keys, d = report->head->d,
                  dv = report->head->dv;
    open_place(report->to, "grad_tile", place);
    if (place->kind != TRACE_SKIP) {
        write_grid(report->to, "p", rows, keys, tile->p);
        write_grid(report->to, "dp", rows, keys, tile->dp);
        write_grid(report->to, "delta", rows, 1, tile->delta);
        write_grid(report->to, "ds", rows, keys, tile->ds);
        write_grid(report->to, "dq", rows, d, tile->dq);
        write_grid(report->to, "dk", keys, d, tile->dk);
        write_grid(report->to, "dv", keys, dv, tile->dv);
    }
    close_step(report->to);
}

static void tell_heading(const trace_report *report, const char *text)
{
    open_step(report->to, "heading");
    write_text(report->to, "text", text);
    close_step(report->to);
}

static void tell_sums(const trace_report *report, const trace_sums *sums)
{
    open_step(report->to, "sums");
    write_grid(report->to, "o", report->head->nq, report->head->dv, sums->o);
    write_grid(report->to, "lse", 1, report->head->nq, sums->lse);
    close_step(report->to);
}

static void tell_weights(const trace_report *report, const double *weight, int parts)
{
    open_step(report->to, "weights");
    write_grid(report->to, "weight", parts, report->head->nq, weight);
    close_step(report->to);
}

static void tell_grads(const trace_report *report, const trace_grads *grads)
{
    const trace_head *head = report->head;
    open_step(report->to, "gradients");
    write_grid(report->to, "dq", head->nq, head->d, grads->dq);
    write_grid(report->to, "dk", head->nk, head->d, grads->dk);
    write_grid(report->to, "dv", head->nk, head->dv, grads->dv);
    close_step(report->to);
}

static void tell_distance(const trace_report *report, const char *what, double distance)
{
    open_step(report->to, "distance");
    write_text(report->to, "from", what);
    fputs(",\"largest\":", report->to);
    write_number(report->to, distance);
    close_step(report->to);
}

const trace_teller trace_json = {
    .heading = tell_heading,
    .tile = tell_tile,
    .grad_tile = tell_grad_tile,
    .sums = tell_sums,
    .weights = tell_weights,
    .grads = tell_grads,
    .distance = tell_distance,
};
