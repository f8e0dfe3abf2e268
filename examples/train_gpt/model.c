/*
 * model.c: see model.h. Memory and initial weights come first, then the passes.
 */
#include "model.h"

#include <stdlib.h>
#include <tgmath.h>

#include "fail.h"
#include "random.h"

/* ---- Parameters ------------------------------------------------------------------------------ */

static void add_tensor(gpt_model *model, int64_t count, double deviation, double start, bool decays)
{
    model->tensor[model->tensors++] = (tensor){model->count, count, deviation, start, decays};
    model->count += count;
}

/* Products keep about the size of their inputs; less where 2 * layers of them add up in the
 * residual stream. */
static void lay_out_parameters(gpt_model *model)
{
    int64_t width = model->width;
    double deviation = 1 / sqrt(2.0 * model->width), summed = deviation / sqrt(2.0 * model->layers);
    model->tensor =
        allocate((size_t)(BLOCK_TENSORS + PER_BLOCK * model->layers), sizeof *model->tensor);
    add_tensor(model, VOCABULARY * width, deviation, 0, true);
    add_tensor(model, model->context * width, deviation, 0, true);
    add_tensor(model, width, 0, 1, false);
    add_tensor(model, width, 0, 0, false);
    for (int l = 0; l < model->layers; l++) {
        add_tensor(model, width, 0, 1, false);
        add_tensor(model, width, 0, 0, false);
        add_tensor(model, width * 3 * width, deviation, 0, true);
        add_tensor(model, width * width, summed, 0, true);
        add_tensor(model, width, 0, 1, false);
        add_tensor(model, width, 0, 0, false);
        add_tensor(model, width * 4 * width, deviation, 0, true);
        add_tensor(model, 4 * width * width, summed, 0, true);
    }
}

static void draw_parameters(gpt_model *model, uint64_t seed)
{
    uint64_t state = seed;
    real *drawn = allocate((size_t)model->count, sizeof *drawn);
    for (const tensor *t = model->tensor; t < model->tensor + model->tensors; t++) {
        for (int64_t i = t->at; i < t->at + t->count; i++) {
            drawn[i] = (real)(t->deviation > 0 ? t->deviation * random_normal(&state) : t->start);
        }
    }
    model->on->put(model->parameters, drawn, (size_t)model->count * sizeof *drawn);
    free(drawn);
}

void model_nudge(gpt_model *model)
{
    const size_t bytes = (size_t)model->count * sizeof(real);
    real *moved = allocate(1, bytes);
    model->on->get(moved, model->parameters, bytes);
    for (int64_t i = 0; i < model->count; i++) {
        moved[i] = nextafter(moved[i], (real)INFINITY);
    }
    model->on->put(model->parameters, moved, bytes);
    free(moved);
}

static real *part(const gpt_model *model, real *of, int which)
{
    return of + model->tensor[which].at;
}

static real *block_part(const gpt_model *model, real *of, int layer, int which)
{
    return part(model, of, BLOCK_TENSORS + PER_BLOCK * layer + which);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Takes the next `count` numbers at *free; with memory = NULL only counts them. */
static real *take(real *memory, int64_t *used, int64_t count)
{
    real *taken = memory == NULL ? NULL : memory + *used;
    *used += count;
    return taken;
}

static int64_t lay_out_activations(gpt_model *model, real *memory)
{
    int64_t used = 0, rows = (int64_t)model->batch * model->context, stream = rows * model->width;
    for (block_state *state = model->blocks; state < model->blocks + model->layers; state++) {
        state->in = take(memory, &used, stream);
        state->normed1 = take(memory, &used, stream);
        state->stats1 = (real(*)[2])take(memory, &used, 2 * rows);
        state->qkv = take(memory, &used, 3 * stream);
        state->mixed = take(memory, &used, stream);
        state->middle = take(memory, &used, stream);
        state->normed2 = take(memory, &used, stream);
        state->stats2 = (real(*)[2])take(memory, &used, 2 * rows);
        state->hidden = take(memory, &used, 4 * stream);
        state->active = take(memory, &used, 4 * stream);
    }
    model->out = take(memory, &used, stream);
    model->normed = take(memory, &used, stream);
    model->stats = (real(*)[2])take(memory, &used, 2 * rows);
    model->logits = take(memory, &used, rows * VOCABULARY);
    model->d_stream = take(memory, &used, stream);
    model->d_narrow = take(memory, &used, stream);
    model->d_wide = take(memory, &used, 4 * stream);
    return used;
}

gpt_model *model_new(const device *on, const config *c)
{
    gpt_model *model = allocate(1, sizeof *model);
    *model = (gpt_model){.on = on,
                         .layers = (int)c->layers,
                         .width = (int)c->width,
                         .heads = (int)c->heads,
                         .context = (int)c->context,
                         .batch = (int)c->batch};
    lay_out_parameters(model);
    model->parameters = on->allocate((size_t)model->count, sizeof(real));
    model->gradients = on->allocate((size_t)model->count, sizeof(real));
    draw_parameters(model, (uint64_t)c->seed);
    model->blocks = allocate((size_t)model->layers, sizeof *model->blocks);
    model->memory = on->allocate((size_t)lay_out_activations(model, NULL), sizeof(real));
    lay_out_activations(model, model->memory);
    const size_t rows = (size_t)model->batch * (size_t)model->context;
    model->losses = on->allocate(rows, sizeof *model->losses);
    model->input = on->allocate(rows, 1);
    model->target = on->allocate(rows, 1);
    model->attention = attention_new(
        on, (enum attention_kind)c->attention, model->layers,
        (attention_shape){model->batch, model->context, model->heads, model->width / model->heads});
    return model;
}

void model_delete(gpt_model *model)
{
    attention_delete(model->attention);
    model->on->release(model->target);
    model->on->release(model->input);
    model->on->release(model->losses);
    model->on->release(model->memory);
    model->on->release(model->gradients);
    model->on->release(model->parameters);
    free(model->blocks);
    free(model->tensor);
    free(model);
}

/* ---- Linear layers --------------------------------------------------------------------------- */

/* y = x w, or y += x w; w is in x out. No bias, as in most later GPTs. */
static void linear_forward(const device *on, int rows, int in, int out, const real *x,
                           const real *w, real *y, bool add)
{
    on->matmul(rows, out, in, matrix_rows(x, in), matrix_rows(w, out), matrix_rows(y, out), add);
}

/* d_x is written, d_w added to. */
static void linear_backward(const device *on, int rows, int in, int out, const real *x,
                            const real *w, const real *d_y, real *d_x, real *d_w)
{
    on->matmul(rows, in, out, matrix_rows(d_y, out), transposed(matrix_rows(w, out)),
               matrix_rows(d_x, in), false);
    on->matmul(in, out, rows, transposed(matrix_rows(x, in)), matrix_rows(d_y, out),
               matrix_rows(d_w, out), true);
}

/* ---- Passes ---------------------------------------------------------------------------------- */

uint64_t model_dropout_stride(const gpt_model *model)
{
    return (uint64_t)model->layers * (uint64_t)model->batch * (uint64_t)model->heads;
}

static attention_dropout layer_dropout(const gpt_model *model, attention_dropout d, int layer)
{
    d.offset += (uint64_t)layer * (uint64_t)model->batch * (uint64_t)model->heads;
    return d;
}

static void block_forward(gpt_model *model, int layer, attention_shape shape,
                          attention_dropout dropout, real *out)
{
    const device *on = model->on;
    block_state *state = &model->blocks[layer];
    real *p = model->parameters;
    int rows = shape.batch * shape.length, width = model->width;
    size_t bytes = (size_t)rows * (size_t)width * sizeof(real);
    on->norm_forward(rows, width, state->in, block_part(model, p, layer, GAIN_1),
                     block_part(model, p, layer, BIAS_1), state->normed1, state->stats1);
    linear_forward(on, rows, width, 3 * width, state->normed1, block_part(model, p, layer, QKV),
                   state->qkv, false);
    if (model->cache != NULL) {
        kv_cache_attend(model->cache, layer, shape, state->qkv, state->mixed);
    } else {
        attention_forward(model->attention, layer, shape, layer_dropout(model, dropout, layer),
                          state->qkv, state->mixed);
    }
    on->copy(state->middle, state->in, bytes);
    linear_forward(on, rows, width, width, state->mixed, block_part(model, p, layer, PROJECT),
                   state->middle, true);
    on->norm_forward(rows, width, state->middle, block_part(model, p, layer, GAIN_2),
                     block_part(model, p, layer, BIAS_2), state->normed2, state->stats2);
    linear_forward(on, rows, width, 4 * width, state->normed2, block_part(model, p, layer, UP),
                   state->hidden, false);
    on->gelu_forward((int64_t)rows * 4 * width, state->hidden, state->active);
    on->copy(out, state->middle, bytes);
    linear_forward(on, rows, 4 * width, width, state->active, block_part(model, p, layer, DOWN),
                   out, true);
}

static attention_shape shape_of(const gpt_model *model, tokens t)
{
    return (attention_shape){t.batch, t.length, model->heads, model->width / model->heads};
}

void model_forward(gpt_model *model, tokens t, attention_dropout dropout)
{
    const device *on = model->on;
    real *p = model->parameters;
    int rows = t.batch * t.length;
    on->put(model->input, t.input, (size_t)rows);
    on->embed_forward(rows, t.length, model->width, model->input,
                      model->cache == NULL ? NULL : model->cache->first, part(model, p, TOKEN),
                      part(model, p, POSITION), model->blocks[0].in);
    for (int l = 0; l < model->layers; l++) {
        block_forward(model, l, shape_of(model, t), dropout,
                      l + 1 < model->layers ? model->blocks[l + 1].in : model->out);
    }
    on->norm_forward(rows, model->width, model->out, part(model, p, LAST_GAIN),
                     part(model, p, LAST_BIAS), model->normed, model->stats);
    on->matmul(rows, VOCABULARY, model->width, matrix_rows(model->normed, model->width),
               transposed(matrix_rows(part(model, p, TOKEN), model->width)),
               matrix_rows(model->logits, VOCABULARY), false);
}

/* d_stream: from the gradient by the block's output to the gradient by its input. */
static void block_backward(gpt_model *model, int layer, attention_shape shape,
                           attention_dropout dropout)
{
    const device *on = model->on;
    block_state *state = &model->blocks[layer];
    real *p = model->parameters, *g = model->gradients;
    int rows = shape.batch * shape.length, width = model->width;
    linear_backward(on, rows, 4 * width, width, state->active, block_part(model, p, layer, DOWN),
                    model->d_stream, model->d_wide, block_part(model, g, layer, DOWN));
    on->gelu_backward((int64_t)rows * 4 * width, state->hidden, model->d_wide);
    linear_backward(on, rows, width, 4 * width, state->normed2, block_part(model, p, layer, UP),
                    model->d_wide, model->d_narrow, block_part(model, g, layer, UP));
    on->norm_backward(rows, width, state->middle, block_part(model, p, layer, GAIN_2),
                      state->stats2, model->d_narrow, model->d_stream,
                      block_part(model, g, layer, GAIN_2), block_part(model, g, layer, BIAS_2));
    linear_backward(on, rows, width, width, state->mixed, block_part(model, p, layer, PROJECT),
                    model->d_stream, model->d_narrow, block_part(model, g, layer, PROJECT));
    attention_backward(model->attention, layer, shape, layer_dropout(model, dropout, layer),
                       state->qkv, state->mixed, model->d_narrow, model->d_wide);
    linear_backward(on, rows, width, 3 * width, state->normed1, block_part(model, p, layer, QKV),
                    model->d_wide, model->d_narrow, block_part(model, g, layer, QKV));
    on->norm_backward(rows, width, state->in, block_part(model, p, layer, GAIN_1), state->stats1,
                      model->d_narrow, model->d_stream, block_part(model, g, layer, GAIN_1),
                      block_part(model, g, layer, BIAS_1));
}

/* logits = normed token^T */
static void head_backward(gpt_model *model, int rows)
{
    const device *on = model->on;
    int width = model->width;
    real *token = part(model, model->parameters, TOKEN),
         *d_token = part(model, model->gradients, TOKEN);
    matrix d_logits = matrix_rows(model->logits, VOCABULARY);
    on->matmul(rows, width, VOCABULARY, d_logits, matrix_rows(token, width),
               matrix_rows(model->d_narrow, width), false);
    on->matmul(VOCABULARY, width, rows, transposed(d_logits), matrix_rows(model->normed, width),
               matrix_rows(d_token, width), true);
    on->clear(model->d_stream, (size_t)rows * (size_t)width * sizeof(real));
    on->norm_backward(rows, width, model->out, part(model, model->parameters, LAST_GAIN),
                      model->stats, model->d_narrow, model->d_stream,
                      part(model, model->gradients, LAST_GAIN),
                      part(model, model->gradients, LAST_BIAS));
}

/* Turns logits into gradients. */
static double loss_of(gpt_model *model, tokens t)
{
    const int rows = t.batch * t.length;
    model->on->put(model->target, t.target, (size_t)rows);
    return model->on->cross_entropy(rows, model->target, model->logits, model->losses);
}

double model_backward(gpt_model *model, tokens t, attention_dropout dropout)
{
    const device *on = model->on;
    int rows = t.batch * t.length;
    on->clear(model->gradients, (size_t)model->count * sizeof(real));
    double loss = loss_of(model, t);
    head_backward(model, rows);
    for (int l = model->layers - 1; l >= 0; l--) {
        block_backward(model, l, shape_of(model, t), dropout);
    }
    on->embed_backward(rows, t.length, model->width, model->input, model->d_stream,
                       part(model, model->gradients, TOKEN),
                       part(model, model->gradients, POSITION));
    return loss;
}

double model_loss(gpt_model *model, tokens t)
{
    model_forward(model, t, (attention_dropout){0});
    return loss_of(model, t);
}
