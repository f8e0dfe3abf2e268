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

enum { LIBATTN, STANDARD, NUDGED, ON_CPU, RUNS, LINES = 20 };

struct runs {
    int count; /* RUNS on a GPU, without ON_CPU else */
    gpt_trainer *run[RUNS];
    double seconds[RUNS]; /* of all steps */
};

static struct runs start_runs(const options *o, const text *from)
{
    struct runs r = {.count = o->on == &device_cpu ? ON_CPU : RUNS};
    config c = o->config;
    for (int i = 0; i < r.count; i++) {
        c.attention = i == STANDARD || i == NUDGED ? ATTENTION_STANDARD : ATTENTION_LIBATTN;
        r.run[i] = trainer_new(i == ON_CPU ? &device_cpu : o->on, &c, from);
    }
    model_nudge(r.run[NUDGED]->model);
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

static void take_step(struct runs *r, int i)
{
    const device *on = r->run[i]->model->on;
    double start = seconds_now();
    trainer_step(r->run[i]);
    if (on->wait != NULL) {
        on->wait();
    }
    r->seconds[i] += seconds_now() - start;
}

static void train_in_step(struct runs *r, FILE *out)
{
    int64_t steps = r->run[0]->config.steps, interval = steps < LINES ? 1 : steps / LINES;
    fprintf(out,
            "                loss              difference of\n"
            "  step   libattn  standard   the two   one rounding of the weights%s\n",
            r->count > ON_CPU ? "   libattn on the CPU" : "");
    for (int64_t step = 0; step < steps; step++) {
        for (int i = 0; i < r->count; i++) {
            take_step(r, i);
        }
        if (step == 0 || (step + 1) % interval == 0) {
            fprintf(out, "%6lld  %8.5f  %8.5f   %7.1e   %7.1e", (long long)step + 1,
                    r->run[LIBATTN]->losses[step], r->run[STANDARD]->losses[step],
                    difference(r, LIBATTN, STANDARD, step), difference(r, NUDGED, STANDARD, step));
            if (r->count > ON_CPU) {
                fprintf(out, "%23s%7.1e", "", difference(r, LIBATTN, ON_CPU, step));
            }
            fputc('\n', out);
            fflush(out);
        }
    }
}

static void print_speed(const struct runs *r, int i, FILE *out)
{
    const gpt_trainer *run = r->run[i];
    const gpt_attention *attention = run->model->attention;
    const double steps = (double)run->step, step = r->seconds[i] / steps;
    fprintf(out, "%-8s  %-4s  %7.2f ms a step, %7.1fk tokens/s; attention's memory %7.2f MiB",
            attention_kind_name[attention->kind], i == ON_CPU ? "cpu" : "", step * 1e3,
            (double)(run->config.batch * run->config.context) / step * 1e-3,
            (double)attention_bytes(attention) / (1 << 20));
    if (run->model->on->wait == NULL) {
        fprintf(out, ", its time %5.1f ms", attention->seconds / steps * 1e3);
    }
    fputc('\n', out);
}

static void print_summary(const struct runs *r, FILE *out)
{
    fprintf(out, "largest over all steps      %7.1e   %7.1e", largest(r, LIBATTN, STANDARD),
            largest(r, NUDGED, STANDARD));
    if (r->count > ON_CPU) {
        fprintf(out, "%23s%7.1e", "", largest(r, LIBATTN, ON_CPU));
    }
    fputc('\n', out);
    print_speed(r, LIBATTN, out);
    print_speed(r, STANDARD, out);
    if (r->count > ON_CPU) {
        print_speed(r, ON_CPU, out);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static cJSON *runs_json(const struct runs *r)
{
    static const char *const names[RUNS] = {"libattn", "standard", "standard_nudged",
                                            "libattn_cpu"};
    cJSON *all = cJSON_CreateObject();
    cJSON_AddStringToObject(all, "device", r->run[LIBATTN]->model->on->name);
    for (int i = 0; i < r->count; i++) {
        const gpt_trainer *trainer = r->run[i];
        cJSON *one = cJSON_AddObjectToObject(all, names[i]);
        cJSON_AddItemToObject(one, "losses",
                              cJSON_CreateDoubleArray(trainer->losses, (int)trainer->step));
        cJSON_AddNumberToObject(one, "seconds", r->seconds[i]);
        if (trainer->model->on->wait == NULL) {
            cJSON_AddNumberToObject(one, "attention_seconds", trainer->model->attention->seconds);
        }
        cJSON_AddNumberToObject(one, "attention_bytes",
                                (double)attention_bytes(trainer->model->attention));
    }
    cJSON_AddNumberToObject(all, "largest_difference", largest(r, LIBATTN, STANDARD));
    cJSON_AddNumberToObject(all, "largest_difference_nudged", largest(r, NUDGED, STANDARD));
    if (r->count > ON_CPU) {
        cJSON_AddNumberToObject(all, "largest_difference_cpu", largest(r, LIBATTN, ON_CPU));
    }
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
    for (int i = 0; i < r.count; i++) {
        trainer_delete(r.run[i]);
    }
}
