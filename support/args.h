/*
 * args.h: the tensors of attn_forward_args as a table, in the struct's order, for code that treats
 * them alike: the program's files, poison and hashes of the tests, the fuzzer. A tensor appended to
 * the struct gets its line in args.c.
 */
#ifndef SUPPORT_ARGS_H
#define SUPPORT_ARGS_H

#include <attn/attn.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    ARGS_Q,
    ARGS_K,
    ARGS_V,
    ARGS_O,
    ARGS_O_F32,
    ARGS_LSE,
    ARGS_ROW_MAX,
    ARGS_MASK,
    ARGS_BIAS,
    ARGS_ALIBI,
    ARGS_SINKS,
    ARGS_CU_Q,
    ARGS_CU_K,
    ARGS_USED_Q,
    ARGS_USED_K,
    ARGS_ORIGIN_Q,
    ARGS_ORIGIN_K,
    ARGS_TABLE,
    ARGS_LEFTPAD,
    ARGS_K_NEW,
    ARGS_V_NEW,
    ARGS_COS,
    ARGS_SIN,
    ARGS_K_SCALE,
    ARGS_K_SHIFT,
    ARGS_V_SCALE,
    ARGS_V_SHIFT,
    ARGS_TENSORS
};

/* Meaning of the axes. */
enum args_kind {
    ARGS_VECTORS, /* (batch, sequence, head, dim) */
    ARGS_ROWS,    /* (batch, sequence, head, 1) */
    ARGS_SCORES,  /* (batch, head, query, key), each possibly 1 */
    ARGS_HEADS,   /* (batch, head, 1, 1), each possibly 1 */
    ARGS_ANGLES,  /* (position, pair, 1, 1) */
    ARGS_LENGTHS  /* (count, 1, 1, 1): lengths and origins; (count, pages, 1, 1): pages */
};

typedef struct args_tensor {
    const char *name; /* the tensor's word in files and messages */
    size_t offset;    /* in attn_forward_args */
    enum args_kind kind;
    bool output;
} args_tensor;

extern const args_tensor args_tensors[ARGS_TENSORS];

attn_tensor *args_at(attn_forward_args *args, int i);
const attn_tensor *args_get(const attn_forward_args *args, int i);

/* The same of attn_backward_args. */
enum {
    ARGS_D_O,
    ARGS_D_LSE,
    ARGS_DQ,
    ARGS_DK,
    ARGS_DV,
    ARGS_D_BIAS,
    ARGS_D_ALIBI,
    ARGS_D_SINKS,
    ARGS_GRADIENTS
};

typedef struct args_gradient {
    const char *name;
    size_t offset; /* in attn_backward_args */
    int like;      /* the tensor of attn_forward_args that has its axes: ARGS_O .. */
    bool output;
} args_gradient;

extern const args_gradient args_gradients[ARGS_GRADIENTS];

attn_tensor *args_gradient_at(attn_backward_args *args, int i);

#endif
