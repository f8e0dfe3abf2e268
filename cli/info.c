/*
 * info.c: `attn info`: the library, this machine, and what the one runs on the other.
 */
#include "cli.h"

#include <stdio.h>

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "one JSON object", 0},
    {"cpu", 'c', "NAME", 0, "cap on the instruction set: scalar, avx2, avx512, neon, amx", 0},
    {"threads", 't', "T", 0, "threads (default: one per core)", 0},
    {0},
};

struct choice {
    bool json;
    attn_context_config config;
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct choice *c = state->input;
    switch (key) {
    case 'j':
        c->json = true;
        return 0;
    case 'c':
        c->config.cpu = text;
        return 0;
    case 't':
        c->config.threads = (int32_t)cli_integer("threads", text, 0, 1 << 20);
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

static void print_json(const attn_info *info)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "version", info->version);
    cJSON_AddStringToObject(o, "build", info->build);
    cJSON_AddStringToObject(o, "cpu_features", info->cpu_features);
    cJSON_AddStringToObject(o, "cpu_table", info->cpu_table);
    cJSON_AddStringToObject(o, "cpu_tables", info->cpu_tables);
    cJSON_AddNumberToObject(o, "threads", info->threads);
    cJSON_AddNumberToObject(o, "l1d_bytes", (double)info->l1d_bytes);
    cJSON_AddNumberToObject(o, "l2_bytes", (double)info->l2_bytes);
    cJSON_AddNumberToObject(o, "l3_bytes", (double)info->l3_bytes);
    cli_print_json(o);
}

static const char *cache(cli_text text, int64_t bytes)
{
    return bytes > 0 ? cli_bytes(text, (double)bytes) : "unknown";
}

static void print_text(const attn_info *info)
{
    cli_text l1d, l2, l3;
    printf("libattn       %s (%s)\n", info->version, info->build);
    printf("CPU features  %s\n", info->cpu_features[0] != '\0' ? info->cpu_features : "none that libattn looks for");
    printf("kernel table  %s (this machine can run: %s)\n", info->cpu_table, info->cpu_tables);
    printf("threads       %d\n", info->threads);
    printf("caches        L1d %s, L2 %s, L3 %s\n", cache(l1d, info->l1d_bytes), cache(l2, info->l2_bytes),
           cache(l3, info->l3_bytes));
}

int cli_info(int argc, char **argv)
{
    static const char doc[] = "Prints version, CPU features, kernels and caches.\v"
                              "Examples:\n  attn info\n  attn info --json\n  ATTN_CPU=scalar attn info";
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct choice choice = {.config = {.struct_size = sizeof choice.config}};
    attn_context *context = NULL;
    attn_info info = {.struct_size = sizeof info};
    cli_parse(&argp, argc, argv, &choice);
    attn_status status = attn_context_create(&choice.config, &context);
    if (status == ATTN_OK) {
        status = attn_get_info(context, &info);
    }
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    choice.json ? print_json(&info) : print_text(&info);
    attn_context_destroy(context);
    return CLI_OK;
}
