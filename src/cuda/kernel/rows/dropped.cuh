/*
 * dropped.cuh: dropout (C11) of the probabilities of a warp's 16 rows, packed as operands of P V
 * (softmax.cuh). Not here: the factor of what is kept, which rows take at their end (rows.cuh).
 *
 * A call of Philox is for four keys of a row. They lie in two lanes, each of which has two rows; so
 * the lanes call it for one row each, and exchange what it says:
 *
 *     lane of a quad     0                      1                    2                  3
 *     its elements       keys 8 j, 8 j + 1      8 j + 2, 8 j + 3     8 j + 4, 8 j + 5   ..
 *     its calls          row 0, keys 8 j ..     row 8, likewise      row 0, 8 j + 4 ..  row 8
 */
#pragma once
#include "cuda/kernel/mma/mma.cuh"
#include "cuda/kernel/rows/rows.cuh"

/* No dropout. */
template <int DTYPE, bool ON, bool ONE> struct Dropout {
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

/* Dropout, of blocks of 32 keys or more. ONE: the warps of a CTA share a place, and have its rows
 * in turn; else each has a place of its own. */
template <int DTYPE, bool ONE> struct Dropout<DTYPE, true, ONE> {
    /* A row and key 0. */
    struct Place {
        uint4 counter; /* of the row and of the four keys that the key is one of */
        int within;    /* place of the key among them */
    };
    Place *places;    /* in shared memory, since registers are few */
    float kept[1][4]; /* f16: of row r in 2 r and 2 r + 1, the sum of what is kept */

    __device__ __forceinline__ explicit Dropout(Place *places_) : places(places_), kept{}
    {
    }
    static __device__ __forceinline__ void find_place(const attn_cuda_forward_params &a,
                                                      const Item &item, int64_t row_number,
                                                      Place &place)
    {
        const DropoutRow row(a.problem, item.sequence, item.head, row_number);
        place.counter = make_uint4((uint32_t)(row.first_key / 4), (uint32_t)row.query,
                                   (uint32_t)row.stream, (uint32_t)(row.stream >> 32));
        place.within = (int)(row.first_key % 4);
    }
    /* Begins an item of a warp with a place of its own. All its lanes. */
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &a, const Item &item,
                                          const WarpRows &warp)
    {
        __syncwarp(); /* all lanes have read the last item's place */
        if (threadIdx.x % 32 == 0) {
            find_place(a, item, warp.row(item, 0), places[threadIdx.x / 32]);
        }
        __syncwarp();
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
        uint32_t bits[2][WORDS / 8];
        find(a, key, bits);
        clear(bits, p);
        if constexpr (DTYPE == ATTN_F16) {
            sum(p);
        }
    }

    /* Bit j: whether key j of four is kept. */
    static __device__ __forceinline__ uint32_t kept_of_four(const attn_cuda_forward_params &a,
                                                            uint4 at)
    {
        uint32_t word[4] = {at.x, at.y, at.z, at.w}, bits = 0;
#pragma unroll
        for (int round = 0; round < ATTN_PHILOX_ROUNDS; round++) {
            attn_philox_round(word, a.philox[round][0], a.philox[round][1]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            bits |= word[j] > a.problem.dropout.last ? 1u << j : 0;
        }
        return bits;
    }

    /* Finds the keys that row r keeps: bit k of bits[r][w] for key 32 w + k of the block. */
    template <int WORDS>
    __device__ __forceinline__ void find(const attn_cuda_forward_params &a, int key,
                                         uint32_t (&bits)[2][WORDS]) const
    {
        const int thread = ptx::opaque(threadIdx.x), lane = thread % 4;
        const Place &place = places[ONE ? 0 : thread / 32];
        uint32_t own[WORDS + 1];
        uint4 at = place.counter;
        at.x += key / 4 + lane / 2;
        at.y += (ONE ? thread / 32 * 16 : 0) + thread % 32 / 4 + lane % 2 * 8;
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            own[w] = 0;
#pragma unroll
            for (int j = 0; j < 4; j++, at.x += 2) {
                own[w] |= kept_of_four(a, at) << 8 * j;
            }
            own[w] <<= lane / 2 * 4;
            own[w] |= __shfl_xor_sync(~0u, own[w], 2);
        }
        const int within = place.within;
        if (within != 0) { /* keys begin within the first four, and end in four more */
            at.x -= lane / 2;
            own[WORDS] = kept_of_four(a, at);
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                own[w] = (uint32_t)(((uint64_t)own[w + 1] << 32 | own[w]) >> within);
            }
        }
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            const uint32_t other = __shfl_xor_sync(~0u, own[w], 1);
            bits[0][w] = lane % 2 ? other : own[w];
            bits[1][w] = lane % 2 ? own[w] : other;
        }
    }

    /* Clears the elements whose bit is 0. It comes to the top of byte j, which fills one half of a
     * mask. */
    template <int PARTS, int WORDS, int BITS>
    static __device__ __forceinline__ void clear(const uint32_t (&bits)[2][BITS],
                                                 uint32_t (&p)[PARTS][WORDS])
    {
        const int column = ptx::opaque(threadIdx.x) % 4 * 2;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const uint32_t word = bits[i % 2][i / 8], first = word << (7 - column),
                           second = word << (6 - column);
            const uint32_t mask = ptx::permute(first, second, 0xcc88 + i / 2 % 4 * 0x1111);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                p[part][i] &= mask;
            }
        }
    }

    /* Adds up what is kept: products with 1. */
    template <int WORDS> __device__ __forceinline__ void sum(const uint32_t (&p)[1][WORDS])
    {
        const uint32_t ones[1][2] = {{0x3c003c00, 0x3c003c00}};
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            mma::add_products<false, 1>(kept, p, i, ones);
        }
    }

    /* The rows at their end. In f16 digits below 2^-24 are lost: so a row is light if what it keeps
     * adds up to less than 2^20 times that. */
    __device__ __forceinline__ DroppedRows<WarpRows> rows(const attn_cuda_forward_params &a,
                                                          const WarpRows &warp) const
    {
        const bool looks = DTYPE == ATTN_F16 && a.problem.dropout.scale != 0;
        return {warp, {looks && kept[0][0] < 0x1p-4f, looks && kept[0][2] < 0x1p-4f}};
    }
};
