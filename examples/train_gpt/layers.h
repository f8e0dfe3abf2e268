/*
 * layers.h: the layers of a transformer beside attention and products, on the CPU, each with its
 * backward pass. Matrices are row-major, a row per position; "d_x" is the gradient of the loss by
 * x. Gradients of weights are added to, those of inputs written, unless stated otherwise. Every
 * element is one thread's, summed in a fixed order: the same bits for any number of threads.
 */
#ifndef TRAIN_GPT_LAYERS_H
#define TRAIN_GPT_LAYERS_H

#include <stdint.h>

#include "real.h"

enum { VOCABULARY = 256 }; /* a token is a byte */

/* out[r] = token[tokens[r]] + position[first[r / length] + r mod length]; first = NULL: 0 */
void embed_forward(int rows, int length, int width, const uint8_t *tokens, const int64_t *first,
                   const real *token, const real *position, real *out);
void embed_backward(int rows, int length, int width, const uint8_t *tokens, const real *d_out,
                    real *d_token, real *d_position);

/* LayerNorm. stats[r] = the row's mean and 1 / its deviation, for the backward pass. d_x is added
 * to: x is a residual stream that goes on past the norm. */
void norm_forward(int rows, int width, const real *x, const real *gain, const real *bias, real *out,
                  real (*stats)[2]);
void norm_backward(int rows, int width, const real *x, const real *gain, const real (*stats)[2],
                   const real *d_out, real *d_x, real *d_gain, real *d_bias);

/* GELU in its tanh form. The backward pass turns d, which holds d_out, into d_x. */
void gelu_forward(int64_t count, const real *x, real *out);
void gelu_backward(int64_t count, const real *x, real *d);

/* Returns the mean over rows of -ln softmax(logits)[target], in nats, with each row's in losses.
 * Logits become the gradient of the mean by them. */
double cross_entropy(int rows, const uint8_t *targets, real *logits, double *losses);

#endif
