/*
 * model.c: see model.h. Memory and initial weights come first, then the passes.
 */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "matmul.h"
#include "random.h"

/* ---- Parameters ------------------------------------------------------------------------------ */

static void add_tensor(model *m, int64_t count, double deviation, double start, bool decays)
{
    m->tensor[m->tensors++] = (tensor){m->count, count, deviation, start, decays};
    m->count += count;
}

/* Products keep about the size of their inputs; less where 2 * layers of them add up in the
 * residual stream. */
static void lay_out_parameters(model *m)
{
    int64_t width = m->width;
    double deviation = 1 / sqrt(2.0 * m->width), summed = deviation / sqrt(2.0 * m->layers);
    m->tensor = allocate((size_t)(BLOCK_TENSORS + PER_BLOCK * m->layers), sizeof *m->tensor);
    add_tensor(m, VOCABULARY * width, deviation, 0, true);
    add_tensor(m, m->context * width, deviation, 0, true);
    add_tensor(m, width, 0, 1, false);
    add_tensor(m, width, 0, 0, false);
    for (int l = 0; l < m->layers; l++) {
        add_tensor(m, width, 0, 1, false);
        add_tensor(m, width, 0, 0, false);
        add_tensor(m, width * 3 * width, deviation, 0, true);
        add_tensor(m, width * width, summed, 0, true);
        add_tensor(m, width, 0, 1, false);
        add_tensor(m, width, 0, 0, false);
        add_tensor(m, width * 4 * width, deviation, 0, true);
        add_tensor(m, 4 * width * width, summed, 0, true);
    }
}

static void draw_parameters(model *m, uint64_t seed)
{
    uint64_t state = seed;
    for (const tensor *t = m->tensor; t < m->tensor + m->tensors; t++) {
        for (int64_t i = t->at; i < t->at + t->count; i++) {
            m->parameters[i] =
                (real)(t->deviation > 0 ? t->deviation * random_normal(&state) : t->start);
        }
    }
}

static real *part(const model *m, real *of, int which)
{
    return of + m->tensor[which].at;
}

static real *block_part(const model *m, real *of, int layer, int which)
{
    return part(m, of, BLOCK_TENSORS + PER_BLOCK * layer + which);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Takes the next `count` numbers at *free; with memory = NULL only counts them. */
static real *take(real *memory, int64_t *used, int64_t count)
{
    real *taken = memory == NULL ? NULL : memory + *used;
    *used += count;
    return taken;
}

static int64_t lay_out_activations(model *m, real *memory)
{
    int64_t used = 0, rows = (int64_t)m->batch * m->context, stream = rows * m->width;
    for (block_state *b = m->blocks; b < m->blocks + m->layers; b++) {
        b->in = take(memory, &used, stream);
        b->normed1 = take(memory, &used, stream);
        b->stats1 = (real(*)[2])take(memory, &used, 2 * rows);
        b->qkv = take(memory, &used, 3 * stream);
        b->mixed = take(memory, &used, stream);
        b->middle = take(memory, &used, stream);
        b->normed2 = take(memory, &used, stream);
        b->stats2 = (real(*)[2])take(memory, &used, 2 * rows);
        b->hidden = take(memory, &used, 4 * stream);
        b->active = take(memory, &used, 4 * stream);
    }
    m->out = take(memory, &used, stream);
    m->normed = take(memory, &used, stream);
    m->stats = (real(*)[2])take(memory, &used, 2 * rows);
    m->logits = take(memory, &used, rows * VOCABULARY);
    m->d_stream = take(memory, &used, stream);
    m->d_narrow = take(memory, &used, stream);
    m->d_wide = take(memory, &used, 4 * stream);
    return used;
}

model *model_new(const config *c)
{
    model *m = allocate(1, sizeof *m);
    *m = (model){.layers = (int)c->layers,
                 .width = (int)c->width,
                 .heads = (int)c->heads,
                 .context = (int)c->context,
                 .batch = (int)c->batch};
    lay_out_parameters(m);
    m->parameters = allocate((size_t)m->count, sizeof(real));
    m->gradients = allocate((size_t)m->count, sizeof(real));
    draw_parameters(m, (uint64_t)c->seed);
    m->blocks = allocate((size_t)m->layers, sizeof *m->blocks);
    m->memory = allocate((size_t)lay_out_activations(m, NULL), sizeof(real));
    lay_out_activations(m, m->memory);
    m->losses = allocate((size_t)m->batch * (size_t)m->context, sizeof *m->losses);
    m->attention =
        attention_new((enum attention_kind)c->attention, m->layers,
                      (attention_shape){m->batch, m->context, m->heads, m->width / m->heads});
    return m;
}

void model_delete(model *m)
{
    attention_delete(m->attention);
    free(m->losses);
    free(m->memory);
    free(m->blocks);
    free(m->gradients);
    free(m->parameters);
    free(m->tensor);
    free(m);
}

/* ---- Passes ---------------------------------------------------------------------------------- */

uint64_t model_dropout_stride(const model *m)
{
    return (uint64_t)m->layers * (uint64_t)m->batch * (uint64_t)m->heads;
}

static attention_dropout layer_dropout(const model *m, attention_dropout d, int layer)
{
    d.offset += (uint64_t)layer * (uint64_t)m->batch * (uint64_t)m->heads;
    return d;
}

static void block_forward(model *m, int layer, attention_shape shape, attention_dropout dropout,
                          real *out)
{
    block_state *b = &m->blocks[layer];
    real *p = m->parameters;
    int rows = shape.batch * shape.length, width = m->width;
    size_t bytes = (size_t)rows * (size_t)width * sizeof(real);
    norm_forward(rows, width, b->in, block_part(m, p, layer, GAIN_1),
                 block_part(m, p, layer, BIAS_1), b->normed1, b->stats1);
    linear_forward(rows, width, 3 * width, b->normed1, block_part(m, p, layer, QKV), b->qkv);
    attention_forward(m->attention, layer, shape, layer_dropout(m, dropout, layer), b->qkv,
                      b->mixed);
    memcpy(b->middle, b->in, bytes);
    linear_forward_add(rows, width, width, b->mixed, block_part(m, p, layer, PROJECT), b->middle);
    norm_forward(rows, width, b->middle, block_part(m, p, layer, GAIN_2),
                 block_part(m, p, layer, BIAS_2), b->normed2, b->stats2);
    linear_forward(rows, width, 4 * width, b->normed2, block_part(m, p, layer, UP), b->hidden);
    gelu_forward((int64_t)rows * 4 * width, b->hidden, b->active);
    memcpy(out, b->middle, bytes);
    linear_forward_add(rows, 4 * width, width, b->active, block_part(m, p, layer, DOWN), out);
}

static attention_shape shape_of(const model *m, tokens t)
{
    return (attention_shape){t.batch, t.length, m->heads, m->width / m->heads};
}

void model_forward(model *m, tokens t, attention_dropout dropout)
{
    real *p = m->parameters;
    int rows = t.batch * t.length;
    embed_forward(rows, t.length, m->width, t.input, part(m, p, TOKEN), part(m, p, POSITION),
                  m->blocks[0].in);
    for (int l = 0; l < m->layers; l++) {
        block_forward(m, l, shape_of(m, t), dropout,
                      l + 1 < m->layers ? m->blocks[l + 1].in : m->out);
    }
    norm_forward(rows, m->width, m->out, part(m, p, LAST_GAIN), part(m, p, LAST_BIAS), m->normed,
                 m->stats);
    matmul(rows, VOCABULARY, m->width, matrix_rows(m->normed, m->width),
           transposed(matrix_rows(part(m, p, TOKEN), m->width)), matrix_rows(m->logits, VOCABULARY),
           false);
}

/* d_stream: from the gradient by the block's output to the gradient by its input. */
static void block_backward(model *m, int layer, attention_shape shape, attention_dropout dropout)
{
    block_state *b = &m->blocks[layer];
    real *p = m->parameters, *g = m->gradients;
    int rows = shape.batch * shape.length, width = m->width;
    linear_backward(rows, 4 * width, width, b->active, block_part(m, p, layer, DOWN), m->d_stream,
                    m->d_wide, block_part(m, g, layer, DOWN));
    gelu_backward((int64_t)rows * 4 * width, b->hidden, m->d_wide);
    linear_backward(rows, width, 4 * width, b->normed2, block_part(m, p, layer, UP), m->d_wide,
                    m->d_narrow, block_part(m, g, layer, UP));
    norm_backward(rows, width, b->middle, block_part(m, p, layer, GAIN_2), b->stats2, m->d_narrow,
                  m->d_stream, block_part(m, g, layer, GAIN_2), block_part(m, g, layer, BIAS_2));
    linear_backward(rows, width, width, b->mixed, block_part(m, p, layer, PROJECT), m->d_stream,
                    m->d_narrow, block_part(m, g, layer, PROJECT));
    attention_backward(m->attention, layer, shape, layer_dropout(m, dropout, layer), b->qkv,
                       b->mixed, m->d_narrow, m->d_wide);
    linear_backward(rows, width, 3 * width, b->normed1, block_part(m, p, layer, QKV), m->d_wide,
                    m->d_narrow, block_part(m, g, layer, QKV));
    norm_backward(rows, width, b->in, block_part(m, p, layer, GAIN_1), b->stats1, m->d_narrow,
                  m->d_stream, block_part(m, g, layer, GAIN_1), block_part(m, g, layer, BIAS_1));
}

/* logits = normed token^T */
static void head_backward(model *m, int rows)
{
    int width = m->width;
    real *token = part(m, m->parameters, TOKEN), *d_token = part(m, m->gradients, TOKEN);
    matrix d_logits = matrix_rows(m->logits, VOCABULARY);
    matmul(rows, width, VOCABULARY, d_logits, matrix_rows(token, width),
           matrix_rows(m->d_narrow, width), false);
    matmul(VOCABULARY, width, rows, transposed(d_logits), matrix_rows(m->normed, width),
           matrix_rows(d_token, width), true);
    memset(m->d_stream, 0, (size_t)rows * (size_t)width * sizeof(real));
    norm_backward(rows, width, m->out, part(m, m->parameters, LAST_GAIN), m->stats, m->d_narrow,
                  m->d_stream, part(m, m->gradients, LAST_GAIN), part(m, m->gradients, LAST_BIAS));
}

double model_backward(model *m, tokens t, attention_dropout dropout)
{
    int rows = t.batch * t.length;
    memset(m->gradients, 0, (size_t)m->count * sizeof(real));
    double loss = cross_entropy(rows, t.target, m->logits, m->losses);
    head_backward(m, rows);
    for (int l = m->layers - 1; l >= 0; l--) {
        block_backward(m, l, shape_of(m, t), dropout);
    }
    embed_backward(rows, t.length, m->width, t.input, m->d_stream, part(m, m->gradients, TOKEN),
                   part(m, m->gradients, POSITION));
    return loss;
}

double model_loss(model *m, tokens t)
{
    model_forward(m, t, (attention_dropout){0});
    return cross_entropy(t.batch * t.length, t.target, m->logits, m->losses);
}
