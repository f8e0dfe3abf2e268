/*
 * kernels.h: the kernels of this example and their arguments, for host and GPU. Each has one
 * argument, a struct.
 */
#ifndef TRAIN_GPT_GPU_KERNELS_H
#define TRAIN_GPT_GPU_KERNELS_H

#include <stdint.h>

#include "../adamw_update.h"

/* Kernel by kernel: the name, after gpt_, and the struct of its argument. */
#define GPT_KERNELS(X)                      \
    X(embed_forward, embed_args)            \
    X(embed_backward_tokens, embed_args)    \
    X(embed_backward_positions, embed_args) \
    X(norm_forward, norm_args)              \
    X(norm_backward_rows, norm_args)        \
    X(norm_backward_columns, norm_args)     \
    X(gelu_forward, gelu_args)              \
    X(gelu_backward, gelu_args)             \
    X(cross_entropy, loss_args)             \
    X(squares, squares_args)                \
    X(adamw, adamw_args)                    \
    X(matmul_32, matmul_args)               \
    X(matmul_64, matmul_args)               \
    X(matmul_128, matmul_args)              \
    X(matmul_parts, parts_args)             \
    X(softmax_forward, softmax_args)        \
    X(softmax_backward, softmax_args)

enum { GPT_THREADS = 256, GPT_WARPS = GPT_THREADS / 32 }; /* of a block, unless stated otherwise */

/* A thread an element of out or d_position; a block a token of d_token. The latter two are added
 * to. */
typedef struct embed_args {
    int rows, length, width;
    const uint8_t *tokens;
    const real *token, *position, *d_out;
    real *out, *d_token, *d_position;
} embed_args;

/* A warp a row; norm_backward_columns: a block of GPT_COLUMN_WARPS warps for 32 columns. */
enum { GPT_COLUMN_WARPS = 32 };
typedef struct norm_args {
    int rows, width;
    const real *x, *gain, *bias, *d_out;
    real (*stats)[2];
    real *out, *d_x, *d_gain, *d_bias;
} norm_args;

/* A thread an element. */
typedef struct gelu_args {
    int64_t count;
    const real *x;
    real *out; /* backward: d */
} gelu_args;

/* A warp a row. */
typedef struct loss_args {
    int rows;
    const uint8_t *targets;
    real *logits;
    double *losses;
} loss_args;

/* Block i of GPT_SUMS: the sum of squares of its elements, in sums[i]. */
enum { GPT_SUMS = 256 };
typedef struct squares_args {
    int64_t count;
    const real *x;
    double *sums;
} squares_args;

/* A thread an element. */
typedef struct adamw_args {
    int64_t count;
    adamw_rule rule;
    const real *gradient;
    real *mean, *square, *parameter;
} adamw_args;

/* A matrix of each head: element (i, j) of head h of sequence b is data[b * sequence + h * head +
 * i * row + j * column]. */
typedef struct gpu_matrix {
    real *data;
    int64_t row, column, sequence, head;
} gpu_matrix;

/* C = A B, or C += A B. Block (x, y, z): a tile of C for head z mod heads of sequence z / heads.
 * parts > 1: one head, and z is a part of k, whose product goes to partial[z], m x n. */
typedef struct matmul_args {
    int m, n, k, heads, parts, add;
    gpu_matrix a, b, c;
    real *partial;
} matmul_args;

/* A thread an element of C: the sum of the parts in their order. */
typedef struct parts_args {
    int m, n, parts, add;
    const real *partial;
    real *c;
    int64_t row;
} parts_args;

/* A block a row of matrices of length x length. Row i of a matrix sees columns 0 .. i. p: scores,
 * which become probabilities. Backward: ds holds dP and becomes dS. */
typedef struct softmax_args {
    int length;
    real scale;
    real *p, *ds;
} softmax_args;

#endif
