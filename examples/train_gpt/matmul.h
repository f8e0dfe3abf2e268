/*
 * matmul.h: the one matrix product of this example, for the linear layers and for materialised
 * attention alike.
 */
#ifndef TRAIN_GPT_MATMUL_H
#define TRAIN_GPT_MATMUL_H

#include <stdbool.h>
#include <stddef.h>

#include "real.h"

/* Element (i, j) is data[i * row + j * column]. */
typedef struct matrix {
    real *data;
    ptrdiff_t row, column;
} matrix;

/* A row-major matrix. matmul writes to c alone; inputs are never written. */
static inline matrix matrix_rows(const real *data, ptrdiff_t row)
{
    return (matrix){(real *)data, row, 1};
}

static inline matrix transposed(matrix a)
{
    return (matrix){a.data, a.column, a.row};
}

/* C = A B, or C += A B: A is m x k, B is k x n, C m x n with c.column = 1. On all threads, or on
 * the caller's alone if it is one of several already. Every element is one thread's, summed in an
 * order that depends on k alone: the same bits for any number of threads. */
void matmul(int m, int n, int k, matrix a, matrix b, matrix c, bool add);

#endif
