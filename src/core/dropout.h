/*
 * dropout.h: the positions that dropout keeps (C11): Philox4x32-10 of (seed, offset, b, h, i, j),
 * nothing else. C and CUDA. cpu/ukernel/body/body_grad.h has the vectorised form of the same
 * numbers.
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
enum { ATTN_PHILOX_ROUNDS = 10 };

typedef struct attn_dropout {
    bool on;
    uint32_t key[2];
    uint32_t last; /* words up to this one drop */
    uint64_t offset;
    double scale; /* factor of kept values: 1 / (1 - p); 0 if none is kept */
} attn_dropout;

/* p in [0, 1]; off where p 2^32 rounds to 0. */
ATTN_CORE attn_dropout attn_dropout_make(double p, uint64_t seed, uint64_t offset)
{
    double threshold = p * 4294967296.0 + 0.5; /* 2^32 */
    attn_dropout d = {threshold >= 1,
                      {(uint32_t)seed, (uint32_t)(seed >> 32)},
                      0,
                      offset,
                      p < 1 ? 1 / (1 - p) : 0};
    d.last = threshold >= 4294967296.0 ? UINT32_MAX : d.on ? (uint32_t)threshold - 1 : 0;
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

/* word[0..3]: the random words of row i and keys 4 quad .. 4 quad + 3. */
ATTN_CORE void attn_dropout_words(const attn_dropout *d, uint64_t stream, uint32_t i, uint32_t quad,
                                  uint32_t word[4])
{
    uint32_t k0 = d->key[0], k1 = d->key[1];
    word[0] = quad, word[1] = i, word[2] = (uint32_t)stream, word[3] = (uint32_t)(stream >> 32);
    for (int round = 0; round < ATTN_PHILOX_ROUNDS;
         round++, k0 += ATTN_PHILOX_W0, k1 += ATTN_PHILOX_W1) {
        attn_philox_round(word, k0, k1);
    }
}

#endif
