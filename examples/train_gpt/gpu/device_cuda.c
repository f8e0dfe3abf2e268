/*
 * device_cuda.c: GPU 0 as a device: its memory, and operations as launches of kernels.
 */
#include <math.h>
#include <stdlib.h>

#include "fail.h"
#include "launch.h"

/* ---- Memory ---------------------------------------------------------------------------------- */

static attn_context *context(void)
{
    attn_context *made;
    const attn_context_config config = {.struct_size = sizeof config, .device = ATTN_DEVICE_CUDA};
    if (attn_context_create(&config, &made) != ATTN_OK) {
        fail(EXIT_INPUT, "--device=cuda: %s", attn_last_error());
    }
    return made;
}

static void *zeroed(size_t count, size_t size)
{
    const size_t bytes = (count * size + 3) / 4 * 4;
    void *memory = gpu_alloc(bytes);
    gpu_clear(memory, bytes);
    return memory;
}

static void release(void *memory)
{
    if (memory != NULL) {
        gpu_free(memory);
    }
}

static double free_bytes(void)
{
    return (double)gpu_free_bytes();
}

/* Adds numbers of the GPU in their order. */
static double sum(const double *from, size_t count)
{
    double *here = allocate(count, sizeof *here), total = 0;
    gpu_get(here, from, count * sizeof *here);
    for (size_t i = 0; i < count; i++) {
        total += here[i];
    }
    free(here);
    return total;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static void forward_embed(int rows, int length, int width, const uint8_t *tokens,
                          const int64_t *first, const real *token, const real *position, real *out)
{
    (void)first; /* NULL: caches are the CPU's */
    launch(KERNEL_embed_forward, launch_threads((int64_t)rows * width),
           &(embed_args){.rows = rows,
                         .length = length,
                         .width = width,
                         .tokens = tokens,
                         .token = token,
                         .position = position,
                         .out = out});
}

static void backward_embed(int rows, int length, int width, const uint8_t *tokens,
                           const real *d_out, real *d_token, real *d_position)
{
    const embed_args args = {.rows = rows,
                             .length = length,
                             .width = width,
                             .tokens = tokens,
                             .d_out = d_out,
                             .d_token = d_token,
                             .d_position = d_position};
    launch(KERNEL_embed_backward_tokens, (gpu_grid){VOCABULARY, 1, 1, GPT_THREADS}, &args);
    launch(KERNEL_embed_backward_positions, launch_threads((int64_t)length * width), &args);
}

static void forward_norm(int rows, int width, const real *x, const real *gain, const real *bias,
                         real *out, real (*stats)[2])
{
    launch(KERNEL_norm_forward, launch_threads(32 * (int64_t)rows),
           &(norm_args){.rows = rows,
                        .width = width,
                        .x = x,
                        .gain = gain,
                        .bias = bias,
                        .stats = stats,
                        .out = out});
}

static void backward_norm(int rows, int width, const real *x, const real *gain,
                          const real (*stats)[2], const real *d_out, real *d_x, real *d_gain,
                          real *d_bias)
{
    const norm_args args = {.rows = rows,
                            .width = width,
                            .x = x,
                            .gain = gain,
                            .d_out = d_out,
                            .stats = (real(*)[2])stats,
                            .d_x = d_x,
                            .d_gain = d_gain,
                            .d_bias = d_bias};
    launch(KERNEL_norm_backward_rows, launch_threads(32 * (int64_t)rows), &args);
    launch(KERNEL_norm_backward_columns,
           (gpu_grid){(unsigned)(width + 31) / 32, 1, 1, 32 * GPT_COLUMN_WARPS}, &args);
}

static gpu_matrix only(matrix m)
{
    return (gpu_matrix){m.data, m.row, m.column, 0, 0};
}

static void multiply(int m, int n, int k, matrix a, matrix b, matrix c, bool add)
{
    launch_products(1, (matmul_args){.m = m,
                                     .n = n,
                                     .k = k,
                                     .heads = 1,
                                     .add = add,
                                     .a = only(a),
                                     .b = only(b),
                                     .c = only(c)});
}

static void forward_gelu(int64_t count, const real *x, real *out)
{
    launch(KERNEL_gelu_forward, launch_threads(count), &(gelu_args){count, x, out});
}

static void backward_gelu(int64_t count, const real *x, real *d)
{
    launch(KERNEL_gelu_backward, launch_threads(count), &(gelu_args){count, x, d});
}

static double loss(int rows, const uint8_t *targets, real *logits, double *losses)
{
    launch(KERNEL_cross_entropy, launch_threads(32 * (int64_t)rows),
           &(loss_args){rows, targets, logits, losses});
    return sum(losses, (size_t)rows) / rows;
}

/* ---- Optimiser ------------------------------------------------------------------------------- */

static double size_of(int64_t count, const real *x)
{
    double *sums = launch_scratch(GPT_SUMS * sizeof *sums);
    launch(KERNEL_squares, (gpu_grid){GPT_SUMS, 1, 1, GPT_THREADS},
           &(squares_args){count, x, sums});
    return sqrt(sum(sums, GPT_SUMS));
}

static void update(int64_t count, const adamw_rule *rule, const real *gradient, real *mean,
                   real *square, real *parameter)
{
    launch(KERNEL_adamw, launch_threads(count),
           &(adamw_args){count, *rule, gradient, mean, square, parameter});
}

/* ---- The table ------------------------------------------------------------------------------- */

const device *device_cuda(void)
{
    static gpu_properties properties;
    static const device cuda = {
        .name = properties.name,
        .context = context,
        .allocate = zeroed,
        .release = release,
        .put = gpu_put,
        .get = gpu_get,
        .copy = gpu_move,
        .clear = gpu_clear,
        .free_bytes = free_bytes,
        .wait = gpu_wait,
        .embed_forward = forward_embed,
        .embed_backward = backward_embed,
        .norm_forward = forward_norm,
        .norm_backward = backward_norm,
        .matmul = multiply,
        .gelu_forward = forward_gelu,
        .gelu_backward = backward_gelu,
        .cross_entropy = loss,
        .magnitude = size_of,
        .adamw = update,
        .standard_scratch_bytes = cuda_standard_scratch_bytes,
        .standard_forward = cuda_standard_forward,
        .standard_backward = cuda_standard_backward,
    };
    const char *missing = gpu_open();
    if (missing != NULL) {
        fail(EXIT_INPUT, "--device=cuda: %s", missing);
    }
    gpu_describe(0, &properties);
    launch_load();
    return &cuda;
}
