/*
 * trace_report.c: see trace_report.h.
 */
#include "trace_report.h"
#include "cli.h"
#include "style.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

static const char *const kind_name[] = {"SKIP", "FULL", "PARTIAL"};

/* ---- grids of numbers ------------------------------------------------------------------------ */

static void print_number(double x)
{
    x == -INFINITY ? printf("%s%9s%s", cli_colour(CLI_BAD), "-inf", cli_colour(CLI_PLAIN))
                   : printf("%9.4f", x == 0 ? 0 : x);
}

static void print_grid(const char *name, const char *rows_name, int64_t first, int64_t rows,
                       int64_t columns, const double *x)
{
    printf("  %s%s%s\n", cli_colour(CLI_LABEL), name, cli_colour(CLI_PLAIN));
    for (int64_t r = 0; r < rows; r++) {
        printf("  %s %3lld ", rows_name, (long long)(first + r));
        for (int64_t c = 0; c < columns; c++) {
            print_number(x[r * columns + c]);
        }
        putchar('\n');
    }
}

static cJSON *grid(int64_t rows, int64_t columns, const double *x)
{
    cJSON *list = cJSON_CreateArray();
    for (int64_t r = 0; r < rows; r++) {
        cJSON *row = cJSON_CreateArray();
        for (int64_t c = 0; c < columns; c++) {
            const double value = x[r * columns + c];
            /* JSON has no infinity: null is a score that is masked */
            cJSON_AddItemToArray(row,
                                 isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull());
        }
        cJSON_AddItemToArray(list, row);
    }
    return list;
}

static void add_grid(cJSON *object, const char *name, int64_t rows, int64_t columns,
                     const double *x)
{
    cJSON_AddItemToObject(object, name, grid(rows, columns, x));
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static cJSON *place_json(const char *step, const trace_place *place)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "step", step);
    cJSON_AddNumberToObject(object, "row", (double)place->row);
    cJSON_AddNumberToObject(object, "rows", (double)place->rows);
    cJSON_AddNumberToObject(object, "key", (double)place->key);
    cJSON_AddNumberToObject(object, "keys", (double)place->keys);
    cJSON_AddStringToObject(object, "kind", kind_name[place->kind]);
    return object;
}

static void print_place(const trace_place *place)
{
    printf("%srows %lld..%lld, keys %lld..%lld: %s%s\n",
           cli_colour(place->kind == TRACE_SKIP ? CLI_PLAIN : CLI_GOOD), (long long)place->row,
           (long long)(place->row + place->rows - 1), (long long)place->key,
           (long long)(place->key + place->keys - 1), kind_name[place->kind],
           cli_colour(CLI_PLAIN));
}

static void tile_json(const trace_report *report, const trace_tile *tile)
{
    const int64_t rows = tile->place.rows, dv = report->head->dv;
    cJSON *object = place_json("tile", &tile->place);
    if (tile->place.kind != TRACE_SKIP) {
        add_grid(object, "scores", rows, tile->place.keys, tile->scores);
        add_grid(object, "tile_maximum", 1, rows, tile->tile_maximum);
        add_grid(object, "maximum", 1, rows, tile->maximum);
        add_grid(object, "alpha", 1, rows, tile->alpha);
        add_grid(object, "sum", 1, rows, tile->sum);
        add_grid(object, "o_before", rows, dv, tile->before);
        add_grid(object, "o_after", rows, dv, tile->after);
    }
    cli_print_json(object);
}

/* Scores, and beside them the state of each row. */
static void print_scores(const trace_tile *tile)
{
    const int64_t keys = tile->place.keys;
    printf("  %sscores%*s%10s%9s%9s%9s%s\n", cli_colour(CLI_LABEL), (int)(9 * keys + 2), "",
           "tile max", "m", "alpha", "l", cli_colour(CLI_PLAIN));
    for (int64_t r = 0; r < tile->place.rows; r++) {
        printf("  row %3lld ", (long long)(tile->place.row + r));
        for (int64_t j = 0; j < keys; j++) {
            print_number(tile->scores[r * keys + j]);
        }
        putchar(' ');
        print_number(tile->tile_maximum[r]);
        print_number(tile->maximum[r]);
        print_number(tile->alpha[r]);
        print_number(tile->sum[r]);
        putchar('\n');
    }
}

void trace_tell_tile(void *user, const trace_tile *tile)
{
    const trace_report *report = user;
    if (report->json) {
        tile_json(report, tile);
        return;
    }
    print_place(&tile->place);
    if (tile->place.kind != TRACE_SKIP) {
        print_scores(tile);
        print_grid("O before", "row", tile->place.row, tile->place.rows, report->head->dv,
                   tile->before);
        print_grid("O = O alpha + P V, fresh", "row", tile->place.row, tile->place.rows,
                   report->head->dv, tile->after);
    }
    putchar('\n');
}

void trace_tell_grad_tile(void *user, const trace_grad_tile *tile)
{
    const trace_report *report = user;
    const trace_place *place = &tile->place;
    const struct {
        const char *name, *key, *axis;
        int64_t first, rows, columns;
        const double *x;
    } grids[] = {
        {"P = exp(S - LSE)", "p", "row", place->row, place->rows, place->keys, tile->p},
        {"dP = dO V^T", "dp", "row", place->row, place->rows, place->keys, tile->dp},
        {"delta = dO . O", "delta", "row", place->row, place->rows, 1, tile->delta},
        {"dS = P (dP - delta)", "ds", "row", place->row, place->rows, place->keys, tile->ds},
        {"dQ so far", "dq", "row", place->row, place->rows, report->head->d, tile->dq},
        {"dK so far", "dk", "key", place->key, place->keys, report->head->d, tile->dk},
        {"dV so far", "dv", "key", place->key, place->keys, report->head->dv, tile->dv},
    };
    cJSON *object = report->json ? place_json("grad_tile", place) : NULL;
    if (!report->json) {
        print_place(place);
    }
    for (size_t i = 0; i < sizeof grids / sizeof grids[0] && place->kind != TRACE_SKIP; i++) {
        report->json ? add_grid(object, grids[i].key, grids[i].rows, grids[i].columns, grids[i].x)
                     : print_grid(grids[i].name, grids[i].axis, grids[i].first, grids[i].rows,
                                  grids[i].columns, grids[i].x);
    }
    report->json ? cli_print_json(object) : (void)putchar('\n');
}

/* ---- between tiles --------------------------------------------------------------------------- */

void trace_tell_heading(const trace_report *report, const char *format, ...)
{
    char text[4200];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (report->json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "step", "heading");
        cJSON_AddStringToObject(object, "text", text);
        cli_print_json(object);
    } else {
        printf("%s%s%s\n\n", cli_colour(CLI_LABEL), text, cli_colour(CLI_PLAIN));
    }
}

void trace_tell_sums(const trace_report *report, const trace_sums *sums)
{
    const trace_head *head = report->head;
    if (report->json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "step", "sums");
        add_grid(object, "o", head->nq, head->dv, sums->o);
        add_grid(object, "lse", 1, head->nq, sums->lse);
        cli_print_json(object);
        return;
    }
    print_grid("O = O / l", "row", 0, head->nq, head->dv, sums->o);
    print_grid("LSE = m + log l", "row", 0, head->nq, 1, sums->lse);
    putchar('\n');
}

void trace_tell_weights(const trace_report *report, const double *weight, int parts)
{
    if (report->json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "step", "weights");
        add_grid(object, "weight", parts, report->head->nq, weight);
        cli_print_json(object);
        return;
    }
    print_grid("weights = exp(LSE of the part - LSE), a column for each row", "part", 0, parts,
               report->head->nq, weight);
    putchar('\n');
}

void trace_tell_grads(const trace_report *report, const trace_grads *grads)
{
    const trace_head *head = report->head;
    if (report->json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "step", "gradients");
        add_grid(object, "dq", head->nq, head->d, grads->dq);
        add_grid(object, "dk", head->nk, head->d, grads->dk);
        add_grid(object, "dv", head->nk, head->dv, grads->dv);
        cli_print_json(object);
        return;
    }
    print_grid("dQ", "row", 0, head->nq, head->d, grads->dq);
    print_grid("dK", "key", 0, head->nk, head->d, grads->dk);
    print_grid("dV", "key", 0, head->nk, head->dv, grads->dv);
    putchar('\n');
}

void trace_tell_distance(const trace_report *report, const char *what, double distance)
{
    if (report->json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "step", "distance");
        cJSON_AddStringToObject(object, "from", what);
        cJSON_AddNumberToObject(object, "largest", distance);
        cli_print_json(object);
    } else {
        printf("largest distance from %s: %.1e\n", what, distance);
    }
}
