/*
 * attention.h: causal self-attention of the training example, in two exchangeable ways: libattn,
 * which stores one number (the log-sum-exp) per row between the passes, and standard attention,
 * which stores the matrix of probabilities of every head. Both take the same rows and the same
 * dropout.
 */
#ifndef TRAIN_GPT_ATTENTION_H
#define TRAIN_GPT_ATTENTION_H

#include <stdint.h>

#include "device.h"

enum attention_kind { ATTENTION_LIBATTN, ATTENTION_STANDARD };

extern const char *const attention_kind_name[2];

typedef struct gpt_attention {
    const device *on;
    enum attention_kind kind;
    attention_shape most; /* what the buffers are for */
    attn_context *context;
    int layers;
    real **kept; /* [layers], from forward to backward: the log-sum-exp, or the probabilities */
    void *scratch;
    uint64_t scratch_bytes;
    double seconds; /* of both passes so far, where operations end as they return */
} gpt_attention;

/* Ends the program without memory. */
gpt_attention *attention_new(const device *on, enum attention_kind kind, int layers,
                             attention_shape most);
void attention_delete(gpt_attention *attention);

/* All bytes that attention has allocated. */
uint64_t attention_bytes(const gpt_attention *attention);

/* Forward pass. o: [batch][length][heads][dim]. layer: whose `kept` to fill; the backward pass uses
 * it. */
void attention_forward(gpt_attention *attention, int layer, attention_shape shape,
                       attention_dropout dropout, const real *qkv, real *o);

/* Backward pass. d_qkv has the layout of qkv; all of it is written. */
void attention_backward(gpt_attention *attention, int layer, attention_shape shape,
                        attention_dropout dropout, const real *qkv, const real *o, const real *d_o,
                        real *d_qkv);

/* Views for calls of libattn: q, k, v (part 0, 1, 2) of qkv, and rows of `dim` numbers a head. */
attn_tensor attention_part(attention_shape shape, const real *qkv, int part);
attn_tensor attention_rows(attention_shape shape, const real *rows, int dim);

/* Ends the program unless a call of libattn did what it should. */
void attention_check(attn_status status, const char *call);

#endif
