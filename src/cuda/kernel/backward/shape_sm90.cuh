/*
 * shape_sm90.cuh: the compile-time shape of a backward_sm90 kernel and its map of shared memory:
 *
 *     fixed 2 [128][D] | STAGES of streamed 2 [STEP][D] | dS [128][STEP] | dQ [STEP][D] in f32 |
 *     tables | barriers | STAGES of statistics [2][STEP]
 *
 *     wide: fixed 2 [64][D] | 2 [STEP][D] of Q, one of dO | P, twice dS, the other CTA's dS,
 *     [64][STEP] each | [STEP][D / 4] of dQ in f32 | half of the other's K, [64][D / 2] |
 *     barriers | statistics
 *
 * Tables are there with a mask or a bias: STEP rows of 16 keys for each of 8 warps
 * (tables_sm90.cuh).
 *
 * fixed are K and V of 128 keys, streamed Q and dO with LSE and delta. Tiles lie in chunks of 64
 * columns (wgmma.cuh).
 */
#pragma once
#include "cuda/backward/params.h"
#include "cuda/kernel/backward/range_sm90.cuh"
#include "cuda/kernel/backward/stores_sm90.cuh"
#include "cuda/kernel/mma/wgmma.cuh"
#include "cuda/kernel/ptx/tma.cuh"
#include "cuda/shape.h"

/* What stands between the product and P: a scale; ALiBi or dropout, or both; any score steps and
 * dropout. TABLED: with a mask or a bias of which tiles are copied (tables_sm90.cuh). */
enum GradSteps {
    GRAD_SCALED = 0,
    GRAD_LIGHT = 1,
    GRAD_STEPPED = 2,
    GRAD_TABLED = 4,
    GRAD_LIGHT_TABLED = GRAD_LIGHT | GRAD_TABLED,
    GRAD_STEPPED_TABLED = GRAD_STEPPED | GRAD_TABLED,
    GRAD_SLOPED = 8,   /* ALiBi alone */
    GRAD_MASKED = 16,  /* a mask alone, of which tiles come by TMA, as of the next one */
    GRAD_BIASED = 32,  /* a bias of the inputs' type alone */
    GRAD_ROUNDED = 64, /* a scale, and the last block of keys rounds dQ (round_sm90.cuh) */
    GRAD_DROPPED = 128 /* dropout alone, of sequences without origins */
};

/* ROOM: bytes of P, dS and sums of dQ in shared memory. STAYS: a CTA does one item after the other,
 * as kernels.inc says. FIXED: 128, 64 for each warpgroup, or 64 that both have (WIDE). */
template <int DTYPE, int D_, int STEP_, int STAGES_, int ROOM, GradSteps STEPS = GRAD_SCALED,
          bool STAYS_ = false, int FIXED_ = 128>
struct GradShape {
    /* STORES: dK and dV leave by the TMA: from where dS is, or, LATE, where it and the last two
     * tiles are. */
    static constexpr bool ROUNDS = STEPS == GRAD_ROUNDED, STORES = ROUNDS,
                          LATE = STORES && STEP_ == 64;
    static constexpr bool BF16 = DTYPE == ATTN_BF16, STEPPED = (STEPS & GRAD_STEPPED) != 0,
                          TABLED = (STEPS & GRAD_TABLED) != 0, DROPPED = STEPS == GRAD_DROPPED,
                          LIGHT = (STEPS & GRAD_LIGHT) != 0 || DROPPED, DROPS = LIGHT || STEPPED,
                          SLOPED = STEPS == GRAD_SLOPED, MASKED = STEPS == GRAD_MASKED,
                          BIASED = STEPS == GRAD_BIASED, TILED = MASKED || BIASED,
                          LONE = SLOPED || TILED || DROPPED,
                          HAS_SLOPES = (LIGHT && !DROPPED) || SLOPED, STAYS = STAYS_,
                          WIDE = FIXED_ == 64, HAS_HEADS = STEPS != GRAD_SCALED,
                          OUTSIDE = LIGHT && BF16,    /* the factor of dropout is not in dS */
        RESTS = !STEPPED,                             /* items.rests */
        FOLLOWS = BF16 && (STAYS || WIDE),            /* delta, beside whose launch it may begin */
        HELPED = STEPS == GRAD_LIGHT && STEP_ == 128; /* helper_sm90.cuh */
    static constexpr int D = D_, STEP = STEP_, STAGES = STAGES_, FIXED = FIXED_,
                         KEYS = WIDE ? 2 * FIXED : FIXED, /* of an item; wide: of two CTAs */
        BOX = ATTN_GRAD_BOX, COLUMNS = WIDE ? D / 2 : D;  /* of a warpgroup's sums of dK and dV */
    static constexpr int FIXED_BYTES = FIXED * D * 2, STEP_BYTES = STEP * D * 2;
    /* Tables leave dO two stages of its own, since dK reads Q last; wide: one. */
    static constexpr bool APART = ((TABLED || BIASED) && STAGES == 3) || WIDE;
    static constexpr int D_O_STAGES = WIDE ? 1 : APART ? 2 : STAGES;
    static constexpr int SCORES_AT = 2 * FIXED_BYTES + (STAGES + D_O_STAGES) * STEP_BYTES,
                         SUMS_AT = SCORES_AT + FIXED * STEP * 2, SUMS_BYTES = STEP * D * 4,
                         BARRIERS_AT = 2 * FIXED_BYTES + STAGES * 2 * STEP_BYTES + ROOM,
                         APART_AT = BARRIERS_AT - (APART ? ATTN_GRAD_APART_BYTES : 0),
                         TABLES_AT =
                             TILED ? SUMS_AT + SUMS_BYTES : APART_AT - ATTN_GRAD_TABLE_BYTES(STEP),
                         TABLE_BYTES = STEP * 128 * (BIASED ? 2 : 1), /* TILED */
        TILED_AT = APART_AT - 16,                                     /* barriers of that */
        PAIR_AT = APART_AT - ATTN_GRAD_PAIR_BYTES;                    /* WIDE: barriers of both */
    static constexpr int STATISTICS_AT = BARRIERS_AT + 128;
    static constexpr float DOWN = 1; /* factor of dQ in its sums (f16: range_sm90.cuh) */
    static constexpr int SHARED_BYTES = ATTN_GRAD_SM90_BYTES(D, 2 * FIXED, STEP, STAGES, ROOM);
    static_assert(STATISTICS_AT + STAGES * 2 * STEP * 4 + ATTN_SM90_ALIGN == SHARED_BYTES,
                  "shape.h");

    /* A row's LSE as the tile loop takes it. */
    static __device__ __forceinline__ float statistic(float lse)
    {
        return lifted<BF16>(lse);
    }
};

/* ptx::thread(), which is known to be no negative number: quotients are shifts. */
__device__ __forceinline__ int thread_number()
{
    const int x = ptx::thread();
    if (x < 0 || x >= 1024) {
        __builtin_unreachable();
    }
    return x;
}

/* Each warp gives a stage back for itself: it may be behind the others of its group. */
enum { CONSUMER_WARPS = 8, HELPER_WARPS = 4, TURN_THREADS = 3 };

/* Barriers of stages, two of each. n counts the uses. */
template <int STAGES> struct StageBarriers {
    uint32_t first; /* address */

    __device__ __forceinline__ uint32_t full(uint32_t n) const
    {
        return first + n % STAGES * 16;
    }
    __device__ __forceinline__ uint32_t empty(uint32_t n) const
    {
        return full(n) + 8;
    }
    static __device__ __forceinline__ uint32_t parity(uint32_t n)
    {
        return n / STAGES & 1;
    }
    /* Returns when use n is full, or when what was there before it is gone. */
    __device__ __forceinline__ void await_full(uint32_t n) const
    {
        ptx::mbarrier_wait(full(n), parity(n));
    }
    __device__ __forceinline__ void await_empty(uint32_t n) const
    {
        ptx::mbarrier_wait(empty(n), parity(n) ^ 1);
    }
    /* One thread. loaders: arrivals beside the bytes that the TMA counts; readers: warps. */
    __device__ __forceinline__ void init(int loaders, int readers) const
    {
        for (uint32_t n = 0; n < STAGES; n++) {
            ptx::mbarrier_init(full(n), loaders);
            ptx::mbarrier_init(empty(n), readers);
        }
    }
};

/* Addresses in shared memory. n counts the uses of a stage. */
template <class S> struct GradMemory {
    uint32_t base; /* address, aligned to 1024 bytes */

    __device__ __forceinline__ uint32_t fixed(int which) const
    {
        return base + which * S::FIXED_BYTES;
    }
    __device__ __forceinline__ uint32_t streamed(uint32_t n, int which) const
    {
        const uint32_t at = !S::APART    ? n % S::STAGES * 2 + which
                            : which == 0 ? n % S::STAGES
                                         : S::STAGES + n % S::D_O_STAGES;
        return base + 2 * S::FIXED_BYTES + at * S::STEP_BYTES;
    }
    /* LSE in exponents of 2, then delta, of STEP rows */
    __device__ __forceinline__ uint32_t statistics(uint32_t n) const
    {
        return base + S::STATISTICS_AT + n % S::STAGES * 2 * S::STEP * 4;
    }
    /* of Q, LSE and delta, and of dO, if it is not apart; of dO, if it is */
    __device__ __forceinline__ StageBarriers<S::STAGES> stages() const
    {
        return {base + S::BARRIERS_AT};
    }
    __device__ __forceinline__ auto d_o_stages() const
    {
        return StageBarriers<S::D_O_STAGES>{base + S::APART_AT};
    }

    /* WIDE: P; dS of tile n; dS of the other CTA; half of the CTA's columns of dQ; two chunks of
     * the other's K */
    __device__ __forceinline__ uint32_t weights() const
    {
        return base + S::SCORES_AT;
    }
    __device__ __forceinline__ uint32_t scores(uint32_t n) const
    {
        return weights() + (1 + n % 2) * (S::FIXED * S::STEP * 2);
    }
    __device__ __forceinline__ uint32_t other_scores() const
    {
        return weights() + 3 * (S::FIXED * S::STEP * 2);
    }
    __device__ __forceinline__ uint32_t half_sums() const
    {
        return weights() + 4 * (S::FIXED * S::STEP * 2);
    }
    __device__ __forceinline__ uint32_t other_keys() const
    {
        return half_sums() + S::SUMS_BYTES / 4;
    }

    /* dS of a tile, and its sums of dQ */
    __device__ __forceinline__ uint32_t scores() const
    {
        return base + S::SCORES_AT;
    }
    __device__ __forceinline__ uint32_t sums() const
    {
        return base + S::SUMS_AT;
    }
    /* TILED: of a tile of the mask or bias, which has one stage; and where it lies: rows of 128
     * bytes, keys of a bias in chunks of 64 */
    __device__ __forceinline__ StageBarriers<1> table_stage() const
    {
        return {base + S::TILED_AT};
    }
    __device__ __forceinline__ uint32_t table() const
    {
        static_assert(
            !S::TILED || (S::TABLES_AT % 1024 == 0 && S::TABLES_AT + S::TABLE_BYTES <= S::TILED_AT),
            "room");
        return base + S::TABLES_AT;
    }
    /* where the warp that asks has its part of a tile's bias, and behind it of the mask; 0: there
     * are no tables */
    __device__ __forceinline__ uint32_t tables() const
    {
        if constexpr (!S::TABLED) {
            return 0;
        }
        return base + S::TABLES_AT +
               (ptx::thread() / 32 - 4) * (ATTN_GRAD_TABLE_BYTES(S::STEP) / 8);
    }
    /* whether the sums of a tile are there; whether it is their turn; whether they have left, so
     * that there is room for the next tile's and for the turn after that */
    __device__ __forceinline__ uint32_t done(uint32_t n) const
    {
        return base + S::BARRIERS_AT + S::STAGES * 16 + n % S::STAGES * 8;
    }
    __device__ __forceinline__ uint32_t turn(uint32_t n) const
    {
        return base + S::BARRIERS_AT + S::STAGES * 24 + n % 2 * 16;
    }
    __device__ __forceinline__ uint32_t room(uint32_t n) const
    {
        return turn(n) + 8;
    }
    /* whether an item's keys are there; whether all have seen that and need them no more */
    __device__ __forceinline__ uint32_t keys_full() const
    {
        return base + S::BARRIERS_AT + 128 - 16;
    }
    __device__ __forceinline__ uint32_t keys_empty() const
    {
        return keys_full() + 8;
    }

    /* numbers of the item that the loader has, and of the one that the warpgroups have next: there
     * is no register for them */
    __device__ __forceinline__ uint32_t number(int which) const
    {
        return keys_full() - 8 + which * 4;
    }

    /* WIDE: whether dS of tile n of the other CTA is there; whether the other one needs this CTA's
     * no more; whether dS of this CTA is there. */
    __device__ __forceinline__ uint32_t given(uint32_t n) const
    {
        return base + S::PAIR_AT + n % 2 * 8;
    }
    __device__ __forceinline__ uint32_t taken(uint32_t n) const
    {
        return given(n) + 16;
    }
    __device__ __forceinline__ uint32_t scored(uint32_t n) const
    {
        return given(n) + 32;
    }
    /* One thread. */
    __device__ __forceinline__ void init_turns() const
    {
        ptx::store_shared_8(number(0), 0, 0);
        static_assert(S::STAGES * 24 + 2 * 16 + 24 <= 128, "barriers");
        ptx::mbarrier_init(keys_full(), 1);
        ptx::mbarrier_init(keys_empty(),
                           CONSUMER_WARPS + TURN_THREADS + (S::HELPED ? HELPER_WARPS : 0));
        for (int n = 0; n < S::STAGES; n++) {
            ptx::mbarrier_init(done(n), S::HELPED ? HELPER_WARPS : CONSUMER_WARPS);
        }
        for (int n = 0; n < 2; n++) {
            ptx::mbarrier_init(turn(n), 1);
            ptx::mbarrier_init(room(n), 1);
        }
        ptx::fence_mbarrier_init();
    }
    /* One thread. loaders: arrivals beside the bytes that the TMA counts. */
    __device__ __forceinline__ void init_barriers(int loaders) const
    {
        constexpr int READERS = (S::WIDE ? 2 : 1) * CONSUMER_WARPS; /* of one CTA, or of two */
        stages().init(loaders, READERS);
        if constexpr (S::APART) {
            d_o_stages().init(1, READERS);
        }
        if constexpr (S::TILED) {
            table_stage().init(1, READERS);
        }
        ptx::fence_mbarrier_init();
    }
};

/* In the CTA's shared memory, from a multiple of 1024 bytes on. */
template <class S> __device__ __forceinline__ GradMemory<S> grad_memory()
{
    extern __shared__ unsigned char shared[];
    const uint32_t start = ptx::shared_address(shared);
    return {start + (-start & 1023)};
}

/* The blocks that an item meets: of rows of each head of a group, or of keys. */
struct GradBlocks {
    int first, count; /* of one head */
    int heads;

    __device__ __forceinline__ int all() const
    {
        return count * heads;
    }
};

/* Loads a tile of `rows` rows from `row` on, all its chunks. One thread. */
template <class S>
__device__ __forceinline__ void load_tile(uint32_t to, const attn_tensor_map *map, uint32_t barrier,
                                          int rows, int row, int head, int batch, uint64_t hint)
{
    for (int chunk = 0; chunk < S::D / 64; chunk++) {
        for (int r = 0; r < rows; r += S::BOX) {
            tma::load(to + (chunk * rows + r) * 128, map, barrier, chunk * 64, row + r, head, batch,
                      hint);
        }
    }
}

/* The address of an operand. A shuffle brings it to a uniform register: slower, but some kernels
 * spill without. */
template <class S> __device__ __forceinline__ uint32_t operand_at(uint32_t address)
{
    return S::WIDE || S::STEPPED ? ptx::uniform(address) : address;
}

/* Computes s = A B^T: 64 rows, from `a` on, of a fixed tile, and N rows, from `b` on, of a tile of
 * ROWS_B; of 16 columns each, steps FROM to TO - 1. */
template <class S, int N, int ADD = 0, int ROWS_B = N, int FROM = 0, int TO = S::D / 16>
__device__ __forceinline__ void issue_scores(float (&s)[N / 2], uint32_t a, uint32_t b)
{
    const uint64_t left = wgmma::descriptor(operand_at<S>(a), 0),
                   right = wgmma::descriptor(operand_at<S>(b), 0);
#pragma unroll
    for (int step = FROM; step < TO; step++) {
        const int chunk = step / 4, within = step % 4 * 2;
        wgmma::Product<S::BF16, N>::ss(s, left + chunk * S::FIXED * 8 + within,
                                       right + chunk * ROWS_B * 8 + within, ADD || step > 0);
    }
    wgmma::commit();
}

/* Adds P X to sum: P of 64 x ROWS in registers, X the rows from FROM on of a tile of K. */
template <class S, int K, int FROM = 0, int ROWS = K>
__device__ __forceinline__ void issue_sum(float (&sum)[S::D / 2], const uint32_t (&p)[ROWS / 4],
                                          uint32_t x)
{
    const uint64_t right = wgmma::descriptor(operand_at<S>(x), K * 128);
#pragma unroll
    for (int step = FROM / 16; step < (FROM + ROWS) / 16; step++) {
        wgmma::Product<S::BF16, S::D>::template rs<1>(sum, p + 4 * step - FROM / 4,
                                                      right + step * 128, 1);
    }
    wgmma::commit();
}

/* True if any of the warpgroup's 128 threads says so. */
__device__ __forceinline__ bool any_of_group(int group, bool mine)
{
    return ptx::group_any(1 + group, mine);
}

/* Notes if a result of the block of keys is not finite. */
__device__ __forceinline__ void note_block(const attn_cuda_backward_params &a, int64_t block,
                                           bool bad)
{
    a.bad_keys[block] = bad;
}
