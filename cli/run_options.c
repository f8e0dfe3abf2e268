/*
 * run_options.c: see run_options.h.
 */
#include "run_options.h"
#include "cli.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

const char *run_name(int tensor)
{
    return tensor < ARGS_TENSORS ? args_tensors[tensor].name
                                 : args_gradients[tensor - ARGS_TENSORS].name;
}

bool run_is_output(int tensor)
{
    return tensor < ARGS_TENSORS ? args_tensors[tensor].output
                                 : args_gradients[tensor - ARGS_TENSORS].output;
}

/* Keys of options: files by the number of their tensor, others from OTHER on. */
enum { FILE_KEY = 256, GRADIENT_KEY = FILE_KEY + ARGS_TENSORS, OTHER = FILE_KEY + RUN_TENSORS };
enum {
    CAUSAL = OTHER,
    TOP_LEFT,
    WINDOW_LEFT,
    WINDOW_RIGHT,
    SCALE,
    SOFTCAP,
    DROPOUT,
    DROPOUT_SEED,
    DROPOUT_OFFSET,
    LAYOUT,
    DTYPE,
    THREADS,
    CPU,
    CHECK,
    COMPARE,
    JSON
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Files: PATH.npy, PATH.safetensors or PATH.safetensors:NAME", 1},
    {"q", FILE_KEY + ARGS_Q, "FILE", 0,
     "queries; a .safetensors file with q, k, v stands for all three", 1},
    {"k", FILE_KEY + ARGS_K, "FILE", 0, "keys", 1},
    {"v", FILE_KEY + ARGS_V, "FILE", 0, "values", 1},
    {"out", FILE_KEY + ARGS_O, "FILE", 0, "where O goes", 1},
    {"lse", FILE_KEY + ARGS_LSE, "FILE", 0, "where the logarithms of the rows' sums go", 1},
    {"row-max", FILE_KEY + ARGS_ROW_MAX, "FILE", 0, "where the rows' largest scores go", 1},
    {"layout", LAYOUT, "bshd|bhsd", 0, "order of the axes of q, k, v and o (default bshd)", 1},
    {"out-dtype", DTYPE, "TYPE", 0, "of O, dq, dk, dv: that of q (the default) or f32", 1},
    {NULL, 0, NULL, 0, "Scores", 2},
    {"causal", CAUSAL, NULL, 0, "key j is visible to query i if j <= i + Nk - Nq", 2},
    {"top-left", TOP_LEFT, NULL, 0, "causal: if j <= i instead; also for windows and ALiBi", 2},
    {"window-left", WINDOW_LEFT, "L", 0, "keys from i + Nk - Nq - L on (negative: all)", 2},
    {"window-right", WINDOW_RIGHT, "R", 0, "keys up to i + Nk - Nq + R (negative: all)", 2},
    {"scale", SCALE, "X", 0, "instead of 1/sqrt(d)", 2},
    {"softcap", SOFTCAP, "X", 0, "s = X tanh(s / X)", 2},
    {"dropout", DROPOUT, "P", 0, "probability with which a probability is dropped", 2},
    {"dropout-seed", DROPOUT_SEED, "N", 0, "seed of the numbers that choose (default 0)", 2},
    {"dropout-offset", DROPOUT_OFFSET, "N", 0,
     "where the stream of these numbers begins (default 0)", 2},
    {"mask", FILE_KEY + ARGS_MASK, "FILE", 0,
     "bool (b, h, q, k), true = visible; axes of 1 broadcast", 2},
    {"bias", FILE_KEY + ARGS_BIAS, "FILE", 0, "added to the scores, same axes; -inf masks", 2},
    {"alibi", FILE_KEY + ARGS_ALIBI, "FILE", 0, "slopes (h) or (b, h)", 2},
    {"sinks", FILE_KEY + ARGS_SINKS, "FILE", 0,
     "scores of one more key without a value, (h) or (b, h)", 2},
    {NULL, 0, NULL, 0, "Lengths and origins: i32 or i64", 3},
    {"cu-seqlens-q", FILE_KEY + ARGS_CU_Q, "FILE", 0,
     "q as (total, h, d): where each sequence begins, and the end", 3},
    {"cu-seqlens-k", FILE_KEY + ARGS_CU_K, "FILE", 0,
     "k and v as (total, h, d): where each sequence begins, and the end", 3},
    {"seqused-q", FILE_KEY + ARGS_USED_Q, "FILE", 0, "rows in use of each sequence", 3},
    {"seqused-k", FILE_KEY + ARGS_USED_K, "FILE", 0, "keys in use of each sequence", 3},
    {"q-origin", FILE_KEY + ARGS_ORIGIN_Q, "FILE", 0,
     "position of the first query: one, or one for each sequence", 3},
    {"k-origin", FILE_KEY + ARGS_ORIGIN_K, "FILE", 0,
     "position of the first key: one, or one for each sequence", 3},
    {NULL, 0, NULL, 0, "Gradients: with one of the outputs the backward pass runs, too", 4},
    {"d-o", GRADIENT_KEY + ARGS_D_O, "FILE", 0, "the loss's gradient by O, an input; needed", 4},
    {"d-lse", GRADIENT_KEY + ARGS_D_LSE, "FILE", 0, "the loss's gradient by LSE, an input", 4},
    {"dq", GRADIENT_KEY + ARGS_DQ, "FILE", 0, "where the gradient of q goes", 4},
    {"dk", GRADIENT_KEY + ARGS_DK, "FILE", 0, "where the gradient of k goes", 4},
    {"dv", GRADIENT_KEY + ARGS_DV, "FILE", 0, "where the gradient of v goes", 4},
    {"d-bias", GRADIENT_KEY + ARGS_D_BIAS, "FILE", 0, "where the gradient of the bias goes", 4},
    {"d-alibi", GRADIENT_KEY + ARGS_D_ALIBI, "FILE", 0, "where the gradient of the slopes goes", 4},
    {"d-sinks", GRADIENT_KEY + ARGS_D_SINKS, "FILE", 0, "where the gradient of the sinks goes", 4},
    {NULL, 0, NULL, 0, "Running", 5},
    {"threads", THREADS, "T", 0, "default: one per core", 5},
    {"cpu", CPU, "NAME", 0,
     "cap on the instruction set: scalar, avx2, avx512, avx512bf16, neon, neonbf16, amx", 5},
    {"check", CHECK, NULL, 0, "compare with float64; exit status 1 beyond the error bound", 5},
    {"compare", COMPARE, NULL, 0, "also time standard attention with OpenBLAS, forward", 5},
    {"json", JSON, NULL, 0, "tell as a JSON object", 5},
    {0},
};

static const char doc[] =
    "Computes O = softmax(scale Q K^T + mask) V tile by tile, without the matrix of scores, from "
    "arrays in files.\v"
    "Arrays of q, k and v have axes (b, s, h, d), (s, h, d) or (s, d), with --layout bhsd (b, h, "
    "s, d) or (h, s, d), "
    "in "
    "f64, f32, f16 or bf16. o gets the axes of q. Masks and biases with fewer than four axes "
    "broadcast as NumPy's. An "
    "output file appears whole or not at all; outputs may share a .safetensors file.\n"
    "\n"
    "Examples:\n"
    "  attn run --q samples/minilm.safetensors --out o.npy --check\n"
    "  attn run --q q.npy --k k.npy --v v.npy --out o.npy --causal --layout bhsd\n"
    "  attn run --q x.safetensors --d-o x.safetensors --causal --check \\\n"
    "    --dq g.safetensors --dk g.safetensors --dv g.safetensors\n"
    "  attn run --q x.safetensors:layers.0.q --k x.safetensors:layers.0.k \\\n"
    "    --v x.safetensors:layers.0.v --out y.safetensors --lse y.safetensors";

static int32_t parse_dtype(const char *text)
{
    static const char *const names[] = {"f64", "f32", "f16", "bf16"};
    static const int32_t dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            return dtypes[i];
        }
    }
    exit(cli_error(CLI_USAGE, "--out-dtype=%s is none of f64, f32, f16, bf16", text));
}

static bool parse_layout(const char *text)
{
    if (strcmp(text, "bshd") != 0 && strcmp(text, "bhsd") != 0) {
        exit(cli_error(CLI_USAGE, "--layout=%s is neither bshd nor bhsd", text));
    }
    return strcmp(text, "bhsd") == 0;
}

static error_t parse_scores(int key, const char *text, attn_forward_args *args)
{
    switch (key) {
    case CAUSAL:
        args->flags |= ATTN_CAUSAL;
        return 0;
    case TOP_LEFT:
        args->flags |= ATTN_TOP_LEFT;
        return 0;
    case WINDOW_LEFT:
        args->flags |= ATTN_WINDOW;
        args->window_left = cli_integer("window-left", text, INT64_MIN, INT64_MAX);
        return 0;
    case WINDOW_RIGHT:
        args->flags |= ATTN_WINDOW;
        args->window_right = cli_integer("window-right", text, INT64_MIN, INT64_MAX);
        return 0;
    case SCALE:
        args->flags |= ATTN_SCALE;
        args->softmax_scale = cli_real("scale", text, -DBL_MAX, DBL_MAX);
        return 0;
    case SOFTCAP:
        args->softcap = cli_real("softcap", text, 0, DBL_MAX);
        return 0;
    case DROPOUT:
        args->dropout_p = cli_real("dropout", text, 0, 1);
        return 0;
    case DROPOUT_SEED:
        args->dropout_seed = (uint64_t)cli_integer("dropout-seed", text, 0, INT64_MAX);
        return 0;
    case DROPOUT_OFFSET:
        args->dropout_offset = (uint64_t)cli_integer("dropout-offset", text, 0, INT64_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void parse_file(run_options *chosen, int tensor, const char *text)
{
    const char **spec = run_is_output(tensor) ? &chosen->output[tensor] : &chosen->input[tensor];
    if (*spec != NULL) {
        exit(cli_error(CLI_USAGE, "two files for %s: \"%s\" and \"%s\"", run_name(tensor), *spec,
                       text));
    }
    *spec = text;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    run_options *chosen = state->input;
    if (key >= FILE_KEY && key < OTHER) {
        parse_file(chosen, key - FILE_KEY, text);
        return 0;
    }
    switch (key) {
    case LAYOUT:
        chosen->layout = text;
        chosen->bhsd = parse_layout(text);
        return 0;
    case DTYPE:
        chosen->out_dtype = parse_dtype(text);
        return 0;
    case THREADS:
        chosen->config.threads = (int32_t)cli_integer("threads", text, 0, 1 << 20);
        return 0;
    case CPU:
        chosen->config.cpu = text;
        return 0;
    case CHECK:
        chosen->check = true;
        return 0;
    case COMPARE:
        chosen->compare = true;
        return 0;
    case JSON:
        chosen->json = true;
        return 0;
    default:
        return parse_scores(key, text, &chosen->args) == 0 ? 0 : cli_parse_other(key, text, state);
    }
}

void run_parse(int argc, char **argv, run_options *chosen)
{
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    *chosen = (run_options){.config.struct_size = sizeof chosen->config};
    chosen->args = (attn_forward_args){
        .struct_size = sizeof chosen->args, .window_left = -1, .window_right = -1};
    cli_parse(&argp, argc, argv, chosen);
    if (!(chosen->args.flags & ATTN_WINDOW)) {
        chosen->args.window_left = chosen->args.window_right = 0;
    }
    for (int i = ARGS_TENSORS; i < RUN_TENSORS; i++) {
        chosen->backward |= chosen->output[i] != NULL;
    }
}
