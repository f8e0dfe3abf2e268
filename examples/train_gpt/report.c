/*
 * report.c: see report.h.
 */
#include "report.h"

#include <math.h>
#include <stdlib.h>

#include "fail.h"
#include "threads.h"

static const double NATS_PER_BIT = 0.6931471805599453;

void report_start(const gpt_trainer *trainer, FILE *out)
{
    const text *x = trainer->text;
    fprintf(out,
            "%d files: %lld bytes to learn, %lld to validate; entropy of bytes by themselves %.3f "
            "nats\n"
            "%lld parameters, %s attention, ",
            x->files, (long long)x->train_bytes, (long long)x->valid_bytes, x->entropy,
            (long long)trainer->model->count, attention_kind_name[trainer->config.attention]);
    if (trainer->model->on == &device_cpu) {
        fprintf(out, "%d threads\n", threads_count());
    } else {
        fprintf(out, "%s\n", trainer->model->on->name);
    }
}

void report_end(const gpt_trainer *trainer, const char *sample, FILE *out)
{
    double loss = trainer->valid[trainer->step], entropy = trainer->text->entropy;
    fprintf(out, "%.0f s", trainer->seconds);
    if (trainer->model->on->wait == NULL) {
        fprintf(out, ", of which attention %.0f s", trainer->model->attention->seconds);
    }
    fprintf(out,
            "\nvalidation loss %.3f nats a byte (%.3f bits); entropy of bytes by themselves %.3f "
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

static cJSON *validation_array(const gpt_trainer *trainer)
{
    cJSON *all = cJSON_CreateArray();
    for (int64_t i = 0; i <= trainer->step; i++) {
        if (!isnan(trainer->valid[i])) {
            const double pair[2] = {(double)i, trainer->valid[i]};
            cJSON_AddItemToArray(all, cJSON_CreateDoubleArray(pair, 2));
        }
    }
    return all;
}

void report_json(const gpt_trainer *trainer, const char *sample)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "attention", attention_kind_name[trainer->config.attention]);
    for (int i = 0; i < CONFIG_FIELDS; i++) {
        cJSON_AddNumberToObject(o, config_fields[i].name,
                                config_value(&trainer->config, &config_fields[i]));
    }
    cJSON_AddNumberToObject(o, "parameters", (double)trainer->model->count);
    cJSON_AddNumberToObject(o, "train_bytes", (double)trainer->text->train_bytes);
    cJSON_AddNumberToObject(o, "valid_bytes", (double)trainer->text->valid_bytes);
    cJSON_AddNumberToObject(o, "entropy", trainer->text->entropy);
    cJSON_AddItemToObject(o, "losses",
                          cJSON_CreateDoubleArray(trainer->losses, (int)trainer->step));
    cJSON_AddItemToObject(o, "validation", validation_array(trainer));
    cJSON_AddStringToObject(o, "sample", sample);
    report_print_json(o);
}
