/*
 * trace_report.c: see trace_report.h.
 */
#include "trace_report.h"
#include "style.h"

#include <math.h>
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

/* ---- tiles ----------------------------------------------------------------------------------- */

static void print_place(const trace_place *place)
{
    printf("%srows %lld..%lld, keys %lld..%lld: %s%s\n",
           cli_colour(place->kind == TRACE_SKIP ? CLI_PLAIN : CLI_GOOD), (long long)place->row,
           (long long)(place->row + place->rows - 1), (long long)place->key,
           (long long)(place->key + place->keys - 1), kind_name[place->kind],
           cli_colour(CLI_PLAIN));
}

/* Prints scores, and beside them the state of each row. */
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

static void tell_tile(void *user, const trace_tile *tile)
{
    const trace_report *report = user;
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

static void tell_grad_tile(void *user, const trace_grad_tile *tile)
{
    const trace_report *report = user;
    const trace_place *place = &tile->place;
    const struct {
        const char *name, *axis;
        int64_t first, rows, columns;
        const double *x;
    } grids[] = {
        {"P = exp(S - LSE)", "row", place->row, place->rows, place->keys, tile->p},
        {"dP = dO V^T", "row", place->row, place->rows, place->keys, tile->dp},
        {"delta = dO . O", "row", place->row, place->rows, 1, tile->delta},
        {"dS = P (dP - delta)", "row", place->row, place->rows, place->keys, tile->ds},
        {"dQ so far", "row", place->row, place->rows, report->head->d, tile->dq},
        {"dK so far", "key", place->key, place->keys, report->head->d, tile->dk},
        {"dV so far", "key", place->key, place->keys, report->head->dv, tile->dv},
    };
    print_place(place);
    for (size_t i = 0; i < sizeof grids / sizeof grids[0] && place->kind != TRACE_SKIP; i++) {
        print_grid(grids[i].name, grids[i].axis, grids[i].first, grids[i].rows, grids[i].columns,
                   grids[i].x);
    }
    putchar('\n');
}

/* ---- between tiles --------------------------------------------------------------------------- */

static void tell_heading(const trace_report *report, const char *text)
{
    (void)report;
    printf("%s%s%s\n\n", cli_colour(CLI_LABEL), text, cli_colour(CLI_PLAIN));
}

static void tell_sums(const trace_report *report, const trace_sums *sums)
{
    const trace_head *head = report->head;
    print_grid("O = O / l", "row", 0, head->nq, head->dv, sums->o);
    print_grid("LSE = m + log l", "row", 0, head->nq, 1, sums->lse);
    putchar('\n');
}

static void tell_weights(const trace_report *report, const double *weight, int parts)
{
    print_grid("weights = exp(LSE of the part - LSE), a column for each row", "part", 0, parts,
               report->head->nq, weight);
    putchar('\n');
}

static void tell_grads(const trace_report *report, const trace_grads *grads)
{
    const trace_head *head = report->head;
    print_grid("dQ", "row", 0, head->nq, head->d, grads->dq);
    print_grid("dK", "key", 0, head->nk, head->d, grads->dk);
    print_grid("dV", "key", 0, head->nk, head->dv, grads->dv);
    putchar('\n');
}

static void tell_distance(const trace_report *report, const char *what, double distance)
{
    (void)report;
    printf("largest distance from %s: %.1e\n", what, distance);
}

const trace_teller trace_words = {
    .heading = tell_heading,
    .tile = tell_tile,
    .grad_tile = tell_grad_tile,
    .sums = tell_sums,
    .weights = tell_weights,
    .grads = tell_grads,
    .distance = tell_distance,
};
