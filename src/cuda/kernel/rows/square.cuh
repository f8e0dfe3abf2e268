/*
 * square.cuh: a square of 64 x 64 scores by 256 threads, in plain CUDA C: the products of the
 * generic kernels of both passes. Thread (ty, tx) of 16 x 16 owns the 4 rows from 4 ty on and
 * columns tx, tx + 16, .. Operands lie transposed, 32 columns of the head dim at a time; rows of 65
 * keep the banks apart.
 */
#pragma once

enum { CHUNK = 32, PAD = 65, SIDE = 16, EACH = 4, THREADS = SIDE * SIDE };

/* Adds left^T right to part. */
template <int UNROLL, class Real>
__device__ __forceinline__ void add_products(Real (&part)[EACH][EACH],
                                             const Real (&left)[CHUNK][PAD],
                                             const Real (&right)[CHUNK][PAD], int tx, int ty)
{
#pragma unroll UNROLL
    for (int c = 0; c < CHUNK; c++) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                part[i][j] = fma(left[c][EACH * ty + i], right[c][tx + SIDE * j], part[i][j]);
            }
        }
    }
}
