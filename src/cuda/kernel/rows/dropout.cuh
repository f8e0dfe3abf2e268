/*
 * dropout.cuh: the positions that dropout keeps (C11), one by one, and those of a call of Philox.
 */
#pragma once
#include "core/problem.h"
#include "cuda/params.h"

struct DropoutRow {
    const attn_dropout &dropout;
    uint64_t stream;
    /* positions of the row and of key 0 in the whole sequence */
    uint64_t query, first_key;

    __device__ __forceinline__ DropoutRow(const attn_problem &p, const attn_sequence &s,
                                          int64_t head, int64_t row)
        : dropout(p.dropout), stream(attn_dropout_stream(&p.dropout, s.index, p.heads, head)),
          query((uint64_t)(attn_origin(&p.q_origin, s.index) + row)),
          first_key((uint64_t)attn_origin(&p.k_origin, s.index))
    {
    }

    __device__ __forceinline__ bool keeps(int64_t key) const
    {
        return attn_dropout_number(&dropout, stream, query, first_key + (uint64_t)key) >=
               dropout.limit;
    }
    /* Z of C11. */
    template <class Real> __device__ __forceinline__ Real factor(int64_t key) const
    {
        return !dropout.on ? 1 : keeps(key) ? (Real)dropout.scale : 0;
    }
    /* The counter of the call for the row and key 0. */
    __device__ __forceinline__ uint4 counter() const
    {
        return make_uint4(attn_dropout_keys(first_key), attn_dropout_rows(query), (uint32_t)stream,
                          (uint32_t)(stream >> 32));
    }
    /* Whether squares of 16 x 16 begin at the row and key 0, as those of tiles do. */
    __device__ __forceinline__ bool even() const
    {
        return (query | first_key) % 16 == 0;
    }
};

/* Bits 15 and 31: whether the numbers in the halves of a word are kept. A number x of a limit up to
 * 2^15 is if its top bit is set or the sum of its others and 2^15 - limit sets it; beyond, if both
 * hold, with 2^16 - limit. */
__device__ __forceinline__ uint32_t kept_pair(const attn_cuda_dropout &dropout, uint32_t word)
{
    const uint32_t sum = (word & 0x7fff7fff) + dropout.carry;
    return (word & sum) | ((word | sum) & dropout.either);
}

/* Puts the bits of two positions on top of the halves of `bits`, those before below them. */
__device__ __forceinline__ void push_bits(uint32_t &bits, uint32_t pair)
{
    bits = bits >> 1 | (pair & 0x80008000);
}

/* Puts the kept positions of a call of Philox into bits, word by word. */
__device__ __forceinline__ void push_kept(const attn_cuda_dropout &dropout, uint4 at,
                                          uint32_t &bits)
{
    uint32_t word[4] = {at.x, at.y, at.z, at.w};
#pragma unroll
    for (int round = 0; round < ATTN_PHILOX_ROUNDS; round++) {
        attn_philox_round(word, dropout.keys[round][0], dropout.keys[round][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        push_bits(bits, kept_pair(dropout, word[i]));
    }
}
