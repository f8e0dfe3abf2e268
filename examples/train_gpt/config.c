/*
 * config.c: see config.h.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "fail.h"

#define COUNT(name, least, most, help)                                   \
    {                                                                    \
#name, offsetof(config, name), least, most, (char[]){"N" }, help \
    }
#define REAL(name, least, most, help)                                    \
    {                                                                    \
#name, offsetof(config, name), least, most, (char[]){"X" }, help \
    }

const config_field config_fields[CONFIG_FIELDS] = {
    COUNT(layers, 1, 64, "transformer blocks"),
    COUNT(width, 1, 4096, "numbers per position, a multiple of the heads"),
    COUNT(heads, 1, 64, "attention heads"),
    COUNT(context, 1, 65536, "positions of a sequence"),
    COUNT(batch, 1, 1024, "sequences of a step"),
    COUNT(steps, 1, 1e6, "steps of training"),
    COUNT(seed, 0, 1e15, "of weights, batches, dropout and the sample"),
    REAL(rate, 0, 1, "highest learning rate"),
    REAL(dropout, 0, 1, "of attention's probabilities"),
};

const config config_default = {
    .layers = 4,
    .width = 128,
    .heads = 4,
    .context = 256,
    .batch = 8,
    .steps = 1200,
    .seed = 1,
    .attention = ATTENTION_LIBATTN,
    .rate = 2e-3,
    .dropout = 0,
};

double config_value(const config *c, const config_field *field)
{
    const char *at = (const char *)c + field->offset;
    return *field->type == 'X' ? *(const double *)(const void *)at
                               : (double)*(const int64_t *)(const void *)at;
}

void config_set(config *c, const config_field *field, const char *text)
{
    char *end, *at = (char *)c + field->offset;
    double value = strtod(text, &end);
    bool whole = *field->type == 'X' || value == floor(value);
    if (end == text || *end != '\0' || !(value >= field->least && value <= field->most) || !whole) {
        fail(EXIT_INPUT, "--%s=%s is not a %s from %g to %g", field->name, text,
             *field->type == 'X' ? "number" : "whole number", field->least, field->most);
    }
    if (*field->type == 'X') {
        memcpy(at, &value, sizeof value);
    } else {
        int64_t count = (int64_t)value;
        memcpy(at, &count, sizeof count);
    }
}

void config_check(const config *c)
{
    if (c->width % c->heads != 0) {
        fail(EXIT_INPUT, "--width=%lld is not a multiple of --heads=%lld", (long long)c->width,
             (long long)c->heads);
    }
    if (c->batch * c->context > 1 << 20) {
        fail(EXIT_INPUT, "--batch=%lld times --context=%lld is more than %d positions a step",
             (long long)c->batch, (long long)c->context, 1 << 20);
    }
}

const char *config_difference(const config *a, const config *b, char text[64])
{
    for (int i = 0; i < CONFIG_FIELDS; i++) {
        if (config_value(a, &config_fields[i]) != config_value(b, &config_fields[i])) {
            snprintf(text, 64, "--%s=%g", config_fields[i].name,
                     config_value(a, &config_fields[i]));
            return text;
        }
    }
    if (a->attention != b->attention) {
        snprintf(text, 64, "--attention=%s", attention_kind_name[a->attention]);
        return text;
    }
    return NULL;
}
