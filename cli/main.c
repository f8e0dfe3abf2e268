/*
 * main.c: the program `attn`: finds the sub-command and calls it.
 */
#include "cli.h"
#include "near.h"
#include "commands.h"

#include <stdio.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    char *full_name;
    const char *help;
} commands[] = {
    {"run", cli_run, "attn run", "attention of Q, K, V in .npy or .safetensors files"},
    {"bench", cli_bench, "attn bench", "time, memory and error beside standard attention"},
    {"check", cli_check, "attn check", "this machine's kernels, or its GPU's, against float64"},
    {"plan", cli_plan, "attn plan", "what would run, why, and what it costs"},
    {"ladder", cli_ladder, "attn ladder", "attention in steps, from the textbook to the library"},
    {"trace", cli_trace, "attn trace", "the walk over tiles of a small problem, number by number"},
    {"info", cli_info, "attn info", "version, CPU features, kernels, caches, GPUs"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void help(void)
{
    puts("attn: exact attention, tile by tile (FlashAttention), on this CPU or GPU\n\nUsage: attn "
         "COMMAND [...]\n");
    for (int i = 0; i < COMMANDS; i++) {
        printf("  %-8s %s\n", commands[i].name, commands[i].help);
    }
    puts("\nTry:\n"
         "  attn bench \"b=1 hq=8 nq=2048 d=64 dtype=f32\"\n"
         "  attn plan \"hq=16 nq=4096 causal=1\"\n"
         "  attn COMMAND --help\n"
         "  attn --version\n"
         "\nExit status: 0 done, 1 a check failed, 2 bad usage or input, 3 anything else went "
         "wrong.");
}

/* The output of a command may be lost: a full disk, a pipe that nobody reads. */
static int finish(int status)
{
    bool lost = fflush(stdout) != 0 || ferror(stdout) != 0;
    return lost ? cli_error(CLI_INTERNAL, "not everything could be written to standard output")
                : status;
}

static bool is_one_of(const char *name, const char *a, const char *b, const char *c)
{
    return strcmp(name, a) == 0 || strcmp(name, b) == 0 || strcmp(name, c) == 0;
}

static int refuse(const char *name)
{
    char hint[64] = "run, bench, check, plan, ladder, trace or info";
    near_search search = near_start(name, strlen(name));
    if (name[0] == '\0') {
        return cli_error(CLI_USAGE, "no command given: %s (see attn --help)", hint);
    }
    for (int i = 0; i < COMMANDS; i++) {
        near_try(&search, commands[i].name);
    }
    near_try(&search, "help");
    near_try(&search, "version");
    if (search.found != NULL) {
        snprintf(hint, sizeof hint, "did you mean %s?", search.found);
    }
    return cli_error(CLI_USAGE, "\"%s\" is not a command: %s (see attn --help)", name, hint);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (is_one_of(name, "help", "--help", "-h")) {
        help();
        return finish(CLI_OK);
    }
    if (strcmp(name, "--help=table") == 0) { /* for tools/manual */
        for (int i = 0; i < COMMANDS; i++) {
            printf("%s\t%s\n", commands[i].name, commands[i].help);
        }
        return finish(CLI_OK);
    }
    if (is_one_of(name, "version", "--version", "-V")) {
        printf("attn %d.%d.%d\n", attn_version() / 10000, attn_version() / 100 % 100,
               attn_version() % 100);
        return finish(CLI_OK);
    }
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            argv[1] = commands[i].full_name;
            return finish(commands[i].run(argc - 1, argv + 1));
        }
    }
    return refuse(name);
}
