/*
 * trace.c: `attn trace`: the walk over tiles of a small problem, number by number: forward, split
 * keys with their merge, and backward. At the end it compares with the library and with float64.
 */
#include "cli.h"
#include "trace_files.h"
#include "trace_report.h"
#include "commands.h"

#include <stdlib.h>

static const struct argp_option options[] = {
    {"rows", 'r', "N", 0, "rows of a tile (default 4)", 0},
    {"keys", 'k', "N", 0, "keys of a tile (default 4)", 0},
    {"split", 's', "N", 0, "cuts the keys into N parts, which are merged (default 1)", 0},
    {"head", 'H', "N", 0, "the head to trace (default 0)", 0},
    {"json", 'j', NULL, 0, "one JSON object for each step", 0},
    {"q", 'Q', "FILE", 0, "Q from a .npy or .safetensors file (see attn run --help)", 0},
    {"k", 'K', "FILE", 0, "K from such a file", 0},
    {"v", 'V', "FILE", 0, "V from such a file", 0},
    {"d-o", 'O', "FILE", 0, "dO from such a file, for the backward pass", 0},
    {0},
};

struct choice {
    trace_choice trace;
    bool json;
    trace_files files;
    cli_list list;
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct choice *choice = state->input;
    switch (key) {
    case 'r':
        choice->trace.rows = cli_integer("rows", text, 1, TRACE_MOST_ROWS);
        return 0;
    case 'k':
        choice->trace.keys = cli_integer("keys", text, 1, TRACE_MOST_ROWS);
        return 0;
    case 's':
        choice->trace.split = cli_integer("split", text, 1, TRACE_MOST_PARTS);
        return 0;
    case 'H':
        choice->trace.head = cli_integer("head", text, 0, 1 << 20);
        return 0;
    case 'j':
        choice->json = true;
        return 0;
    case 'Q':
        choice->files.q = text;
        return 0;
    case 'K':
        choice->files.k = text;
        return 0;
    case 'V':
        choice->files.v = text;
        return 0;
    case 'O':
        choice->files.d_o = text;
        return 0;
    case ARGP_KEY_ARG:
        cli_add_problems(&choice->list, text);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

static int trace(const struct choice *choice, const problem_spec *given)
{
    problem_spec problem = *given;
    trace_choice how = choice->trace;
    if (trace_files_given(&choice->files, problem.pass != PASS_FORWARD)) {
        trace_files_shape(&choice->files, &problem);
        how.fill = trace_files_fill, how.source = &choice->files;
    }
    const char *reason = trace_refuses(&how, &problem);
    if (reason != NULL) {
        return cli_error(CLI_USAGE, "%s", reason);
    }
    const attn_status status =
        trace_run(&how, &problem, choice->json ? &trace_json : &trace_words, stdout);
    return status == ATTN_OK                  ? CLI_OK
           : status == ATTN_ERR_OUT_OF_MEMORY ? cli_error(CLI_INTERNAL, "out of memory")
                                              : cli_status_error(status);
}

int cli_trace(int argc, char **argv)
{
    static const char doc[] =
        "Shows the algorithm at work on a small problem: for each tile its scores, the maximum, "
        "the factor alpha, the sums and O before and after; tiles that are skipped or partly "
        "masked; parts of the keys and their merge; the backward pass with pass=training. At the "
        "end the distance from the library's results.\v"
        "A PROBLEM is a line of words as for attn bench (see attn bench --help), or the name of a "
        "file of such lines: at most 64 rows and keys, d and d_v of 32. With numbers from files it "
        "says the rest, as causal=1: the shapes are the files'.\n"
        "\n"
        "Examples:\n"
        "  attn trace \"n=8 hq=1 d=4\"\n"
        "  attn trace \"n=8 hq=1 d=4 causal=1\" --rows 2 --keys 3\n"
        "  attn trace \"n=8 hq=1 d=4\" --split 2\n"
        "  attn trace \"n=8 hq=1 d=4 pass=training\"\n"
        "  attn trace --q q.npy --k k.npy --v v.npy \"causal=1\"";
    static const struct argp argp = {options, parse, "PROBLEM...", doc, NULL, NULL, NULL};
    struct choice choice = {.trace = {.rows = 4, .keys = 4, .split = 1}};
    int status = CLI_OK;
    cli_parse(&argp, argc, argv, &choice);
    if (choice.list.count == 0) {
        cli_add_problems(&choice.list, "n=8 hq=1 d=4");
    }
    for (int i = 0; i < choice.list.count && status == CLI_OK; i++) {
        status = trace(&choice, &choice.list.problems[i]);
    }
    free(choice.list.problems);
    return status;
}
