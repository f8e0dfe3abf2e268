/*
 * options.c: see options.h.
 */
#include "options.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "fail.h"

enum {
    KEY_CONFIG = 1000,
    KEY_ATTENTION = 2000,
    KEY_DEVICE,
    KEY_OUT,
    KEY_PREFIX,
    KEY_PROMPT,
    KEY_SAMPLE,
    KEY_THREADS,
    KEY_SAVE,
    KEY_FRESH,
    KEY_JSON,
    KEY_COMPARE,
    KEY_GENERATE
};

/* Defaults of --steps with --compare, and of --sample. */
enum { COMPARED_STEPS = 200, SAMPLE_BYTES = 500 };

static char *const default_texts[] = {"/usr/share/common-licenses"};
enum { DEFAULT_PROMPTS = 8 };
static const char *const default_prompts[DEFAULT_PROMPTS] = {"The ",    "You ", "If ", "This ",
                                                             "A copy ", "Any ", "No ", "We "};

static const struct argp_option own_options[] = {
    {"attention", KEY_ATTENTION, "KIND", 0,
     "libattn or standard, which materialises the matrix (default libattn)", 1},
    {"device", KEY_DEVICE, "NAME", 0, "cpu or cuda, the first NVIDIA GPU (default cpu)", 1},
    {"compare", KEY_COMPARE, NULL, 0,
     "train both ways from the same seed (200 steps), then time both by context", 1},
    {"out", KEY_OUT, "DIR", 0, "folder for the checkpoint and loss.png (default train_gpt.out)", 1},
    {"fresh", KEY_FRESH, NULL, 0, "start anew though there is a checkpoint", 1},
    {"generate", KEY_GENERATE, NULL, 0,
     "load the checkpoint, or train, and continue several prompts at once, with a cache of keys "
     "and "
     "values, one of int8, and none",
     1},
    {"prefix", KEY_PREFIX, "TEXT", 0,
     "--generate: what all prompts begin with (default: half a context of validation text)", 1},
    {"prompt", KEY_PROMPT, "TEXT", 0,
     "what the sample begins with (default \"The \"); --generate takes several", 1},
    {"sample", KEY_SAMPLE, "N", 0,
     "bytes of the sample (default 500); --generate: of each (default: what the context holds)", 1},
    {"save", KEY_SAVE, "SECONDS", 0, "between two checkpoints, 0: after every step (default 5)", 1},
    {"threads", KEY_THREADS, "N", 0, "default: one per core", 1},
    {"json", KEY_JSON, NULL, 0, "one JSON object on stdout, all else on stderr", 1},
    {0},
};

static int small_number(const char *option, const char *text, int most)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > most) {
        fail(EXIT_INPUT, "--%s=%s is not a whole number from 0 to %d", option, text, most);
    }
    return (int)value;
}

static void set_attention(options *o, const char *text)
{
    for (int kind = 0; kind < 2; kind++) {
        if (strcmp(text, attention_kind_name[kind]) == 0) {
            o->config.attention = kind;
            return;
        }
    }
    fail(EXIT_INPUT, "--attention=%s is neither libattn nor standard", text);
}

static void set_device(options *o, const char *text)
{
    if (strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0) {
        fail(EXIT_INPUT, "--device=%s is neither cpu nor cuda", text);
    }
    o->on = strcmp(text, "cuda") == 0 ? device_cuda() : &device_cpu;
}

static void add_prompt(options *o, const char *text)
{
    if (text[0] == '\0') {
        fail(EXIT_INPUT, "--prompt wants at least one byte");
    }
    if (o->prompt_count == MAX_PROMPTS) {
        fail(EXIT_INPUT, "--prompt: more than %d of them", MAX_PROMPTS);
    }
    o->prompts[o->prompt_count++] = text;
}

/* Defaults that depend on other options. */
static void set_defaults(options *o)
{
    if (o->config.steps == 0) {
        o->config.steps = o->compare ? COMPARED_STEPS : config_default.steps;
    }
    if (o->sample < 0 && !o->generate) {
        o->sample = SAMPLE_BYTES;
    }
    if (o->prompt_count == 0) {
        o->prompt_count =
            o->config.batch < DEFAULT_PROMPTS ? (int)o->config.batch : DEFAULT_PROMPTS;
        memcpy(o->prompts, default_prompts, sizeof default_prompts);
    }
}

static error_t parse_one(int key, char *text, struct argp_state *state)
{
    options *o = state->input;
    if (key >= KEY_CONFIG && key < KEY_CONFIG + CONFIG_FIELDS) {
        config_set(&o->config, &config_fields[key - KEY_CONFIG], text);
        return 0;
    }
    switch (key) {
    case KEY_ATTENTION:
        set_attention(o, text);
        return 0;
    case KEY_DEVICE:
        set_device(o, text);
        return 0;
    case KEY_OUT:
        o->out = text;
        return 0;
    case KEY_PREFIX:
        o->prefix = text;
        return 0;
    case KEY_PROMPT:
        add_prompt(o, text);
        return 0;
    case KEY_SAMPLE:
        o->sample = small_number("sample", text, 1 << 20);
        return 0;
    case KEY_THREADS:
        o->threads = small_number("threads", text, 1024);
        return 0;
    case KEY_SAVE:
        o->save_seconds = small_number("save", text, 86400);
        return 0;
    case KEY_FRESH:
        o->fresh = true;
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case KEY_COMPARE:
        o->compare = true;
        return 0;
    case KEY_GENERATE:
        o->generate = true;
        return 0;
    case ARGP_KEY_ARGS:
        o->texts = state->argv + state->next;
        o->text_count = state->argc - state->next;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

options options_parse(int argc, char **argv)
{
    static struct argp_option all[CONFIG_FIELDS + sizeof own_options / sizeof own_options[0]];
    static char help[CONFIG_FIELDS][96];
    options o = {.config = config_default,
                 .on = &device_cpu,
                 .texts = default_texts,
                 .text_count = 1,
                 .out = "train_gpt.out",
                 .sample = -1,
                 .save_seconds = 5};
    o.config.steps = 0;
    for (int i = 0; i < CONFIG_FIELDS; i++) {
        const config_field *f = &config_fields[i];
        snprintf(help[i], sizeof help[i], "%s (default %g)", f->help,
                 config_value(&config_default, f));
        all[i] = (struct argp_option){f->name, KEY_CONFIG + i, f->type, 0, help[i], 0};
    }
    memcpy(all + CONFIG_FIELDS, own_options, sizeof own_options);
    const struct argp argp = {
        all,
        parse_one,
        "[TEXT ...]",
        "Trains a small GPT on the bytes of files and directories (default: the licences in "
        "/usr/share/common-licenses), with libattn's attention, forward and backward.",
        NULL,
        NULL,
        NULL};
    argp_err_exit_status = EXIT_INPUT;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    set_defaults(&o);
    config_check(&o.config);
    if (o.on != &device_cpu && o.generate) {
        fail(EXIT_INPUT, "--generate computes on the CPU: leave out --device, it loads the same "
                         "checkpoint");
    }
    if (o.on != &device_cpu && o.config.dropout > 0 &&
        (o.compare || o.config.attention == ATTENTION_STANDARD)) {
        fail(EXIT_INPUT, "standard attention has no --dropout with --device=cuda");
    }
    return o;
}
