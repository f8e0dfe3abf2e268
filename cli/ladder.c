/*
 * ladder.c: `attn ladder`: attention in steps, from the textbook to the library, on one problem.
 */
#include "cli.h"
#include "ladder_report.h"
#include "commands.h"

#include <stdlib.h>

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "one JSON object per problem, and one of the flawed forms", 0},
    {"plot", 'p', "FILE", 0, "draws time and bytes of the last problem (.svg or .png)", 0},
    {0},
};

struct choice {
    bool json;
    const char *plot;
    cli_list list;
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct choice *choice = state->input;
    switch (key) {
    case 'j':
        choice->json = true;
        return 0;
    case 'p':
        choice->plot = text;
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&choice->list, text);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

static int climb(const struct choice *choice, const problem_spec *problem, bool draw)
{
    ladder_result results[LADDER_STEPS];
    attn_status status = ATTN_OK;
    char error[512];
    if (!ladder_run(problem, results, &status)) {
        return cli_error(CLI_INTERNAL, "out of memory");
    }
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    choice->json ? ladder_tell_json(problem, results) : ladder_tell_text(problem, results);
    if (draw && !ladder_plot(problem, results, choice->plot, error, sizeof error)) {
        return cli_error(CLI_USAGE, "%s", error);
    }
    return CLI_OK;
}

static int show_flaws(bool json)
{
    ladder_flaw flaws[LADDER_FLAWS];
    if (!ladder_run_flaws(flaws)) {
        return cli_error(CLI_INTERNAL, "out of memory");
    }
    json ? ladder_flaws_json(flaws) : ladder_flaws_text(flaws);
    return CLI_OK;
}

/* Refuses before anything is measured. */
static int refuse(const struct choice *choice)
{
    char error[512];
    for (int i = 0; i < choice->list.count; i++) {
        const char *word = ladder_refuses(&choice->list.problems[i]);
        if (word != NULL) {
            return cli_error(CLI_USAGE,
                             "the steps compute plain attention of one sequence, f32, "
                             "causal or not: %s is for the library (attn bench, attn check)",
                             word);
        }
    }
    if (choice->plot != NULL && !ladder_plot_possible(choice->plot, error, sizeof error)) {
        return cli_error(CLI_USAGE, "%s", error);
    }
    cli_refuse_large(&choice->list);
    return CLI_OK;
}

int cli_ladder(int argc, char **argv)
{
    static const char doc[] =
        "Computes attention in six steps, from the textbook's softmax to the library, each a short "
        "C function of examples/ladder, and prints what each step buys: memory, bytes moved, time, "
        "error. Then three published forms with a flaw each, on inputs that break them.\v"
        "A PROBLEM is a line of words as for attn bench (see attn bench --help), of which the "
        "steps know n, nq, nk, hq, d, dv, causal, scale, inputs, seed and threads, or the name of "
        "a file of such lines.\n"
        "\n"
        "Examples:\n"
        "  attn ladder \"hq=1 n=1024 d=64\"\n"
        "  attn ladder \"hq=4 n=2048 d=64 causal=1\" --plot ladder.svg\n"
        "  attn ladder \"hq=1 n=512 d=64 inputs=large\"";
    static const struct argp argp = {options, parse, "PROBLEM...", doc, NULL, NULL, NULL};
    struct choice choice = {.json = false};
    cli_parse(&argp, argc, argv, &choice);
    if (choice.list.count == 0) {
        cli_add_problems(&choice.list, "hq=1 n=1024 d=64");
    }
    int status = refuse(&choice);
    for (int i = 0; i < choice.list.count && status == CLI_OK; i++) {
        status = climb(&choice, &choice.list.problems[i],
                       choice.plot != NULL && i == choice.list.count - 1);
    }
    if (status == CLI_OK) {
        status = show_flaws(choice.json);
    }
    free(choice.list.problems);
    return status;
}
