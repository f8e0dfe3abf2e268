/*
 * dropped_sm90.cuh: dropout (C11) of forward_sm90's probabilities, which a consumer's warp has
 * packed as operands of P V. Not here: the factor of what is kept, which rows take at their end
 * (store_sm90.cuh); kernels by mma.sync (dropped.cuh).
 *
 * A call of Philox is for the four words that a lane has of 16 keys. What follows from the keys of
 * a block's calls alone (philox.cuh) a lane computes once for the warp while products run, what
 * follows from its rows once an item. The rest comes when probabilities are there and scores have
 * left their registers to the calls, which run side by side.
 */
#pragma once
#include "cuda/kernel/forward/shape_sm90.cuh"
#include "cuda/kernel/ptx/pairs.cuh"
#include "cuda/kernel/rows/dropped.cuh"
#include "cuda/kernel/rows/philox.cuh"

/* No dropout. */
template <class S, bool = S::DROPS> struct Drops {
    template <class Warp>
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &, const Item &,
                                          const Warp &)
    {
    }
    __device__ __forceinline__ void begin_block(const attn_cuda_forward_params &, int)
    {
    }
    __device__ __forceinline__ void lower(const float (&)[2])
    {
    }
    template <int PARTS, int WORDS>
    __device__ __forceinline__ void take(const attn_cuda_forward_params &, int,
                                         uint32_t (&)[PARTS][WORDS])
    {
    }
    template <class Warp>
    __device__ __forceinline__ const Warp &rows(const attn_cuda_forward_params &,
                                                const Warp &warp) const
    {
        return warp;
    }
};

/* What a thread's rows keep of P over the blocks of an item, in f16 with dropout: both sums in one
 * register, since more are not left. Of other kernels nothing. */
template <bool ON> struct Kept {
    __device__ __forceinline__ void lower(const float (&)[2])
    {
    }
    template <int PARTS, int WORDS>
    __device__ __forceinline__ void add(const uint32_t (&)[PARTS][WORDS])
    {
    }
    template <class Warp>
    __device__ __forceinline__ const Warp &rows(const attn_cuda_forward_params &,
                                                const Warp &warp) const
    {
        return warp;
    }
};
template <> struct Kept<true> {
    uint32_t sums = 0; /* in bf16, whose range they do not leave */

    __device__ __forceinline__ void lower(const float (&alpha)[2])
    {
        const float2 x = ptx::unpack_half<true>(sums);
        sums = ptx::pack_half<true>(x.x * alpha[0], x.y * alpha[1]);
    }
    template <int WORDS> __device__ __forceinline__ void add(const uint32_t (&p)[1][WORDS])
    {
        float fresh[1][4] = {};
        Dropout<ATTN_F16, true>::add(fresh, p);
        const float2 x = ptx::unpack_half<true>(sums);
        sums = ptx::pack_half<true>(x.x + fresh[0][0], x.y + fresh[0][2]);
    }
    template <class Warp>
    __device__ __forceinline__ Warp rows(const attn_cuda_forward_params &a, const Warp &warp) const
    {
        const float2 x = ptx::unpack_half<true>(sums);
        const bool looks = a.problem.dropout.scale != 0;
        Warp light = warp;
        light.light[0] = looks && x.x < LIGHT, light.light[1] = looks && x.y < LIGHT;
        return light;
    }
};

/* Dropout of an item. All functions are for all lanes of a warp. */
template <class S> struct Drops<S, true> {
    static constexpr int WORDS = S::BN / 4, CALLS = WORDS / 4;
    static_assert(4 * CALLS <= 32, "a lane for each of a block's calls and columns");
    /* Which numbers are kept: those that the test does not find, or that it finds. */
    enum Test { NOT_FOUND, FOUND, ONE_BY_ONE };
    /* A warp's in shared memory, since registers are few. */
    struct Room {
        uint4 keys[4 * CALLS]; /* of the block: of columns, of calls */
        uint2 rows[32];        /* of each lane */
        uint4 counter;         /* of the warp's row 0 and key 0 */
        Test test;             /* finds numbers below bound, at most 2^15, of pairs */
        uint32_t bound, back;  /* bound, and what makes it 0 */
        uint32_t row;
        uint64_t key; /* positions of that row and key */
    };
    Kept<S::KEEPS> kept;

    static __device__ __forceinline__ Room &room()
    {
        __shared__ Room rooms[4 * S::GROUPS];
        return rooms[ptx::opaque(threadIdx.x) / 32 - 4];
    }
    template <class Warp>
    __device__ __forceinline__ void begin(const attn_cuda_forward_params &a, const Item &item,
                                          const Warp &warp)
    {
        Room &x = room();
        const int lane = threadIdx.x % 32;
        const DropoutRow row(a.problem, item.sequence, item.head, warp.row(item, 0));
        __syncwarp(); /* all lanes have read those of the last item */
        if (lane == 0) {
            const uint32_t limit = a.problem.dropout.limit;
            const bool most = limit > 0x8000; /* then their complements are looked for */
            x.counter = row.counter();
            x.test = !row.even() ? ONE_BY_ONE : most ? FOUND : NOT_FOUND;
            x.bound = (most ? 0x10000 - limit : limit) * 0x10001;
            x.back = (-x.bound & 0xffff) * 0x10001;
            x.row = (uint32_t)row.query, x.key = row.first_key;
        }
        uint4 at = row.counter();
        at.y += lane / 4;
        x.rows[lane] = philox_of_rows(a.dropout, at);
        __syncwarp();
    }
    /* Begins the block of keys that begins at `key`. */
    __device__ __forceinline__ void begin_block(const attn_cuda_forward_params &a, int key)
    {
        Room &x = room();
        const int lane = ptx::opaque(threadIdx.x) % 32;
        uint4 at = x.counter;
        at.x += key / 4 + lane;
        const uint4 keys = philox_of_keys(a.dropout, at);
        __syncwarp(); /* all lanes have read those of the block before */
        if (lane < 4 * CALLS) {
            x.keys[lane] = keys;
        }
        __syncwarp();
    }
    /* Bases have moved. */
    __device__ __forceinline__ void lower(const float (&alpha)[2])
    {
        kept.lower(alpha);
    }
    /* Clears what is dropped of the block of keys that begins at `key`. */
    template <int PARTS>
    __device__ __forceinline__ void take(const attn_cuda_forward_params &a, int key,
                                         uint32_t (&p)[PARTS][WORDS])
    {
        const Room &x = room();
        const int lane = ptx::opaque(threadIdx.x) % 32;
        if (x.test == ONE_BY_ONE) {
            uint32_t bits[(WORDS + 15) / 16];
            Dropout<S::DTYPE, true>::template find_one_by_one<WORDS>(
                a, x.counter, x.row, x.key, lane / 4, key + lane % 4 * 2, bits);
            Dropout<S::DTYPE, true>::clear(bits, p);
        } else {
            uint4 keys[CALLS];
#pragma unroll
            for (int c = 0; c < CALLS; c++) {
                keys[c] = x.keys[4 * c + lane % 4];
            }
            uint32_t words[CALLS][4];
            philox_words(a.dropout, keys, x.rows[lane], words);
            if (x.test == FOUND) {
                clear<true>(x.bound, x.back, words, p[0]);
            } else {
                clear<false>(x.bound, x.back, words, p[0]);
            }
        }
        kept.add(p);
    }
    /* The same by the words of calls. bound, back: Room's. */
    template <bool KEEPS_FOUND>
    static __device__ __forceinline__ void
    clear(uint32_t bound, uint32_t back, const uint32_t (&words)[CALLS][4], uint32_t (&p)[WORDS])
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const uint32_t word = words[i / 4][i % 4],
                           low = ptx::min_pair(KEEPS_FOUND ? ~word : word, bound),
                           found = ptx::max_of_sum_signed_pair(low, back, ~0u);
            p[i] = KEEPS_FOUND ? p[i] & found : ptx::without(p[i], found);
        }
    }
    template <class Warp>
    __device__ __forceinline__ auto rows(const attn_cuda_forward_params &a, const Warp &warp) const
    {
        return kept.rows(a, warp);
    }
};
