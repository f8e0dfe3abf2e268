/*
 * dropout.h: the positions that dropout keeps (C11): a number of 16 bits for each, of Philox4x32-7
 * (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC'11; of 7 rounds and
 * more it passes BigCrush) of (seed, offset, b, h, i, j), nothing else. C and CUDA.
 * cpu/ukernel/body/body_grad.h and cuda/kernel/rows have vectorised forms of the same numbers.
 *
 * A call of Philox is for 8 positions: rows i and i + 8, keys j, j + 1, j + 8 and j + 9, of a
 * square of 16 x 16. These are the elements that a thread has of an operand of mma.m16n8k16, in the
 * order of its registers:
 *
 *     word    0: row i         1: row i + 8      2: row i          3: row i + 8
 *     halves  keys j, j + 1    keys j, j + 1     keys j + 8, ..    keys j + 8, ..
 */
#ifndef ATTN_CORE_DROPOUT_H
#define ATTN_CORE_DROPOUT_H

#include "core/compiler.h"
#include <stdbool.h>
#include <stdint.h>

/* Philox' multipliers and the steps of its key. */
#define ATTN_PHILOX_M0 0xD2511F53u
#define ATTN_PHILOX_M1 0xCD9E8D57u
#define ATTN_PHILOX_W0 0x9E3779B9u
#define ATTN_PHILOX_W1 0xBB67AE85u
enum { ATTN_PHILOX_ROUNDS = 7 };

typedef struct attn_dropout {
    bool on;
    uint32_t key[2];
    uint32_t limit; /* numbers below it drop */
    uint64_t offset;
    double scale; /* factor of kept values: 1 / (1 - p); 0 if p is 1 */
} attn_dropout;

/* p in [0, 1]; off where p 2^16 rounds to 0. */
ATTN_CORE attn_dropout attn_dropout_make(double p, uint64_t seed, uint64_t offset)
{
    const uint32_t limit = (uint32_t)(p * 65536 + 0.5);
    attn_dropout d = {limit > 0,
                      {(uint32_t)seed, (uint32_t)(seed >> 32)},
                      limit,
                      offset,
                      p < 1 ? 1 / (1 - p) : 0};
    return d;
}

/* The stream of head h (of heads) of sequence b: the high half of the counter. */
ATTN_CORE uint64_t attn_dropout_stream(const attn_dropout *d, int64_t b, int64_t heads, int64_t h)
{
    return d->offset + (uint64_t)b * (uint64_t)heads + (uint64_t)h;
}

/* A round on the counter x with its two keys. */
ATTN_CORE void attn_philox_round(uint32_t x[4], uint32_t k0, uint32_t k1)
{
    const uint64_t a = (uint64_t)ATTN_PHILOX_M0 * x[0], b = (uint64_t)ATTN_PHILOX_M1 * x[2];
    x[0] = (uint32_t)(b >> 32) ^ x[1] ^ k0;
    x[2] = (uint32_t)(a >> 32) ^ x[3] ^ k1;
    x[1] = (uint32_t)b;
    x[3] = (uint32_t)a;
}

/* The keys of all rounds. */
ATTN_CORE void attn_philox_keys(const attn_dropout *d, uint32_t keys[ATTN_PHILOX_ROUNDS][2])
{
    for (uint32_t i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
        keys[i][0] = d->key[0] + i * ATTN_PHILOX_W0;
        keys[i][1] = d->key[1] + i * ATTN_PHILOX_W1;
    }
}

/* The low words of the counter: of the keys and rows that share calls with key j and row i. */
ATTN_CORE uint32_t attn_dropout_keys(uint64_t j)
{
    return (uint32_t)(j / 16 * 4 + j % 8 / 2);
}
ATTN_CORE uint32_t attn_dropout_rows(uint64_t i)
{
    return (uint32_t)(i / 16 * 8 + i % 8);
}

/* The number of row i and key j. */
ATTN_CORE uint32_t attn_dropout_number(const attn_dropout *d, uint64_t stream, uint64_t i,
                                       uint64_t j)
{
    uint32_t k0 = d->key[0], k1 = d->key[1];
    uint32_t word[4] = {attn_dropout_keys(j), attn_dropout_rows(i), (uint32_t)stream,
                        (uint32_t)(stream >> 32)};
    for (int round = 0; round < ATTN_PHILOX_ROUNDS;
         round++, k0 += ATTN_PHILOX_W0, k1 += ATTN_PHILOX_W1) {
        attn_philox_round(word, k0, k1);
    }
    /* no index: threads of GPUs keep the words in registers */
    const uint32_t left = i / 8 % 2 ? word[1] : word[0], right = i / 8 % 2 ? word[3] : word[2],
                   both = j / 8 % 2 ? right : left;
    return j % 2 ? both >> 16 : both & 0xFFFF;
}

#endif
