/*
 * bench_read.c: `attn bench --from`: the results of an earlier run from the output of --csv,
 * columns by their names, to be shown, summed up and drawn again. Files of older versions lack
 * columns: those numbers are unknown.
 */
#include "bench_read.h"
#include "bench_devices.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FIELDS = 40 };

struct reader {
    bench_run *b;
    bench_record *record;
    int number, fields; /* number of the line; fields of the head, 0 before it is read */
    char head[BENCH_MAX_LINE], *name[MAX_FIELDS];
    char last[BENCH_MAX_LINE]; /* the problem of the line above */
};

static void fail(const struct reader *reader, const char *what, const char *text)
{
    exit(cli_error(CLI_USAGE, "--from: line %d: %s \"%.200s\"", reader->number, what, text));
}

/* Cuts a line at its commas, except those in quotes. Returns the number of fields. */
static int split(char *line, char **field)
{
    int count = 0;
    for (char *rest = line; rest != NULL && count < MAX_FIELDS; count++) {
        char *end = rest[0] == '"' ? strchr(rest + 1, '"') : NULL;
        field[count] = end != NULL ? rest + 1 : rest;
        rest = strchr(end != NULL ? end : rest, ',');
        if (end != NULL) {
            *end = '\0';
        }
        if (rest != NULL) {
            *rest++ = '\0';
        }
    }
    return count;
}

static void take_head(struct reader *reader, const char *line)
{
    snprintf(reader->head, sizeof reader->head, "%s", line);
    reader->fields = split(reader->head, reader->name);
    if (reader->fields < 3 || strcmp(reader->name[0], "impl") != 0 ||
        strcmp(reader->name[1], "problem") != 0) {
        fail(reader, "expected columns impl,problem,... as --csv writes them, not", line);
    }
    int32_t device = strstr(line, ",matmul_tflops,") != NULL ? ATTN_DEVICE_CUDA : ATTN_DEVICE_CPU;
    if (reader->b->list.count > 0 && device != reader->b->device) {
        fail(reader, "results of another device than before:", line);
    }
    reader->b->device = device;
    reader->b->on = bench_device_of(reader->b->device);
}

static void take_record(const struct reader *reader, const char *line)
{
    const struct {
        const char *name;
        char *to;
        size_t size;
    } parts[] = {
        {"# machine: ", reader->record->machine, sizeof reader->record->machine},
        {"# commit: ", reader->record->commit, sizeof reader->record->commit},
        {"# command: ", reader->record->command, sizeof reader->record->command},
    };
    for (int i = 0; i < 3; i++) {
        if (strncmp(line, parts[i].name, strlen(parts[i].name)) == 0) {
            snprintf(parts[i].to, parts[i].size, "%.*s", (int)parts[i].size - 1,
                     line + strlen(parts[i].name));
        }
    }
}

/* Makes room for the results of one more problem, all of them absent. The problem itself is set at
 * the end, once its place is final. */
static void add_problem(struct reader *reader, const char *line)
{
    bench_run *bench = reader->b;
    if (strchr(line, '=') == NULL || strchr(line, '{') != NULL) {
        fail(reader, "this is no problem:", line);
    }
    cli_add_problems(&bench->list, line);
    bench->results = realloc(bench->results, (size_t)bench->list.count * BENCH_IMPLEMENTATIONS *
                                                 sizeof *bench->results);
    if (bench->results == NULL) {
        exit(cli_error(CLI_INTERNAL, "out of memory"));
    }
    for (int i = 0; i < BENCH_IMPLEMENTATIONS; i++) {
        bench_result *x = &bench->results[(bench->list.count - 1) * BENCH_IMPLEMENTATIONS + i];
        *x = (bench_result){.implementation = bench->on->names[i],
                            .device = bench->device,
                            .why = "not in this file"};
        for (int n = 0; bench_column(n, bench->device) != NULL; n++) {
            bench_set(x, n, (double)NAN);
        }
    }
    snprintf(reader->last, sizeof reader->last, "%s", line);
}

static void take_field(bench_result *x, const char *name, const char *value)
{
    const char *known;
    if (strcmp(name, "kernel") == 0) {
        snprintf(x->report.kernel, sizeof x->report.kernel, "%s", value);
    } else if (strcmp(name, "not_compared") == 0) {
        snprintf(x->report.not_compared, sizeof x->report.not_compared, "%s", value);
    }
    for (int n = 0; (known = bench_column(n, x->device)) != NULL; n++) {
        if (strcmp(name, known) == 0 && value[0] != '\0') {
            bench_set(x, n, strtod(value, NULL));
        }
    }
}

/* Finds the place of an implementation's result on a problem. A problem goes on while its
 * implementations follow each other. */
static bench_result *place_of(struct reader *reader, const char *implementation, const char *line)
{
    bench_run *bench = reader->b;
    int i = bench_find(bench->on, implementation);
    if (i < 0) {
        fail(reader, "unknown implementation", implementation);
    }
    bool same = bench->list.count > 0 && strcmp(reader->last, line) == 0;
    if (!same || bench->results[(bench->list.count - 1) * BENCH_IMPLEMENTATIONS + i].measured) {
        add_problem(reader, line);
    }
    bench->use[i] = true;
    return &bench->results[(bench->list.count - 1) * BENCH_IMPLEMENTATIONS + i];
}

static void take_result(struct reader *reader, char *line)
{
    char *value[MAX_FIELDS];
    int fields = split(line, value);
    if (fields != reader->fields) {
        fail(reader, "not as many values as names of columns:", value[0]);
    }
    bench_result *x = place_of(reader, value[0], value[1]);
    x->measured = true;
    for (int n = 2; n < fields; n++) {
        take_field(x, reader->name[n], value[n]);
    }
}

/* "# not measured: torch, PROBLEM: WHY", beside the results of the same problem */
static void take_comment(struct reader *reader, char *line)
{
    static const char start[] = "# not measured: ";
    char *name = line + sizeof start - 1;
    char *comma = strncmp(line, start, sizeof start - 1) == 0 ? strstr(name, ", ") : NULL;
    char *colon = comma != NULL ? strstr(comma, ": ") : NULL;
    if (colon == NULL) {
        take_record(reader, line);
    } else if (reader->fields > 0) {
        *comma = *colon = '\0';
        bench_result *x = place_of(reader, name, comma + 2);
        snprintf(x->why, sizeof x->why, "%.*s", (int)sizeof x->why - 1, colon + 2);
    }
}

void bench_read(bench_run *bench, const char *path, bench_record *record)
{
    static char line[BENCH_MAX_LINE];
    struct reader reader = {.b = bench, .record = record};
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (file == NULL) {
        exit(cli_error(CLI_USAGE, "--from: \"%s\": %s", path, strerror(errno)));
    }
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        reader.number++;
        if (line[0] == '#' || line[0] == '\0') {
            take_comment(&reader, line);
        } else if (reader.fields == 0 ||
                   strncmp(line, "impl,", 5) == 0) { /* several runs in one file */
            take_head(&reader, line);
        } else {
            take_result(&reader, line);
        }
    }
    if (file != stdin) {
        fclose(file);
    }
    if (bench->list.count == 0) {
        exit(cli_error(CLI_USAGE, "--from: \"%s\" has no results", path));
    }
    for (int n = 0; n < bench->list.count * BENCH_IMPLEMENTATIONS; n++) {
        bench->results[n].problem = &bench->list.problems[n / BENCH_IMPLEMENTATIONS];
    }
}
