/*
 * report.c: see report.h.
 */
#include "report.h"

#include <math.h>
#include <stdlib.h>

#include "fail.h"
#include "threads.h"

static const double NATS_PER_BIT = 0.6931471805599453;

void report_start(const trainer *t, FILE *out)
{
    const text *x = t->text;
    fprintf(out,
            "%d files: %lld bytes to learn, %lld to validate; entropy of bytes by themselves %.3f "
            "nats\n"
            "%lld parameters, %s attention, %d threads\n",
            x->files, (long long)x->train_bytes, (long long)x->valid_bytes, x->entropy,
            (long long)t->model->count, attention_kind_name[t->config.attention], threads_count());
}

void report_end(const trainer *t, const char *sample, FILE *out)
{
    double loss = t->valid[t->step], entropy = t->text->entropy;
    fprintf(out, "%.0f s, of which attention %.0f s\n", t->seconds, t->model->attention->seconds);
    fprintf(out,
            "validation loss %.3f nats a byte (%.3f bits); entropy of bytes by themselves %.3f "
            "nats (%.3f bits)\n",
            loss, loss / NATS_PER_BIT, entropy, entropy / NATS_PER_BIT);
    fprintf(out, "\n%s\n", sample);
}

void report_print_json(cJSON *object)
{
    char *line = cJSON_PrintUnformatted(object);
    if (line == NULL) {
        fail(EXIT_INTERNAL, "no memory for the report");
    }
    puts(line);
    free(line);
    cJSON_Delete(object);
}

static cJSON *validation_array(const trainer *t)
{
    cJSON *all = cJSON_CreateArray();
    for (int64_t i = 0; i <= t->step; i++) {
        if (!isnan(t->valid[i])) {
            const double pair[2] = {(double)i, t->valid[i]};
            cJSON_AddItemToArray(all, cJSON_CreateDoubleArray(pair, 2));
        }
    }
    return all;
}

void report_json(const trainer *t, const char *sample)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "attention", attention_kind_name[t->config.attention]);
    for (int i = 0; i < CONFIG_FIELDS; i++) {
        cJSON_AddNumberToObject(o, config_fields[i].name,
                                config_value(&t->config, &config_fields[i]));
    }
    cJSON_AddNumberToObject(o, "parameters", (double)t->model->count);
    cJSON_AddNumberToObject(o, "train_bytes", (double)t->text->train_bytes);
    cJSON_AddNumberToObject(o, "valid_bytes", (double)t->text->valid_bytes);
    cJSON_AddNumberToObject(o, "entropy", t->text->entropy);
    cJSON_AddItemToObject(o, "losses", cJSON_CreateDoubleArray(t->losses, (int)t->step));
    cJSON_AddItemToObject(o, "validation", validation_array(t));
    cJSON_AddStringToObject(o, "sample", sample);
    report_print_json(o);
}
