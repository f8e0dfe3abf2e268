/*
 * test_plan.c: golden plans: test_plan [--print] FILE. Each problem line of FILE is followed by its
 * plan on the machine of machine.h, indented. A plan that changed on purpose is printed anew with
 * --print and its diff reviewed.
 */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096 };

static void write_plan(const problem_spec *problem, char *text, size_t size)
{
    int count;
    planned x;
    if (!plan_on(&attn_isas(&count)[0], problem, &x)) {
        snprintf(text, size, "    error: %s\n", attn_last_error());
    } else {
        const attn_cpu_plan *plan = &x.plan;
        attn_tile_count tiles = attn_cpu_count_tiles(plan, &x.problem);
        snprintf(text, size,
                 "    %s threads=%d items=%lld rows_per_item=%lld scratch=%llu workspace=%llu\n"
                 "    tiles full=%lld partial=%lld skipped=%lld scores=%.0f score_step=%d\n",
                 plan->table->name, plan->threads, (long long)plan->schedule.items,
                 (long long)plan->schedule.block_rows, (unsigned long long)plan->scratch.total,
                 (unsigned long long)plan->workspace_bytes, (long long)tiles.full,
                 (long long)tiles.partial, (long long)tiles.skipped, tiles.scores,
                 plan->scores.has_score_step);
    }
    problem_tensors_free(&x.tensors);
}

/* Reads the indented lines that follow; the first other line stays in `next`. */
static void read_plan(FILE *file, char *text, size_t size, char *next)
{
    text[0] = '\0';
    while (fgets(next, LINE, file) != NULL && next[0] == ' ') {
        strncat(text, next, size - strlen(text) - 1);
    }
    if (feof(file)) {
        next[0] = '\0';
    }
}

int main(int argc, char **argv)
{
    bool print = argc == 3 && strcmp(argv[1], "--print") == 0;
    FILE *file = argc < 2 ? NULL : fopen(argv[argc - 1], "r");
    char line[LINE], next[LINE], want[LINE], got[LINE], error[256];
    int plans = 0, failures = 0;
    if (file == NULL) {
        fprintf(stderr, "usage: test_plan [--print] FILE\n");
        return 2;
    }
    for (bool more = fgets(line, LINE, file) != NULL; more; more = line[0] != '\0') {
        problem_spec problem;
        line[strcspn(line, "\n")] = '\0';
        read_plan(file, want, sizeof want, next);
        if (print) {
            printf("%s\n", line);
        }
        if (line[0] != '#' && line[0] != '\0') {
            if (!problem_parse(line, &problem, error, sizeof error)) {
                printf("FAIL %s: %s\n", line, error);
                return EXIT_FAILURE;
            }
            write_plan(&problem, got, sizeof got);
            plans++;
            if (print) {
                printf("%s", got);
            } else if (strcmp(got, want) != 0) {
                printf("FAIL %s\n  in the file:\n%s  now:\n%s", line, want, got);
                failures++;
            }
        }
        memcpy(line, next, sizeof line);
    }
    fclose(file);
    if (!print) {
        printf("%d plans, %d differ\n", plans, failures);
    }
    return failures == 0 && plans > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
