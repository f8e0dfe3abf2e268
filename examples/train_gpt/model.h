/*
 * model.h: a GPT: embedding of bytes and positions, `layers` blocks x += attention(norm(x)), x +=
 * mlp(norm(x)), a norm, and the product with the embedding again for the logits (Radford et al.
 * 2019, without biases in the products). All parameters are one array, for the optimiser and the
 * checkpoint; so are all gradients.
 */
#ifndef TRAIN_GPT_MODEL_H
#define TRAIN_GPT_MODEL_H

#include <stdbool.h>

#include "attention.h"
#include "config.h"
#include "kv_cache.h"

/* One parameter tensor: its place in the arrays. */
typedef struct tensor {
    int64_t at, count;
    double deviation; /* of its initial values N(0, deviation^2); 0: all are `start` */
    double start;
    bool decays; /* takes part in weight decay, as matrices do */
} tensor;

/* Tensors 0 to 3, then eight of each block. */
enum { TOKEN, POSITION, LAST_GAIN, LAST_BIAS, BLOCK_TENSORS };
enum { GAIN_1, BIAS_1, QKV, PROJECT, GAIN_2, BIAS_2, UP, DOWN, PER_BLOCK };

/* The part of a block that the backward pass needs, a row per position. */
typedef struct block_state {
    real *in;      /* the residual stream before attention */
    real *normed1; /* and its norm */
    real (*stats1)[2];
    real *qkv, *mixed; /* before and after attention */
    real *middle;      /* the residual stream before the MLP */
    real *normed2;
    real (*stats2)[2];
    real *hidden, *active; /* before and after GELU */
} block_state;

typedef struct gpt_model {
    const device *on;
    int layers, width, heads, context, batch;
    int tensors;
    tensor *tensor;
    int64_t count; /* of parameters */
    real *parameters, *gradients;
    gpt_attention *attention;
    kv_cache *cache; /* NULL, as in training and on GPUs: sequences begin with the call's tokens */
    uint8_t *input, *target; /* of the call */
    block_state *blocks;
    real *out, *normed; /* the residual stream after the last block, and its norm */
    real (*stats)[2];
    real *logits;   /* after the loss: its gradient */
    double *losses; /* of each position */
    /* scratch of the backward pass: rows of width, width, 4 width */
    real *d_stream, *d_narrow, *d_wide;
    real *memory; /* the memory of all these */
} gpt_model;

/* Ends the program without memory. Weights are drawn from c->seed: on all devices the same. */
gpt_model *model_new(const device *on, const config *c);
void model_delete(gpt_model *model);

/* Moves every parameter to the next larger number. */
void model_nudge(gpt_model *model);

/* Sequences of tokens, in the host's memory: `batch` of `length`, next to each other. */
typedef struct tokens {
    int batch, length;
    const uint8_t *input;
    const uint8_t *target; /* of each position, the token after it */
} tokens;

/* Computes m->logits. With a cache, after kv_cache_step: tokens go on where its sequences end, and
 * their keys and values are appended. */
void model_forward(gpt_model *model, tokens t, attention_dropout dropout);

/* After model_forward: returns the mean loss in nats, and writes its gradients by all parameters
 * into m->gradients. */
double model_backward(gpt_model *model, tokens t, attention_dropout dropout);

/* Forward pass without dropout: the mean loss, no gradients. */
double model_loss(gpt_model *model, tokens t);

/* Distance of dropout offsets from one step to the next: each layer has an offset of its own. */
uint64_t model_dropout_stride(const gpt_model *model);

#endif
