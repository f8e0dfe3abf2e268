/*
 * compare.c: see compare.h. The training runs, and the report of both tables as JSON.
 */
#include "compare.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <tgmath.h>

#include "fail.h"
#include "report.h"
#include "train.h"

enum { RUNS = 3, LIBATTN = 0, STANDARD = 1, NUDGED = 2, LINES = 20 };

struct runs {
    gpt_trainer *run[RUNS];
    double seconds[RUNS]; /* of all steps */
};

static struct runs start_runs(const options *o, const text *from)
{
    struct runs r = {.seconds = {0}};
    config c = o->config;
    for (int i = 0; i < RUNS; i++) {
        c.attention = i == LIBATTN ? ATTENTION_LIBATTN : ATTENTION_STANDARD;
        r.run[i] = trainer_new(&c, from);
    }
    gpt_model *model = r.run[NUDGED]->model;
    for (int64_t i = 0; i < model->count; i++) {
        model->parameters[i] = nextafter(model->parameters[i], (real)8);
    }
    return r;
}

static double difference(const struct runs *r, int a, int b, int64_t step)
{
    return fabs(r->run[a]->losses[step] - r->run[b]->losses[step]);
}

/* The largest difference of losses over the steps done. */
static double largest(const struct runs *r, int a, int b)
{
    double most = 0;
    for (int64_t step = 0; step < r->run[a]->step; step++) {
        most = fmax(most, difference(r, a, b, step));
    }
    return most;
}

static void train_in_step(struct runs *r, FILE *out)
{
    int64_t steps = r->run[0]->config.steps, interval = steps < LINES ? 1 : steps / LINES;
    fputs("                loss              difference of\n"
          "  step   libattn  standard   the two   one rounding of the weights\n",
          out);
    for (int64_t step = 0; step < steps; step++) {
        for (int i = 0; i < RUNS; i++) {
            double start = seconds_now();
            trainer_step(r->run[i]);
            r->seconds[i] += seconds_now() - start;
        }
        if (step == 0 || (step + 1) % interval == 0) {
            fprintf(out, "%6lld  %8.5f  %8.5f   %7.1e   %7.1e\n", (long long)step + 1,
                    r->run[LIBATTN]->losses[step], r->run[STANDARD]->losses[step],
                    difference(r, LIBATTN, STANDARD, step), difference(r, NUDGED, STANDARD, step));
            fflush(out);
        }
    }
}

static void print_summary(const struct runs *r, FILE *out)
{
    fprintf(out, "largest over all steps      %7.1e   %7.1e\n", largest(r, LIBATTN, STANDARD),
            largest(r, NUDGED, STANDARD));
    for (int i = LIBATTN; i <= STANDARD; i++) {
        const gpt_attention *attention = r->run[i]->model->attention;
        double steps = (double)r->run[i]->step;
        fprintf(
            out,
            "%-8s  %6.1f ms a step, of which attention %5.1f ms; attention's memory %6.2f MiB\n",
            attention_kind_name[attention->kind], r->seconds[i] / steps * 1e3,
            attention->seconds / steps * 1e3, (double)attention_bytes(attention) / (1 << 20));
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static cJSON *runs_json(const struct runs *r)
{
    static const char *const names[RUNS] = {"libattn", "standard", "standard_nudged"};
    cJSON *all = cJSON_CreateObject();
    for (int i = 0; i < RUNS; i++) {
        const gpt_trainer *trainer = r->run[i];
        cJSON *one = cJSON_AddObjectToObject(all, names[i]);
        cJSON_AddItemToObject(one, "losses",
                              cJSON_CreateDoubleArray(trainer->losses, (int)trainer->step));
        cJSON_AddNumberToObject(one, "seconds", r->seconds[i]);
        cJSON_AddNumberToObject(one, "attention_seconds", trainer->model->attention->seconds);
        cJSON_AddNumberToObject(one, "attention_bytes",
                                (double)attention_bytes(trainer->model->attention));
    }
    cJSON_AddNumberToObject(all, "largest_difference", largest(r, LIBATTN, STANDARD));
    cJSON_AddNumberToObject(all, "largest_difference_nudged", largest(r, NUDGED, STANDARD));
    return all;
}

static void add_contexts(cJSON *to, const context_row *rows, int count)
{
    cJSON *all = cJSON_AddArrayToObject(to, "contexts");
    for (int i = 0; i < count; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddNumberToObject(one, "context", rows[i].length);
        for (int kind = 0; kind < 2 && rows[i].seconds[kind] >= 0; kind++) {
            cJSON *side = cJSON_AddObjectToObject(one, attention_kind_name[kind]);
            cJSON_AddNumberToObject(side, "seconds", rows[i].seconds[kind]);
            cJSON_AddNumberToObject(side, "bytes", rows[i].bytes[kind]);
        }
        cJSON_AddItemToArray(all, one);
    }
}

void compare(const options *o, const text *from, FILE *out)
{
    context_row rows[MAX_CONTEXTS];
    struct runs r = start_runs(o, from);
    report_start(r.run[LIBATTN], out);
    train_in_step(&r, out);
    print_summary(&r, out);
    int count = compare_contexts(o, rows, out);
    if (o->json) {
        cJSON *all = runs_json(&r);
        add_contexts(all, rows, count);
        report_print_json(all);
    }
    for (int i = 0; i < RUNS; i++) {
        trainer_delete(r.run[i]);
    }
}
