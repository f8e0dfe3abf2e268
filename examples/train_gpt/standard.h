/*
 * standard.h: attention as the textbook has it, on the CPU, one head a thread: softmax(Q K^T /
 * sqrt(d)) V with the whole length x length matrix in memory, and its gradients. The same products
 * as in the linear layers.
 */
#ifndef TRAIN_GPT_STANDARD_H
#define TRAIN_GPT_STANDARD_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

/* The shape of the rows of qkv: [batch][length][q, k, v][heads][dim]. */
typedef struct attention_shape {
    int batch, length, heads, dim;
} attention_shape;

/* Dropout of one call; p = 0: none. Each call has an offset of its own, batch * heads apart. */
typedef struct attention_dropout {
    double p;
    uint64_t seed, offset;
} attention_dropout;

/* All heads of a call. */
typedef struct standard_heads {
    attn_context *context; /* for the mask of dropout */
    attention_shape shape;
    attention_dropout dropout;
    const real *qkv;
    /* length x length of each: written by the forward pass, read by the backward pass */
    real *probabilities;
    void *scratch; /* standard_scratch_bytes */
} standard_heads;

uint64_t standard_scratch_bytes(attention_shape shape, double dropout_p);

/* o: [batch][length][heads][dim]; d_qkv has the layout of qkv. */
void standard_forward(const standard_heads *heads, real *o);
void standard_backward(const standard_heads *heads, const real *d_o, real *d_qkv);

#endif
