/*
 * cli.c: see cli.h.
 */
#include "cli.h"
#include "near.h"
#include "progress.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cli_error(int status, const char *format, ...)
{
    va_list list;
    cli_progress(NULL);
    fflush(stdout);
    va_start(list, format);
    fputs("attn: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    return status;
}

int cli_status_error(attn_status status)
{
    bool blame = status == ATTN_ERR_INVALID_ARGUMENT || status == ATTN_ERR_UNSUPPORTED ||
                 status == ATTN_ERR_OVERFLOW;
    return cli_error(blame ? CLI_USAGE : CLI_INTERNAL, "%s: %s", attn_status_string(status),
                     attn_last_error());
}

/* Options and descriptions as lines of fields that tabs part, which tools/manual reads. */
static void print_table(const struct argp *argp, const char *name)
{
    printf("command\t%s\t%s\ndoc\t", name, argp->args_doc != NULL ? argp->args_doc : "");
    for (const char *c = argp->doc; *c != '\0'; c++) {
        fputs(*c == '\v' ? "\ntail\t" : *c == '\n' ? "\n\t" : (char[]){*c, '\0'}, stdout);
    }
    putchar('\n');
    for (const struct argp_option *o = argp->options; o->name != NULL || o->doc != NULL; o++) {
        const bool letter = o->key > ' ' && o->key < 127;
        if (o->name == NULL) {
            printf("group\t%s\n", o->doc);
        } else {
            printf("option\t%s\t%c\t%s\t%s\n", o->name, letter ? o->key : ' ',
                   o->arg != NULL ? o->arg : "", o->doc != NULL ? o->doc : "");
        }
    }
}

static const struct argp *command; /* the one that is parsed: argp wraps it */

static bool takes_problems(void)
{
    return command->args_doc != NULL && strstr(command->args_doc, "PROBLEM") != NULL;
}

/* True for an argument that is one word of a problem, key=value. */
static bool is_word(const char *argument)
{
    return argument[0] != '-' && strchr(argument, '=') != NULL && strpbrk(argument, " \t") == NULL;
}

/* Warns of a problem whose words the shell has parted: each of them is a problem of its own. */
static void warn_of_parts(int argc, char **argv)
{
    static const char parted[] = "\"%s\" and \"%s\" are two problems; the words of one are one "
                                 "argument, in quotes";
    for (int i = 1; i + 1 < argc; i++) {
        const char *one = argv[i], *other = argv[i + 1];
        const size_t key = strcspn(one, "=") + 1;
        if (is_word(one) && is_word(other) && strncmp(one, other, key) != 0) {
            cli_error(CLI_OK, parted, one, other);
            return;
        }
    }
}

void cli_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    /* argp's own messages have two lines: they are silenced, and cli_parse_other writes the error
     * in one. That silences --help as well. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0 ||
            strcmp(argv[i], "-?") == 0) {
            argp_help(argp, stdout, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, argv[0]);
            exit(CLI_OK);
        }
        if (strcmp(argv[i], "--help=table") == 0) {
            print_table(argp, argv[0]);
            exit(CLI_OK);
        }
    }
    command = argp;
    if (argp_parse(argp, argc, argv, ARGP_NO_ERRS, NULL, input) != 0) {
        exit(cli_error(CLI_USAGE, "cannot make sense of the options (see %s --help)", argv[0]));
    }
    if (takes_problems()) {
        warn_of_parts(argc, argv);
    }
}

/* The word that a refused argument is near to; "" if there is none. */
static void write_hint(char *hint, size_t size, const char *given)
{
    const char *name = given + strspn(given, "-");
    size_t length = strcspn(name, "=");
    near_search search = near_start(name, length);
    const struct argp_option *found = NULL;
    hint[0] = '\0';
    for (const struct argp_option *o = command->options; o->name != NULL || o->doc != NULL; o++) {
        if (o->name != NULL) {
            near_try(&search, o->name);
            found = search.found == o->name ? o : found;
        }
    }
    if (found != NULL && search.edits == 0 && name != given) {
        snprintf(hint, size, ": --%s takes %s", found->name,
                 found->arg != NULL ? "a value" : "no value");
    } else if (found != NULL) {
        snprintf(hint, size, "; did you mean --%s?", found->name);
    } else if (takes_problems() && problem_near_word(name) != NULL) {
        snprintf(hint, size, "; did you mean the problem's word %s=?", problem_near_word(name));
    }
}

error_t cli_parse_other(int key, const char *text, const struct argp_state *state)
{
    char *const *argv = state->argv;
    char hint[96];
    if (key == ARGP_KEY_ARG) {
        write_hint(hint, sizeof hint, text);
        exit(cli_error(CLI_USAGE, "\"%s\" is not expected here%s (see %s --help)", text, hint,
                       argv[0]));
    }
    if (key == ARGP_KEY_ERROR && state->next > 0) {
        const char *given = argv[state->next - 1];
        write_hint(hint, sizeof hint, given);
        exit(cli_error(CLI_USAGE, "cannot make sense of \"%s\"%s (see %s --help)", given, hint,
                       argv[0]));
    }
    return ARGP_ERR_UNKNOWN;
}

int64_t cli_integer(const char *option, const char *text, int64_t least, int64_t most)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > most) {
        exit(cli_error(CLI_USAGE, "--%s=%s is not a whole number from %lld to %lld", option, text,
                       (long long)least, (long long)most));
    }
    return value;
}

double cli_real(const char *option, const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= least && value <= most)) {
        exit(cli_error(CLI_USAGE, "--%s=%s is not a number from %g to %g", option, text, least,
                       most));
    }
    return value;
}

int32_t cli_device(const char *name)
{
    if (strcmp(name, "cpu") != 0 && strcmp(name, "cuda") != 0) {
        exit(cli_error(CLI_USAGE, "--device=%s is neither cpu nor cuda", name));
    }
    return strcmp(name, "cpu") == 0 ? ATTN_DEVICE_CPU : ATTN_DEVICE_CUDA;
}

attn_status cli_gpu_context(attn_context **context)
{
    attn_context_config config = {.struct_size = sizeof config, .device = ATTN_DEVICE_CUDA};
    return attn_context_create(&config, context);
}

const char *cli_bytes(cli_text text, double bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = 0;
    while (fabs(bytes) >= 1024 && u < 5) {
        bytes /= 1024, u++;
    }
    snprintf(text, sizeof(cli_text), u == 0 || bytes >= 999.5 ? "%.0f %s" : "%.3g %s", bytes,
             unit[u]);
    return text;
}

const char *cli_seconds(cli_text text, double seconds)
{
    /* "1 s", not "1e+03 ms" */
    double scale = seconds >= 0.9995 ? 1 : seconds >= 0.9995e-3 ? 1e3 : 1e6;
    snprintf(text, sizeof(cli_text), seconds >= 100 ? "%.0f %s" : "%.3g %s", seconds * scale,
             scale == 1     ? "s"
             : scale == 1e3 ? "ms"
                            : "us");
    return text;
}

double cli_free_memory(void)
{
    double bytes = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE), kib;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        bytes = sscanf(line, "MemAvailable: %lf kB", &kib) == 1 ? kib * 1024 : bytes;
    }
    if (file != NULL) {
        fclose(file);
    }
    return bytes;
}

static void refuse_large(const problem_spec *problem)
{
    problem_tensors shapes;
    if (!problem_tensors_create(problem, PLACE_NOWHERE, &shapes)) {
        exit(cli_error(CLI_USAGE, "the problem's tensors do not fit into the address space"));
    }
    const double bytes = problem_tensors_bytes(&shapes);
    problem_tensors_free(&shapes);
    if (bytes > cli_free_memory()) {
        cli_text text;
        exit(cli_error(CLI_USAGE, "the problem's tensors of %s do not fit into free memory",
                       cli_bytes(text, bytes)));
    }
}

void cli_refuse_large(const cli_list *list)
{
    for (int i = 0; i < list->count; i++) {
        refuse_large(&list->problems[i]);
    }
}

void cli_print_json(cJSON *object)
{
    char *line = cJSON_PrintUnformatted(object);
    if (line == NULL) {
        exit(cli_error(CLI_INTERNAL, "out of memory"));
    }
    puts(line);
    fflush(stdout);
    free(line);
    cJSON_Delete(object);
}

static bool add_problem(void *user, const problem_spec *problem)
{
    cli_list *list = user;
    problem_spec *more = realloc(list->problems, (size_t)(list->count + 1) * sizeof *more);
    if (more == NULL) {
        exit(cli_error(CLI_INTERNAL, "out of memory"));
    }
    list->problems = more;
    list->problems[list->count++] = *problem;
    return true;
}

void cli_add_problems(cli_list *list, const char *argument)
{
    char error[1024];
    bool line = strchr(argument, '=') != NULL;
    if (line ? !problem_line(argument, add_problem, list, error, sizeof error)
             : !problem_suite(argument, add_problem, list, error, sizeof error)) {
        const char *near = line ? NULL : problem_near_word(argument);
        const bool absent = !line && access(argument, F_OK) != 0;
        exit(near != NULL ? cli_error(CLI_USAGE, "%s; did you mean the word %s=?", error, near)
             : absent
                 ? cli_error(CLI_USAGE, "\"%s\" is neither words key=value nor a file", argument)
                 : cli_error(CLI_USAGE, "%s", error));
    }
}
