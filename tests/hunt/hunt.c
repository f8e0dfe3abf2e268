/*
 * hunt.c: an endless random tester: hunt SECONDS [SEED|- [INPUTS|- [TABLE]]]. 0 seconds: until it
 * is ended.
 * Prints each problem whose result is wrong, as a line that test_problems, test_gradients and `attn
 * check` take, and how it is wrong. Exit status 1 if there was one. Without a seed, a fresh one,
 * printed. INPUTS: one kind of values for all problems (support/inputs.h). TABLE: one table of
 * kernels, beside others' bits; exit status 77 where the machine lacks it. hunt [--every=N] FILE
 * judges the problem lines of a file, or one in N; hunt lines N [SEED|-] prints N for others to
 * judge: beside_torch.py, attn check --device cuda.
 */
#include "append.h"
#include "crowd.h"
#include "draw.h"
#include "faults.h"
#include "forms.h"
#include "judge.h"
#include "relations.h"
#include "stats.h"
#include "tables.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef SLOW
enum { MOST_COMPLAINTS = 20, TURNS = 1 };
#else
enum { MOST_COMPLAINTS = 20, TURNS = 4 };
#endif

static uint64_t fresh_seed(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return ((uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000) ^ (uint64_t)getpid() << 44;
}

struct tally {
    int64_t every, lines, skipped; /* of a file */
    int64_t problems, sown, related, complaints;
};

/* False for words that contradict each other: the library refuses such calls, which other tests
 * check. */
static bool exists(const problem_spec *spec)
{
    problem_tensors tensors;
    uint64_t bytes;
    if (!problem_tensors_create(spec, PLACE_NOWHERE, &tensors)) {
        return false;
    }
    attn_context *context = tables_context(tables_usual(), 1);
    const attn_status status = spec->pass == PASS_FORWARD
                                   ? attn_forward_workspace(context, &tensors.args, &bytes)
                                   : attn_backward_workspace(context, &tensors.grad, &bytes);
    problem_tensors_free(&tensors);
    return status == ATTN_OK;
}

static bool judge(const problem_spec *spec, dice *d, struct tally *tally, char *sentence,
                  size_t size)
{
    problem_print(spec, faults_line, sizeof faults_line);
    spec->sown > 0 ? tally->sown++ : tally->problems++;
    return spec->sown > 0 ? judge_sown(spec, d, sentence, size)
                          : judge_problem(spec, d, sentence, size);
}

static bool judge_forms(const problem_spec *spec, dice *d, struct tally *tally, char *sentence,
                        size_t size)
{
    problem_print(spec, faults_line, sizeof faults_line);
    tally->related++;
    return forms_judge(spec, d, sentence, size);
}

/* Judges a line of a file a few times: each time draws its ways of running anew. */
static bool visit(void *user, const problem_spec *spec)
{
    struct tally *tally = user;
    char sentence[1024] = "";
    dice d = {spec->seed, 0};
    if (tally->lines++ % tally->every != 0) {
        tally->skipped++;
        return true;
    }
    for (int n = 0; n < TURNS; n++) {
        if (!judge(spec, &d, tally, sentence, sizeof sentence) ||
            !judge_forms(spec, &d, tally, sentence, sizeof sentence)) {
            tally->complaints++;
            printf("FAIL %s\n     %s\n", faults_line, sentence);
            break;
        }
    }
    return true;
}

/* Draws a problem. False if it contradicts itself. */
static bool draw(dice *d, const char *inputs, problem_spec *spec)
{
    char line[4096], error[512];
    if (dice_one_in(d, 24)) {
        draw_shared_line(d, line, sizeof line);
    } else {
        draw_line(d, inputs, line, sizeof line);
    }
    return problem_parse(line, spec, error, sizeof error) && exists(spec);
}

static void print_lines(int64_t n, uint64_t seed)
{
    while (n > 0) {
        dice d = {seed++, 0};
        problem_spec spec;
        if (draw(&d, NULL, &spec)) {
            spec.infinite = 0; /* settle.h is of this program alone */
            problem_print(&spec, faults_line, sizeof faults_line);
            puts(faults_line);
            n--;
        }
    }
}

/* Judges one problem: one in two by a relation between two calls. Each problem has dice of its
 * own. */
static bool hunt_one(uint64_t seed, const char *inputs, struct tally *tally, char *sentence,
                     size_t size)
{
    dice d = {seed, 0};
    problem_spec spec;
    if (dice_one_in(&d, 12)) {
        tally->related++;
        return append_judge(&d, faults_line, sizeof faults_line, sentence, size);
    }
    if (dice_one_in(&d, 40)) {
        tally->related++;
        return crowd_judge(&d, faults_line, sizeof faults_line, sentence, size);
    }
    if (dice_one_in(&d, 4)) {
        tally->related++;
        return relations_judge(&d, faults_line, sizeof faults_line, sentence, size);
    }
    if (!draw(&d, inputs, &spec)) {
        return true;
    }
    if (dice_one_in(&d, 3)) {
        return judge_forms(&spec, &d, tally, sentence, size);
    }
    return judge(&spec, &d, tally, sentence, size);
}

/* Judges random problems until the time is up. */
static void hunt(double seconds, uint64_t seed, const char *inputs, struct tally *tally)
{
    const double begin = stats_now();
    for (uint64_t n = 0;
         (seconds == 0 || stats_now() - begin < seconds) && tally->complaints < MOST_COMPLAINTS;
         n++) {
        char sentence[1024] = "";
        if (!hunt_one(seed + n, inputs, tally, sentence, sizeof sentence)) {
            tally->complaints++;
            printf("FAIL %s\n     %s\n     (seed %" PRIu64 ", after %.1f s)\n", faults_line,
                   sentence, seed + n, stats_now() - begin);
        }
    }
}

/* An argument, or NULL if it is absent or "-". */
static const char *given(int argc, char **argv, int i)
{
    return argc > i && strcmp(argv[i], "-") != 0 ? argv[i] : NULL;
}

static uint64_t seed_of(const char *word)
{
    return word ? strtoull(word, NULL, 10) : fresh_seed();
}

static void judge_file(const char *path, struct tally *tally)
{
    char error[512];
    if (!problem_suite(path, visit, tally, error, sizeof error)) {
        printf("FAIL %s\n", error);
        tally->complaints++;
    }
    if (tally->every > 1) {
        printf("SKIPPED %" PRId64 " of %" PRId64 " problems of %s: one in %" PRId64
               " is tried here\n",
               tally->skipped, tally->lines, path, tally->every);
    }
}

int main(int argc, char **argv)
{
    char *end = NULL;
    struct tally tally = {.every = 1};
    setvbuf(stdout, NULL, _IOLBF, 0);
    faults_watch();
    if (argc > 1 && strncmp(argv[1], "--every=", 8) == 0) {
        tally.every = strtoll(argv[1] + 8, NULL, 10);
        if (tally.every < 1 || argc != 3) {
            fprintf(stderr, "hunt --every=N FILE, N at least 1\n");
            return EXIT_FAILURE;
        }
        argc--, argv++;
    }
    const double seconds = argc > 1 ? strtod(argv[1], &end) : 0, begin = stats_now();
    if (argc > 2 && strcmp(argv[1], "lines") == 0) {
        print_lines(strtoll(argv[2], NULL, 10), seed_of(given(argc, argv, 3)));
        return EXIT_SUCCESS;
    }
    if (argc > 4 && !judge_only_on(argv[4])) {
        return 77;
    }
    if (argc > 1 && *end != '\0') {
        judge_file(argv[1], &tally);
    } else {
        const uint64_t seed = seed_of(given(argc, argv, 2));
        printf("hunt: seed %" PRIu64 "\n", seed);
        hunt(seconds, seed, given(argc, argv, 3), &tally);
    }
    const double took = stats_now() - begin;
    const int64_t all = tally.problems + tally.sown + tally.related;
    printf("hunt: %.0f s, %" PRId64 " problems beside the oracle, %" PRId64 " with NaN, %" PRId64
           " relations; %.1f a second; %" PRId64 " complaints\n",
           took, tally.problems, tally.sown, tally.related, (double)all / took, tally.complaints);
    return tally.complaints > 0 || all == 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
