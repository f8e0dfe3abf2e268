/*
 * oracle_dropout.c: Philox4x32-7 as its authors give it (Salmon, Moraes, Dror, Shaw: Parallel
 * random numbers: as easy as 1, 2, 3; SC'11), and the counter of C11. Shares nothing with
 * src/core/dropout.h.
 */
#include "oracle.h"

#include <math.h>

static void philox_round(uint32_t counter[4], const uint32_t key[2])
{
    uint64_t product[2] = {(uint64_t)counter[0] * 0xD2511F53u, (uint64_t)counter[2] * 0xCD9E8D57u};
    uint32_t next[4] = {(uint32_t)(product[1] >> 32) ^ counter[1] ^ key[0], (uint32_t)product[1],
                        (uint32_t)(product[0] >> 32) ^ counter[3] ^ key[1], (uint32_t)product[0]};
    for (int n = 0; n < 4; n++) {
        counter[n] = next[n];
    }
}

bool oracle_keeps(double p, uint64_t seed, uint64_t offset, int64_t b, int64_t heads, int64_t h,
                  int64_t i, int64_t j)
{
    uint64_t stream = offset + (uint64_t)(b * heads + h);
    uint32_t counter[4] = {(uint32_t)(4 * (j / 16) + j % 8 / 2), (uint32_t)(8 * (i / 16) + i % 8),
                           (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int n = 0; n < 7; n++) {
        philox_round(counter, key);
        key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
    }
    uint32_t word = counter[i / 8 % 2 + 2 * (j / 8 % 2)], number = word >> j % 2 * 16 & 0xFFFF;
    return (double)number >= floor(ldexp(p, 16) + 0.5);
}
