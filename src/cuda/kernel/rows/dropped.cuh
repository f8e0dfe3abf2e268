/*
 * dropped.cuh: dropout (C11) of the probabilities of a warp's 16 rows, packed as operands of P V
 * (softmax.cuh). Not here: the factor of what is kept, which rows take at their end (rows.cuh).
 *
 * A call of Philox is for the four words that a lane has of 16 keys (core/dropout.h), if rows and
 * keys of the sequence begin with a square of 16 x 16: lanes exchange nothing.
 */
#pragma once
#include "cuda/kernel/mma/mma.cuh"
#include "cuda/kernel/rows/dropout.cuh"
#include "cuda/kernel/rows/rows.cuh"

/* In f16 digits below 2^-24 are lost: so a row is light if what it keeps adds up to less than 2^20
 * times that. */
constexpr float LIGHT = 0x1p-4f;

/* No dropout. */
template <int DTYPE, bool ON> struct Dropout {
    struct Place {
    };
    __device__ __forceinline__ explicit Dropout(Place *)
    {
    }
    static __device__ __forceinline__ void find_place(const attn_cuda_forward_params &,
                                                      const Item &, int64_t, Place &)
    {
    }
    template <int N, int D, class Exponents>
    __device__ __forceinline__ void update_bases(const Exponents &e, const float (&s)[N],
                                                 const bool (&few)[2], Rows<D> &rows)
    {
        ::update_bases<DTYPE>(e, s, few, rows);
    }
    template <int PARTS, int WORDS>
    __device__ __forceinline__ void take(const attn_cuda_forward_params &, int,
                                         uint32_t (&)[PARTS][WORDS])
    {
    }
    __device__ __forceinline__ const WarpRows &rows(const attn_cuda_forward_params &,
                                                    const WarpRows &warp) const
    {
        return warp;
    }
};

/* Dropout, of blocks of 32 keys or more. The warps of a CTA share a place, and have its rows in
 * turn. */
template <int DTYPE> struct Dropout<DTYPE, true> {
    /* A row and key 0. */
    struct Place {
        uint4 counter;
        bool even; /* DropoutRow */
        uint32_t row;
        uint64_t key; /* their positions */
    };
    Place *shared;    /* since registers are few */
    float kept[1][4]; /* f16: of row r in 2 r and 2 r + 1, the sum of what is kept */

    __device__ __forceinline__ explicit Dropout(Place *shared_) : shared(shared_), kept{}
    {
    }
    static __device__ __forceinline__ void find_place(const attn_cuda_forward_params &a,
                                                      const Item &item, int64_t row_number,
                                                      Place &place)
    {
        const DropoutRow row(a.problem, item.sequence, item.head, row_number);
        place = {row.counter(), row.even(), (uint32_t)row.query, row.first_key};
    }
    /* Moves bases (rows.cuh), and scales down what has been kept. */
    template <int N, int D, class Exponents>
    __device__ __forceinline__ void update_bases(const Exponents &e, const float (&s)[N],
                                                 const bool (&few)[2], Rows<D> &rows)
    {
        float alpha[2];
        move_bases<DTYPE>(s, e, few, rows.state, alpha);
        rescale_moved(rows.o, alpha);
        if constexpr (DTYPE == ATTN_F16) {
            rescale(kept[0], alpha);
        }
    }

    /* Clears what is dropped of the block of keys that begins at `key`. All lanes of the warp. */
    template <int PARTS, int WORDS>
    __device__ __forceinline__ void take(const attn_cuda_forward_params &a, int key,
                                         uint32_t (&p)[PARTS][WORDS])
    {
        uint32_t bits[(WORDS + 15) / 16];
        find<WORDS>(a, key, bits);
        clear(bits, p);
        if constexpr (DTYPE == ATTN_F16) {
            sum(p);
        }
    }

    /* Finds what is kept of the WORDS words of P of the block of keys that begins at `key`: bits 15
     * and 31 of bits[i / 16] << unused<WORDS>(i) are word i's. */
    template <int WORDS>
    __device__ __forceinline__ void find(const attn_cuda_forward_params &a, int key,
                                         uint32_t (&bits)[(WORDS + 15) / 16]) const
    {
        const int thread = ptx::opaque(threadIdx.x), row = thread % 32 / 4, warp = thread / 32;
        const Place &place = *shared;
        if (!place.even) {
            find_one_by_one<WORDS>(a, place.counter, place.row, place.key, 16 * warp + row,
                                   key + thread % 4 * 2, bits);
            return;
        }
        uint4 at = place.counter;
        at.x += key / 4 + thread % 4;
        at.y += 8 * warp + row;
#pragma unroll
        for (int i = 0; i < WORDS; i += 4, at.x += 4) {
            bits[i / 16] = i % 16 == 0 ? 0 : bits[i / 16];
            push_kept(a.dropout, at, bits[i / 16]);
        }
    }
    /* The same where positions begin anywhere. row, key: of the lane's first element. */
    template <int WORDS>
    static __device__ __forceinline__ void
    find_one_by_one(const attn_cuda_forward_params &a, uint4 counter, uint32_t first_row,
                    uint64_t first_key, int row, int key, uint32_t (&bits)[(WORDS + 15) / 16])
    {
        const attn_dropout &dropout = a.problem.dropout;
        const uint64_t stream = (uint64_t)counter.w << 32 | counter.z;
#pragma unroll
        for (int part = 0; part < (WORDS + 15) / 16; part++) {
            bits[part] = 0;
#pragma unroll 1
            for (int i = 16 * part; i < min(WORDS, 16 * part + 16); i++) {
                const uint64_t of_row = first_row + row + i % 2 * 8,
                               of_key = first_key + key + i / 2 * 8;
                uint32_t pair = 0;
#pragma unroll 1
                for (int j = 0; j < 2; j++) {
                    const uint32_t number =
                        attn_dropout_number(&dropout, stream, of_row, of_key + j);
                    pair |= number >= dropout.limit ? 0x8000u << 16 * j : 0;
                }
                push_bits(bits[part], pair);
            }
        }
    }
    template <int WORDS> static __device__ __forceinline__ constexpr int unused(int i)
    {
        return (i / 16 * 16 + 16 < WORDS ? i / 16 * 16 + 16 : WORDS) - 1 - i;
    }

    /* Clears the elements whose bit is 0. */
    template <int PARTS, int WORDS>
    static __device__ __forceinline__ void clear(const uint32_t (&bits)[(WORDS + 15) / 16],
                                                 uint32_t (&p)[PARTS][WORDS])
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const uint32_t word = bits[i / 16] << unused<WORDS>(i);
            const uint32_t mask = ptx::permute(word, 0, 0xbb99); /* a half is its top bit */
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                p[part][i] &= mask;
            }
        }
    }

    /* Adds up what is kept: products with 1. */
    template <int WORDS> __device__ __forceinline__ void sum(const uint32_t (&p)[1][WORDS])
    {
        add(kept, p);
    }
    template <int WORDS>
    static __device__ __forceinline__ void add(float (&to)[1][4], const uint32_t (&p)[1][WORDS])
    {
        const uint32_t ones[1][2] = {{0x3c003c00, 0x3c003c00}};
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            mma::add_products<false, 1>(to, p, i, ones);
        }
    }

    /* The rows at their end. */
    __device__ __forceinline__ DroppedRows<WarpRows> rows(const attn_cuda_forward_params &a,
                                                          const WarpRows &warp) const
    {
        const bool looks = DTYPE == ATTN_F16 && a.problem.dropout.scale != 0;
        return {warp, {looks && kept[0][0] < LIGHT, looks && kept[0][2] < LIGHT}};
    }
};
