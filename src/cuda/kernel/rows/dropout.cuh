/*
 * dropout.cuh: the factor that dropout gives an element of P (C11): 0, or 1 / (1 - p); and four
 * neighbouring keys at once.
 */
#pragma once
#include "core/problem.h"

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

    template <class Real> __device__ __forceinline__ Real factor(int64_t key) const
    {
        uint32_t word[4];
        const uint64_t at = first_key + (uint64_t)key;
        if (!dropout.on) {
            return 1;
        }
        attn_dropout_words(&dropout, stream, (uint32_t)query, (uint32_t)(at / 4), word);
        const uint32_t mine = at % 4 == 0   ? word[0]
                              : at % 4 == 1 ? word[1]
                              : at % 4 == 2 ? word[2]
                                            : word[3];
        return mine <= dropout.last ? 0 : (Real)dropout.scale;
    }

    /* Byte i: 1 if dropout drops the element of key + i, else 0. */
    __device__ __forceinline__ uint32_t dropped_of_four(int64_t key) const
    {
        const uint64_t at = first_key + (uint64_t)key;
        uint32_t bytes = dropped_of_quad(at / 4);
        if (at % 4 != 0) {
            bytes = (uint32_t)(((uint64_t)dropped_of_quad(at / 4 + 1) << 32 | bytes) >> at % 4 * 8);
        }
        return bytes;
    }

    __device__ __forceinline__ uint32_t dropped_of_quad(uint64_t quad) const
    {
        uint32_t word[4], bytes = 0;
        attn_dropout_words(&dropout, stream, (uint32_t)query, (uint32_t)quad, word);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bytes |= word[i] <= dropout.last ? 1u << 8 * i : 0;
        }
        return bytes;
    }
};
