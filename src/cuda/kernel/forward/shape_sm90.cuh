/*
 * shape_sm90.cuh: the compile-time shape of a forward_sm90 kernel and its map of shared memory:
 *
 *     Q [BM][D] | K [2][BN][D] | V [2][BN][DV] | O [BM][DV] (up to 128, by TMA) | barriers | posts
 * [2] | bounds [BM] score steps: .. V [2][BN][D] | for each warp O [16][D] or bias f32 [16][BN] |
 * barriers .. f32: .. V [2][BN][D] | raw [2][BN][D] | barriers ..
 *
 * An f32 operand is three tiles of bf16 parts, one after the other (mma.cuh); raw are tiles of K
 * and V before they are split. Operands lie in chunks of 64 columns (wgmma.cuh). A post is the
 * producer's description of an item; bounds are the keys that each row of the item sees.
 */
#pragma once
#include "cuda/kernel/ptx/ptx.cuh"
#include "cuda/kernel/schedule.cuh"
#include "cuda/shape.h"

template <int DTYPE_, int D_, int GROUPS_, int BN_, int REGISTERS_, bool TURNS_, int LOADS,
          int SCORES_ = ATTN_CUDA_SCALED, int DV_ = D_>
struct Shape {
    static constexpr int DTYPE = DTYPE_;
    static constexpr bool BF16 = DTYPE != ATTN_F16; /* type of the products' operands */
    static constexpr int D = D_, DV = DV_;          /* head dimensions: of Q and K, of V and O */
    static constexpr int WIDE = (D + 63) / 64 * 64,
                         V_WIDE = (DV + 63) / 64 * 64; /* columns, rounded up to chunks of 64 */
    static constexpr int WIDEST = D > DV ? D : DV, V_COLUMNS = DV;
    static constexpr int GROUPS = GROUPS_, BN = BN_, BM = 64 * GROUPS, REGISTERS = REGISTERS_;
    /* A CTA shares out the registers that it was launched with; a request for more waits for
     * ever. */
    static constexpr int LAUNCHED = 65536 / (128 * (GROUPS + 1)) / 8 * 8;
    static constexpr int LEFT = LAUNCHED * (GROUPS + 1) - GROUPS * REGISTERS;
    static constexpr int PRODUCER_REGISTERS = LEFT < 152 ? LEFT : 152;
    static constexpr bool TURNS = TURNS_; /* consumers take turns at issuing products */
    static constexpr bool TMA = LOADS != ATTN_CUDA_THREADS; /* else the producer's threads load */
    /* Sequences may end inside the tensors, heads may be folded into rows (ragged_sm90.cuh). */
    static constexpr bool VIEW = ATTN_CUDA_IS_VIEW(LOADS);   /* V is the first columns of K */
    static constexpr bool PAGED = ATTN_CUDA_IS_PAGED(LOADS); /* keys lie in pages */
    static constexpr bool RAGGED = LOADS == ATTN_CUDA_RAGGED || VIEW || PAGED;
    /* Tiles of K and V may come as one box with all chunks, rows of O go so. */
    static constexpr bool JOINS = TMA && !PAGED && ATTN_SM90_JOINS(D, DV);
    /* Eights of a tile's rows may each lie with all chunks together (paged_sm90.cuh). */
    static constexpr bool EIGHTS = LOADS == ATTN_CUDA_PAGED && ATTN_SM90_JOINS(D, DV);
    static constexpr bool SHARED = false;  /* groups share rows of Q: WideShape */
    static constexpr bool SWAPS = false;   /* and swap probabilities (swap_sm90.cuh) */
    static constexpr bool DROPS = false;   /* dropout: DroppedShape */
    static constexpr bool KEEPS = false;   /* what rows keep is added up: f16 with dropout */
    static constexpr int STAGES = 2;       /* tiles of K, and of V, at a time */
    static constexpr int SCORES = SCORES_; /* how exponents follow from products: params.h */
    /* Scores are computed or masked before exponents (steps_sm90.cuh, masked_sm90.cuh). */
    static constexpr bool MASKED = ATTN_SM90_IS_MASKED(SCORES),
                          STEPS = SCORES == ATTN_CUDA_STEPPED || MASKED;
    /* Blocks far from the rows may have probabilities of 0 alone. */
    static constexpr bool VANISHES = SCORES == ATTN_CUDA_SLOPED;
    /* A tensor may mask a position. */
    static constexpr bool MASKS = ATTN_SM90_HAS_NOTES(SCORES);
    /* Rows that have seen few keys keep their warp from its quick way only where they see some of a
     * block. */
    static constexpr bool PASSES = SCORES == ATTN_CUDA_MASKED_LANES;
    /* Values that follow from the thread's number and are computed anew in each block, since a mask
     * or a bias leaves no registers for them: none, the next turn's barrier, and the leader. */
    static constexpr int LEAN = MASKED ? 1 : SCORES == ATTN_CUDA_BIASED ? 2 : 0;
    static constexpr int LOADERS = TMA ? 1 : 128;
    static constexpr int Q_PIECES =
        TMA ? GROUPS : 1; /* by TMA the rows of Q of each group come and go by themselves */
    static constexpr int PARTS = DTYPE == ATTN_F32 ? 3 : 1, ELEMENT = DTYPE == ATTN_F32 ? 4 : 2;
    static constexpr int Q_PART = BM * WIDE * 2, K_PART = BN * WIDE * 2,
                         V_PART = BN * V_WIDE * 2; /* 16-bit elements */
    static constexpr int Q_BYTES = PARTS * Q_PART, K_BYTES = PARTS * K_PART,
                         V_BYTES = PARTS * V_PART;
    /* A block's probabilities are computed while P V of the block before goes on: those of FRESH
     * steps of 16 keys in registers of their own, then those of more in registers of P, of which
     * AWAITED steps of P V have been read by then, then the rest. Three groups have no registers
     * for that, and d_v beyond 128 gains nothing. */
    static constexpr bool AHEAD = TMA && GROUPS == 2 && DV <= 128 && SCORES != ATTN_CUDA_STEPPED &&
                                  SCORES != ATTN_CUDA_SLOPED;
    static constexpr int FRESH = AHEAD ? (MASKED ? 1 : 2) : 0, AWAITED = 2 * FRESH;
    /* half of the first block is left out where no row sees it */
    static constexpr bool HALVES = BN == 128;
    static constexpr bool STAGED =
        TMA && WIDEST <= 128;          /* O leaves by way of shared memory (store_sm90.cuh) */
    static constexpr bool BOXED = TMA; /* ordinary rows of a warp leave together */
    static constexpr int STAGE_CHUNK = 16 * 128;
    /* shared memory has room for a tile of the bias */
    static constexpr bool BIAS =
        SCORES == ATTN_CUDA_STEPPED && ATTN_SM90_BIAS_BYTES(DTYPE, D, BN) > 0;
    /* A warp's room for its 16 rows of O, or before that of a block's bias. */
    static constexpr int WARP_BYTES = ATTN_SM90_WARP_BYTES(DTYPE, D, DV, BN, LOADS, SCORES);
    static constexpr int O_BYTES = 4 * GROUPS * WARP_BYTES;
    /* f32: parts of Q that consumers hold in registers, as many as fit: products with both operands
     * in shared memory take longer. */
    static constexpr int Q_HELD = PARTS == 1 || (GROUPS > 1 && D > 64) ? 0
                                  : SCORES == ATTN_CUDA_SCALED         ? PARTS
                                                                       : 1;
    static constexpr int RAW_BYTES = PARTS == 1 ? 0 : BN * D * 4;
    static constexpr int SHARED_BYTES = ATTN_SM90_BYTES(DTYPE, D, DV, GROUPS, BN, LOADS, SCORES);
};

/* Head dimensions beyond 256: two groups share 64 rows of Q, and each has half of the columns of V
 * and O (wide_sm90.cuh, where V is a view of K swap_sm90.cuh). */
template <int DTYPE_, int D_, int REGISTERS_, int LOADS>
struct WideShape : Shape<DTYPE_, D_, 2, 64, REGISTERS_, false, LOADS, ATTN_CUDA_SCALED, 256> {
    using Base = Shape<DTYPE_, D_, 2, 64, REGISTERS_, false, LOADS, ATTN_CUDA_SCALED, 256>;
    static constexpr bool SHARED = true, SWAPS = Base::VIEW;
    static constexpr bool BOXED = false;
    static constexpr int STAGES = Base::VIEW ? 2 : 1;
    static constexpr int BM = 64, Q_PIECES = 1, V_WIDE = 512, V_COLUMNS = 512, WIDEST = 576;
    static constexpr int Q_PART = BM * Base::WIDE * 2, Q_BYTES = Q_PART;
    static constexpr int V_BYTES = Base::VIEW ? 0 : Base::BN * V_WIDE * 2;
    static constexpr int SHARED_BYTES = ATTN_SM90_WIDE_BYTES(DTYPE_, D_, LOADS);
};

/* Dropout. */
template <int DTYPE_, int D_, int GROUPS_, int BN_, int REGISTERS_, bool TURNS_, int SCORES_>
struct DroppedShape
    : Shape<DTYPE_, D_, GROUPS_, BN_, REGISTERS_, TURNS_, ATTN_CUDA_RAGGED, SCORES_> {
    static_assert(BN_ % 16 == 0, "blocks are of whole calls of Philox (dropped.cuh)");
    static constexpr bool DROPS = true, KEEPS = DTYPE_ == ATTN_F16;
};

enum { MOST_STAGES = 2, POSTS = 2, MOST_GROUPS = 3 };

/* How rows end, if all of them are ordinary (store_sm90.cuh). */
enum Ending {
    ENDS_ALONE,  /* each by itself: more than O and LSE is asked for, or O is not laid out for it */
    ENDS_BOXED,  /* all of a warp in one box */
    ENDS_LOOKED, /* the same; each by itself, if some are not finite */
    ENDS_AGAIN   /* the same; with the whole item once more, if some are not finite */
};

struct Post {
    Item item;
    Blocks blocks;
    Blocks groups[MOST_GROUPS]; /* those that each group's rows see */
    Ending ending;
    bool end;       /* the end: there are no more items */
    bool nonfinite; /* values that are not finite were cleared from a tile of V (clean.cuh) */
    bool clean;     /* by TMA: the item is done once more, with tiles of V cleaned */
    uint32_t again; /* by TMA: 1 if a row came out non-finite beside keys that it does not see */
    uint32_t item_index; /* by TMA: the item's number */
    uint32_t index;      /* for the producer: number of the item, then of the next one */
    uint32_t tiles;      /* items before this one with key blocks: uses of Q's place */
    uint32_t number;     /* of the first block, counted over the CTA's items */
    /* ragged: keys of the rightmost block, where rows of others follow in it; else 0 */
    int tail;
    int split;     /* ragged: number of the item's split of the keys */
    char *o, *lse; /* by TMA: of the item's first row; LSE if a.lse_alone */
    int64_t part;  /* ragged: the number of the split's first row in a.parts */
};

/* A warp's notes on its item's score steps (steps_sm90.cuh), kept here since registers are few. */
struct StepsNote {
    const char *bias, *mask;  /* address of the element of the warp's first row and key 0 */
    int bias_rows, mask_rows; /* rows from there to the last one of the tensor */
    int64_t position;         /* i + off in C3 of the warp's first row */
    float slope;
    int whole; /* the last key from which a block of the mask is all there; -1: none */
};
static_assert(sizeof(StepsNote) == ATTN_SM90_NOTE_BYTES, "shape.h");

/* The parity of the n-th use of a ring of posts. */
__device__ __forceinline__ uint32_t parity(uint32_t n)
{
    static_assert(POSTS == 2, "a ring of two");
    return n / 2 & 1;
}

/* Addresses in shared memory. n counts the uses of a ring. */
template <class S> struct Memory {
    unsigned char *start; /* aligned to 1024 */
    uint32_t base;        /* its address in shared memory */

    __device__ __forceinline__ uint32_t q() const
    {
        return base;
    }
    __device__ __forceinline__ uint32_t k(uint32_t n) const
    {
        return base + S::Q_BYTES + n % S::STAGES * S::K_BYTES;
    }
    __device__ __forceinline__ uint32_t v(uint32_t n) const
    {
        return S::VIEW ? k(n)
                       : base + S::Q_BYTES + S::STAGES * S::K_BYTES + n % S::STAGES * S::V_BYTES;
    }

    /* Room of warp w of the consumers for its 16 rows of O, or of a block's bias. */
    __device__ __forceinline__ uint32_t o(int w) const
    {
        return base + O_AT + w * S::WARP_BYTES;
    }

    /* The n-th tile of K or V in f32, before it is split. */
    __device__ __forceinline__ uint32_t raw(uint32_t n) const
    {
        return base + RAW_AT + n % 2 * S::RAW_BYTES;
    }

    static constexpr int BARRIERS =
        2 * S::Q_PIECES + 4 * MOST_STAGES + 3 * POSTS + (S::TMA ? MOST_STAGES : 0);
    static constexpr int O_AT = S::Q_BYTES + S::STAGES * (S::K_BYTES + S::V_BYTES);
    static constexpr int RAW_AT = O_AT + S::O_BYTES;
    static constexpr int BARRIERS_AT = RAW_AT + 2 * S::RAW_BYTES;
    static constexpr int POSTS_AT = BARRIERS_AT + BARRIERS * 8;
    static constexpr int BOUNDS_AT = BARRIERS_AT + ATTN_SM90_CONTROL;
    static_assert(POSTS_AT + POSTS * (int)sizeof(Post) <= BOUNDS_AT, "room for barriers and posts");
    static constexpr int NOTES_AT = BOUNDS_AT + 64 * S::GROUPS * (int)sizeof(int2);
    static constexpr int NOTES = S::MASKS ? 4 * S::GROUPS : 0;
    static constexpr int SWAPPED_AT = NOTES_AT + NOTES * ATTN_SM90_NOTE_BYTES;
    static constexpr int SWAPPED = S::SWAPS ? ATTN_SM90_SWAP_BYTES : 0;
    static_assert(SWAPPED_AT + SWAPPED + ATTN_SM90_ALIGN == S::SHARED_BYTES, "shape.h");

    __device__ __forceinline__ uint32_t barrier(uint32_t i) const
    {
        return base + BARRIERS_AT + 8 * i;
    }
    __device__ __forceinline__ uint32_t q_full(int piece) const
    {
        return barrier(4 * MOST_STAGES + 3 * POSTS + piece);
    }
    __device__ __forceinline__ uint32_t q_empty(int piece) const
    {
        return barrier(4 * MOST_STAGES + 3 * POSTS + S::Q_PIECES + piece);
    }
    /* V has come, but is not clean (clean_tiles) */
    __device__ __forceinline__ uint32_t v_raw(uint32_t n) const
    {
        return barrier(4 * MOST_STAGES + 3 * POSTS + 2 * S::Q_PIECES + n % S::STAGES);
    }
    __device__ __forceinline__ uint32_t k_full(uint32_t n) const
    {
        return barrier(n % S::STAGES);
    }
    __device__ __forceinline__ uint32_t k_empty(uint32_t n) const
    {
        return barrier(MOST_STAGES + n % S::STAGES);
    }
    __device__ __forceinline__ uint32_t v_full(uint32_t n) const
    {
        return barrier(2 * MOST_STAGES + n % S::STAGES);
    }
    __device__ __forceinline__ uint32_t v_empty(uint32_t n) const
    {
        return barrier(3 * MOST_STAGES + n % S::STAGES);
    }
    __device__ __forceinline__ uint32_t post_full(uint32_t n) const
    {
        return barrier(4 * MOST_STAGES + n % POSTS);
    }
    __device__ __forceinline__ uint32_t post_empty(uint32_t n) const
    {
        return barrier(4 * MOST_STAGES + POSTS + n % POSTS);
    }
    /* A post is there, but for its views. */
    __device__ __forceinline__ uint32_t post_begun(uint32_t n) const
    {
        return barrier(4 * MOST_STAGES + 2 * POSTS + n % POSTS);
    }
    __device__ __forceinline__ Post &post(uint32_t n) const
    {
        return ((Post *)(start + POSTS_AT))[n % POSTS];
    }
    __device__ __forceinline__ Post &await_post(uint32_t n) const
    {
        ptx::mbarrier_wait(post_full(n), parity(n));
        return post(n);
    }
    __device__ __forceinline__ int2 *bounds() const
    {
        return (int2 *)(start + BOUNDS_AT);
    }
    /* The notes of warp w of the consumers. */
    __device__ __forceinline__ StepsNote &note(int w) const
    {
        return ((StepsNote *)(start + NOTES_AT))[w];
    }

    /* What one of two groups tells the other of a row: bases of group 0, of group 1; sums of both
     * after an even item; after an odd one. */
    __device__ __forceinline__ float2 &swapped(int what, int row) const
    {
        return ((float2 *)(start + SWAPPED_AT))[what * 64 + row];
    }

    /* One thread. Full barriers of tiles are arrived at by the loading threads, empty ones by the
     * consumer groups: of halves of tiles by one of them. No post waits to be done again. */
    __device__ __forceinline__ void init_barriers() const
    {
        for (int piece = 0; piece < S::Q_PIECES; piece++) {
            ptx::mbarrier_init(q_full(piece), S::LOADERS);
            ptx::mbarrier_init(q_empty(piece), S::GROUPS / S::Q_PIECES);
        }
        for (int n = 0; n < S::STAGES; n++) {
            ptx::mbarrier_init(k_full(n), S::LOADERS);
            ptx::mbarrier_init(v_full(n), S::LOADERS);
            ptx::mbarrier_init(k_empty(n), S::SWAPS ? 1 : S::GROUPS);
            ptx::mbarrier_init(v_empty(n), S::SWAPS ? 1 : S::GROUPS);
            if (S::TMA) {
                ptx::mbarrier_init(v_raw(n), 1);
            }
        }
        for (int n = 0; n < POSTS; n++) {
            post(n).again = 0;
            ptx::mbarrier_init(post_full(n), 1);
            /* warps that read a post, without its writer */
            ptx::mbarrier_init(post_empty(n), 4 * S::GROUPS + (S::RAGGED ? 3 : S::TMA ? 2 : 4));
            ptx::mbarrier_init(post_begun(n), 1);
        }
        ptx::fence_mbarrier_init();
    }
};

/* The parity of the n-th use of a ring of tiles of K or V. */
template <class S> __device__ __forceinline__ uint32_t tile_parity(uint32_t n)
{
    return n / S::STAGES & 1;
}
