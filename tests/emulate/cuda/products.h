/*
 * products.h: steps of 16 products of a warpgroup, compiled once and with vectors, since they are
 * half of the emulated GPU's time. A step's products are summed in f64, which tensor cores do not.
 */
#pragma once
#include "machine.h"

namespace emulated
{

/* A step's columns of a tile in shared memory: wgmma::descriptor, and whether the tile's rows lie
 * along k. */
struct operand {
    uint64_t where;
    bool rows_along_k;
};

/* The 16 elements of row or column n of an operand. */
void read_step(float (&to)[16], bool bf16, const operand &from, int n);

/* d[columns / 2] of the running thread += its two rows of A times its columns of B. Without
 * `add` d is written. */
void multiply(float *d, int columns, const float (&left)[2][16], bool bf16, const operand &b,
              bool add);

} // namespace emulated
