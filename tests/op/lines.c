/* lines.c: problem lines one after the other, their failures, and the worst error. */
#include "lines.h"

#include "faults.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tally {
    lines_try *attempt;
    enum problem_pass pass;
    int64_t every, seen;
    int problems, failures;
    double worst;
    char worst_line[1024];
};

static bool visit(void *user, const problem_spec *given)
{
    struct tally *tally = user;
    problem_spec problem = *given;
    char sentence[512] = "";
    double error = 0;
    if (tally->seen++ % tally->every != 0) {
        return true;
    }
    if (tally->pass == PASS_BACKWARD) {
        problem.pass = PASS_BACKWARD;
        problem.lse = true;
    }
    problem_print(&problem, faults_line, sizeof faults_line);
    tally->problems++;
    if (!tally->attempt(&problem, &error, sentence, sizeof sentence)) {
        printf("FAIL %s\n     %s\n", faults_line, sentence);
        tally->failures++;
    } else if (error > tally->worst) {
        tally->worst = error;
        snprintf(tally->worst_line, sizeof tally->worst_line, "%.1000s", faults_line);
    }
    return true;
}

/* Failures among the problems of a file; a file without problems is one. */
static int try_file(const char *path, struct tally tally)
{
    char error[512];
    int tables;
    (void)tables_names(&tables);
    if (!problem_suite(path, visit, &tally, error, sizeof error)) {
        printf("FAIL %s\n", error);
        tally.failures++;
    }
    if (tally.every > 1) {
        printf("SKIPPED %lld of %lld problems of %s: one in %lld is tried here\n",
               (long long)(tally.seen - tally.problems), (long long)tally.seen, path,
               (long long)tally.every);
    }
    printf("%s: %d problems on %d tables, %d failed; worst error %.3f of the bound%s%s\n", path,
           tally.problems, tables, tally.failures, tally.worst, tally.worst_line[0] ? " in " : "",
           tally.worst_line);
    return tally.failures + (tally.problems == 0);
}

int lines_main(int argc, char **argv, enum problem_pass pass, lines_try *attempt)
{
    struct tally tally = {.attempt = attempt, .pass = pass, .every = 1};
    int first = 1, failures = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    faults_watch();
    if (argc > 1 && strncmp(argv[1], "--every=", 8) == 0) {
        tally.every = strtoll(argv[1] + 8, NULL, 10);
        first = 2;
    }
    if (tally.every < 1 || first >= argc) {
        printf("FAIL usage: %s [--every=N] FILE...\n", argv[0]);
        return EXIT_FAILURE;
    }
    for (int i = first; i < argc; i++) {
        failures += try_file(argv[i], tally);
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
