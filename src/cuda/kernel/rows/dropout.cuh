/*
 * dropout.cuh: the factor that dropout gives an element of P (C11): 0, or 1 / (1 - p).
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
};
