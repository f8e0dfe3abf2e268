/*
 * info.c: `attn info`: the library, this machine and its GPUs, and the kernels that run on them.
 */
#include "cli.h"
#include "style.h"
#include "gpu.h"
#include "commands.h"

#include <stdio.h>

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "one JSON object", 0},
    {"cpu", 'c', "NAME", 0,
     "cap on the instruction set: scalar, avx2, avx512, avx512bf16, neon, neonbf16, amx", 0},
    {"threads", 't', "T", 0, "threads (default: one per core)", 0},
    {"device", 'd', "NAME", 0,
     "cpu or cuda: no word about the other; exit status 2 if that GPU cannot be used", 0},
    {0},
};

struct choice {
    bool json, cpu, cuda;
    attn_context_config config;
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct choice *choice = state->input;
    switch (key) {
    case 'j':
        choice->json = true;
        return 0;
    case 'c':
        choice->config.cpu = text;
        return 0;
    case 't':
        choice->config.threads = (int32_t)cli_integer("threads", text, 0, 1 << 20);
        return 0;
    case 'd':
        choice->cuda = cli_device(text) == ATTN_DEVICE_CUDA;
        choice->cpu = !choice->cuda;
        return 0;
    default:
        return cli_parse_other(key, text, state);
    }
}

/* ---- This CPU -------------------------------------------------------------------------------- */

static void add_cpu(cJSON *o, const attn_info *info)
{
    cJSON_AddStringToObject(o, "cpu_features", info->cpu_features);
    cJSON_AddStringToObject(o, "cpu_table", info->cpu_table);
    cJSON_AddStringToObject(o, "cpu_tables", info->cpu_tables);
    cJSON_AddNumberToObject(o, "threads", info->threads);
    cJSON_AddNumberToObject(o, "l1d_bytes", (double)info->l1d_bytes);
    cJSON_AddNumberToObject(o, "l2_bytes", (double)info->l2_bytes);
    cJSON_AddNumberToObject(o, "l3_bytes", (double)info->l3_bytes);
}

static const char *cache(cli_text text, int64_t bytes)
{
    return bytes > 0 ? cli_bytes(text, (double)bytes) : "unknown";
}

static void print_cpu(const attn_info *info)
{
    cli_text l1d, l2, l3;
    cli_fact("CPU features  ", "%s",
             info->cpu_features[0] != '\0' ? info->cpu_features : "none that libattn looks for");
    cli_fact("kernel table  ", "%s (this machine can run: %s)", info->cpu_table, info->cpu_tables);
    cli_fact("threads       ", "%d", info->threads);
    cli_fact("caches        ", "L1d %s, L2 %s, L3 %s", cache(l1d, info->l1d_bytes),
             cache(l2, info->l2_bytes), cache(l3, info->l3_bytes));
}

/* ---- Its GPUs -------------------------------------------------------------------------------- */

/* The GPUs of this machine. "" or the reason why libattn uses none of them. */
struct gpus {
    int count, driver;
    char refused[256];
};

static struct gpus find_gpus(void)
{
    struct gpus g = {.refused = ""};
    attn_context *context;
    g.count = gpu_count(&g.driver);
    if (cli_gpu_context(&context) != ATTN_OK) {
        snprintf(g.refused, sizeof g.refused, "%s", attn_last_error());
    }
    attn_context_destroy(context);
    return g;
}

static void add_gpus(cJSON *o, const struct gpus *g)
{
    cJSON *list = cJSON_AddArrayToObject(o, "gpus");
    for (int i = 0; i < g->count; i++) {
        gpu_properties found;
        cJSON *gpu = cJSON_CreateObject();
        gpu_describe(i, &found);
        cJSON_AddStringToObject(gpu, "name", found.name);
        cJSON_AddNumberToObject(gpu, "capability", 10 * found.major + found.minor);
        cJSON_AddNumberToObject(gpu, "multiprocessors", found.multiprocessors);
        cJSON_AddNumberToObject(gpu, "memory_bytes", (double)found.memory_bytes);
        cJSON_AddNumberToObject(gpu, "l2_bytes", found.l2_bytes);
        cJSON_AddItemToArray(list, gpu);
    }
    g->count > 0 ? cJSON_AddNumberToObject(o, "cuda_driver", g->driver) : NULL;
    g->refused[0] != '\0' ? cJSON_AddStringToObject(o, "gpu_refused", g->refused) : NULL;
}

static void print_gpus(const struct gpus *g)
{
    for (int i = 0; i < g->count; i++) {
        cli_text memory, l2;
        gpu_properties gpu;
        gpu_describe(i, &gpu);
        char label[32];
        snprintf(label, sizeof label, "GPU %-10d", i);
        cli_fact(label, "%s, sm_%d%d, %d multiprocessors, %s, L2 %s, CUDA driver %d.%d", gpu.name,
                 gpu.major, gpu.minor, gpu.multiprocessors,
                 cli_bytes(memory, (double)gpu.memory_bytes), cli_bytes(l2, gpu.l2_bytes),
                 g->driver / 1000, g->driver % 1000 / 10);
    }
    if (g->refused[0] != '\0') {
        cli_fact("GPU           ", "%s: %s", g->count > 0 ? "not used" : "none", g->refused);
    }
}

/* ---- The command line ------------------------------------------------------------------------ */

static void print_json(const struct choice *choice, const attn_info *info, const struct gpus *g)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "version", info->version);
    cJSON_AddStringToObject(o, "build", info->build);
    if (!choice->cuda) {
        add_cpu(o, info);
    }
    if (!choice->cpu) {
        add_gpus(o, g);
    }
    cli_print_json(o);
}

static void print_text(const struct choice *choice, const attn_info *info, const struct gpus *g)
{
    cli_fact("libattn       ", "%s (%s)", info->version, info->build);
    if (!choice->cuda) {
        print_cpu(info);
    }
    if (!choice->cpu) {
        print_gpus(g);
    }
}

int cli_info(int argc, char **argv)
{
    static const char doc[] =
        "Prints version, CPU features, kernels, caches and GPUs.\v"
        "Examples:\n  attn info\n  attn info --json\n  attn info --device cuda\n  ATTN_CPU=scalar "
        "attn info";
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct choice choice = {.config = {.struct_size = sizeof choice.config}};
    attn_context *context = NULL;
    attn_info info = {.struct_size = sizeof info};
    struct gpus gpus = {.refused = ""};
    cli_parse(&argp, argc, argv, &choice);
    attn_status status = attn_context_create(&choice.config, &context);
    if (status == ATTN_OK) {
        status = attn_get_info(context, &info);
    }
    if (status != ATTN_OK) {
        return cli_status_error(status);
    }
    if (!choice.cpu) {
        gpus = find_gpus();
    }
    const bool refused = choice.cuda && gpus.refused[0] != '\0';
    if (!refused) {
        choice.json ? print_json(&choice, &info, &gpus) : print_text(&choice, &info, &gpus);
    }
    attn_context_destroy(context);
    return refused ? cli_error(CLI_USAGE, "%s", gpus.refused) : CLI_OK;
}
