/*
 * standard.h: attention as the textbook has it, one head at a time: softmax(Q K^T / sqrt(d)) V with
 * the whole length x length matrix in memory, and its gradients. The same products as in the linear
 * layers.
 */
#ifndef TRAIN_GPT_STANDARD_H
#define TRAIN_GPT_STANDARD_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

/* Dropout of one call; p = 0: none. Each call has an offset of its own, batch * heads apart. */
typedef struct attention_dropout {
    double p;
    uint64_t seed, offset;
} attention_dropout;

/* A head: its rows in qkv are `row` apart, those of o and its gradient `out_row`. */
typedef struct standard_head {
    attn_context *context; /* for the mask of dropout */
    int length, dim;
    const real *q, *k, *v;
    ptrdiff_t row, out_row;
    attention_dropout dropout; /* offset: of this head */
    /* length x length: written by the forward pass, read by the backward pass */
    real *probabilities;
    void *scratch; /* standard_scratch_bytes */
} standard_head;

uint64_t standard_scratch_bytes(int length, double dropout_p);

void standard_forward(const standard_head *head, real *o);
void standard_backward(const standard_head *head, const real *d_o, real *dq, real *dk, real *dv);

#endif
