/*
 * few_shape.cuh: the compile-time shape of a forward_few kernel, its map of shared memory, and its
 * item.
 *
 *     for each warp: stage [STAGES]: codes of K [16][ROW bytes] | of V | factors [4][16] f32, of
 *                    codes alone;
 *                    places of rows [2][16] | entries of the table [STAGES][16]
 *     SHARED: Q [TILES][UNITS][32 lanes] of 16 bytes
 *     at the end, over all that: sums of warps [WARPS][ROWS][APART] f32 | their states
 *     [WARPS][ROWS]; RUNS: each warp's in the stage of the split's last tile
 *
 * Codes lie in pieces of 16 bytes, moved about within their 128 bytes by `turn`, so that a warp's
 * reads of 32 columns of K (8 keys, four lanes each), and of V (4 keys two apart, eight lanes
 * each), meet no bank twice. Elements of 16 bits are read in two or four phases: 2 keys of K, or 4
 * of V, at a time.
 */
#pragma once
#include "cuda/forward/codes.h"
#include "cuda/kernel/load/widen.cuh"
#include "cuda/kernel/schedule.cuh"
#include "cuda/shape.h"

/* Factors of a key; tensors of an item, codes behind their factors. */
enum { K_SCALE, K_SHIFT, V_SCALE, V_SHIFT, FACTORS, K_CODES = FACTORS, V_CODES, TENSORS };

/* Tensors whose rows a page says the place of (FewShape::TURNS). */
enum { K_TURN, V_TURN, K_SCALE_TURN, V_SCALE_TURN, TURN_TENSORS };

__device__ __forceinline__ int turn_tensor(int which)
{
    return which == K_TURN         ? K_CODES
           : which == V_TURN       ? V_CODES
           : which == K_SCALE_TURN ? K_SCALE
                                   : V_SCALE;
}

/* SHARED: the rows are several sequences' (few_shared.cuh). GOES_ON: a CTA does one item after the
 * other. LOADS: ATTN_CUDA_THREADS: any keys; without score steps: straight ones side by side
 * (ATTN_CUDA_WHOLE), or in pages of whole tiles of a warp (ATTN_CUDA_PAGED). */
template <int DTYPE_, int CODE_, int D_, int ROWS_, int WARPS_, int STAGES_,
          int LOADS_ = ATTN_CUDA_THREADS, bool SHARED_ = false, bool GOES_ON_ = false>
struct FewShape {
    static constexpr int LOADS = LOADS_;
    static constexpr bool ANY = LOADS == ATTN_CUDA_THREADS, LINES = LOADS == ATTN_CUDA_WHOLE,
                          TURNS = LOADS == ATTN_CUDA_PAGED;
    static constexpr int BEGIN = ANY ? 1 - STAGES_ : 0; /* of run_tiles */
    static constexpr int DTYPE = DTYPE_, CODE = CODE_, D = D_, ROWS = ROWS_, STAGES = STAGES_;
    static constexpr bool BF16 = DTYPE == ATTN_BF16, SHARED = SHARED_, GOES_ON = GOES_ON_;
    static constexpr int WARPS = WARPS_, EACH = 16, KEYS = EACH * WARPS; /* of a warp, of all */
    static constexpr int TILES = ROWS / 8, UNITS = D / 32; /* of 8 rows, of 32 columns */
    using Codes = ::Codes<CODE>;
    static constexpr int PARTS = Codes::PLAIN ? 1 : 2; /* of a probability */
    static constexpr int FIRST_TENSOR = Codes::PLAIN ? FACTORS : 0;
    static constexpr int ROW = D * Codes::BITS / 8, TILE = EACH * ROW;
    static constexpr int FACTORS_AT = 2 * TILE, STAGE = ATTN_FEW_STAGE(CODE, D);
    static constexpr int PLACES_AT = STAGES * STAGE, ENTRIES_AT = PLACES_AT + 2 * EACH * 8,
                         WARP = ENTRIES_AT + STAGES * EACH * 8;
    static constexpr int BYTES = WARPS * WARP;
    static constexpr bool FINDS = ANY || (TURNS && !Codes::PLAIN); /* FewItem::places */
    static constexpr bool QUICK = !ANY && !Codes::PLAIN;  /* most tiles are added in few steps */
    static constexpr bool STEPS = !SHARED && ANY;         /* there may be score steps */
    static constexpr bool SHIFTS = ANY && Codes::INTEGER; /* there may be shifts */
    /* TURNS: tiles whose entries of the table are there; whose places are. */
    static constexpr int AHEAD = 32, SETTLED = 32 / TURN_TENSORS;
    static_assert(!TURNS || AHEAD * 8 <= WARP - ENTRIES_AT, "room for entries");
    static_assert(32 * 8 <= ENTRIES_AT - PLACES_AT, "room for places");
    static constexpr int APART = D + 4; /* a warp's stores of 4 rows by 8 columns meet all banks */
    static constexpr int SUMS = ROWS * APART * 4, LEFT = SUMS + ROWS * 16; /* of a warp; bytes */
    /* A CTA goes on to the next split of its rows while its first tiles are under way. ADDS: and
     * adds up what splits leave; codes have no registers for that. */
    static constexpr bool RUNS = !SHARED && LEFT <= STAGE, ADDS = RUNS && Codes::PLAIN;
    /* GOES_ON: Q of the next item lies where straight rows of keys leave room, Q_ROWS rows of it in
     * each warp's part. */
    static constexpr int Q_ROWS = ROWS / WARPS, Q_ROW = D * 2;
    static_assert(!GOES_ON ||
                      ADDS && Q_ROWS * Q_ROW <= WARP - PLACES_AT && Q_ROWS * Q_ROW <= 32 * 16,
                  "room for Q, a piece for each lane");
    static constexpr int Q_AT = BYTES; /* SHARED */
    static_assert(BYTES == ATTN_FEW_BYTES(CODE, D, WARPS, STAGES), "shape.h");
    static_assert(WARPS * LEFT <= BYTES, "room for the sums of warps");

    /* The place of byte `at` of a row in a tile. The place of (r ^ s, a ^ b) is that of (r, a) ^
     * that of (s, b). */
    static __device__ __forceinline__ constexpr int place(int row, int at)
    {
        constexpr int MANY = ROW >= 128 ? 1 : 128 / ROW; /* rows in a line of 128 bytes */
        const int line = row / MANY;
        const int turn = Codes::BITS == 4    ? line & 3
                         : Codes::BITS == 16 ? line & 6 ^ (line & 1) << 2
                         : MANY > 1          ? (line & 3) << 1
                                             : ((line & 3) ^ (line >> 2 & 1)) << 1;
        return (row * ROW + at) ^ (turn << 4);
    }
    /* The address of place ^ other, a constant: the part of it that is moved about, and the
     * rest. */
    static __device__ __forceinline__ int beside(int place, int other)
    {
        return (place ^ (other & 0x70)) + (other & ~0x70);
    }
};

/* Rows of a KV head in a tensor: steps in bytes, 0 along axes that rows share. */
struct FewPlace {
    const char *first; /* NULL: absent */
    int64_t page, row;

    __device__ __forceinline__ const char *at(uint32_t page_index, uint32_t row_index) const
    {
        return first + page_index * page + row_index * row;
    }
};

__device__ __forceinline__ uint32_t quotient(uint32_t n, const attn_cuda_divisor &d)
{
    return d.by == 1 ? n : d.inverse != 0 ? (uint32_t)((uint64_t)n * d.inverse >> 32) : n / d.by;
}

/* Sequences whose tables agree where an item's keys lie: bit s of `slots` is that of sequence
 * first + s; the item's own is slot `own`. */
struct FewFamily {
    uint32_t slots;
    int first, own;
};

/* Where a row of a tile belongs. part: its place in a.parts from item.part on. */
struct FewRow {
    int64_t sequence;
    int query, head, part;
    bool used;
};

/* Rows of all query heads of one KV head, `rows` of them from `first` on; those of a query lie side
 * by side. */
struct FewBlock {
    int kv_head, first, rows;

    /* Query and head of row r. */
    __device__ __forceinline__ int query(const attn_cuda_codes_params &c, int r) const
    {
        return (int)quotient((uint32_t)(first + r), c.forward.few.group);
    }
    __device__ __forceinline__ int head(const attn_cuda_codes_params &c, int r) const
    {
        const int group = (int)c.forward.few.group.by;
        return kv_head * group + first + r - query(c, r) * group;
    }
};

struct FewItem : FewBlock {
    attn_sequence sequence;
    attn_band band;
    Blocks blocks;            /* of the CTA's splits */
    int each;                 /* blocks of a split */
    int64_t part;             /* the place of row 0 of the first split in a.parts */
    FewPlace places[TENSORS]; /* S::FINDS */
    uint32_t masks[2];        /* of Codes */
    FewFamily family;         /* SHARED */

    /* Row r of a tile. */
    template <class S>
    __device__ __forceinline__ FewRow row(const attn_cuda_codes_params &c, int r) const
    {
        if (!S::SHARED) {
            return {sequence.tensor, query(c, r), head(c, r), r, r < rows};
        }
        const int slot = (int)quotient((uint32_t)r, c.sharing.rows),
                  within = r - slot * (int)c.sharing.rows.by,
                  apart = (int)c.sharing.items.by * c.forward.parts.rows;
        return {family.first + slot, query(c, within), head(c, within),
                (slot - family.own) * apart + within, (family.slots >> slot & 1) != 0};
    }
};

/* The part of an item by which its first copies start. */
struct FewStart : FewBlock {
    uint32_t tensor; /* number of the sequence in Q, K and V */
    int k_first;     /* its first key there */
    int keys;        /* of it */
    int last, count; /* blocks */

    __device__ __forceinline__ FewStart(const FewItem &item)
        : FewBlock(item), tensor((uint32_t)item.sequence.tensor),
          k_first((int)item.sequence.k_first), keys(item.band.keys), last(item.blocks.last),
          count(item.blocks.count)
    {
    }
    __device__ __forceinline__ FewStart(const FewBlock &block, uint32_t tensor_, int keys_,
                                        const Blocks &blocks)
        : FewBlock(block), tensor(tensor_), k_first(0), keys(keys_), last(blocks.last),
          count(blocks.count)
    {
    }
};

/* Finds the KV head's rows in tensor number `which`. */
__device__ __forceinline__ FewPlace few_place(const attn_cuda_codes_params &c, int which,
                                              int kv_head)
{
    if (which >= FACTORS) {
        const attn_cuda_place &x = which == K_CODES ? c.forward.few.k : c.forward.few.v;
        return {x.data + kv_head * x.head, x.batch, x.row};
    }
    const attn_tensor &t = which == K_SCALE   ? c.k_scale
                           : which == K_SHIFT ? c.k_shift
                           : which == V_SCALE ? c.v_scale
                                              : c.v_shift;
    const char *first = attn_at_broadcast(&t, 0, 0, kv_head, 0);
    return {attn_tensor_present(&t) ? first : NULL,
            t.shape[0] == 1 ? 0 : attn_at(&t, 1, 0, 0, 0) - attn_at(&t, 0, 0, 0, 0),
            t.shape[1] == 1 ? 0 : attn_at(&t, 0, 1, 0, 0) - attn_at(&t, 0, 0, 0, 0)};
}

/* The item's KV head, counted over all sequences; block of rows, and CTA among those that do it;
 * blocks of all KV heads before it. */
struct FewColumn {
    uint32_t column, block, cta, whole;
};

__device__ __forceinline__ FewColumn few_column(const attn_cuda_few &few, uint32_t index)
{
    const uint32_t whole = quotient(index, few.ctas), column = quotient(whole, few.blocks);
    return {column, whole - column * few.blocks.by, index - whole * few.ctas.by, whole};
}

__device__ __forceinline__ int few_kv_head(const attn_cuda_few &few, uint32_t index)
{
    const uint32_t column = few_column(few, index).column;
    return (int)(column - quotient(column, few.kv_heads) * few.kv_heads.by);
}

/* attn_mask_band of a plain problem, and the diagonal. EVEN: sequences are equally long. */
template <bool EVEN>
__device__ __forceinline__ attn_band plain_band(const attn_cuda_forward_params &a, int sequence,
                                                int &diagonal)
{
    const attn_cuda_few &few = a.few;
    const int nk =
        !EVEN && few.used ? index_at(a.index[ATTN_CUDA_USED_K], sequence, few.keys) : few.keys;
    diagonal = few.top_left ? 0 : nk - few.nq;
    return {max(diagonal - few.before, -(1 << 30)), min(diagonal + few.after + 1, nk), few.nq, nk};
}

/* Fills in sequence and band of a plain problem: attn_problem_sequence and attn_mask_band in few
 * steps. */
template <bool EVEN>
__device__ __forceinline__ void fill_plain(const attn_cuda_forward_params &a, int sequence,
                                           FewItem &item)
{
    int diagonal;
    item.band = plain_band<EVEN>(a, sequence, diagonal);
    attn_sequence &s = item.sequence;
    s.index = s.tensor = sequence, s.outside = false;
    s.q_first = s.k_first = 0;
    s.nq = s.nq_used = a.few.nq, s.nk = item.band.keys, s.k_rows = a.few.keys;
    s.diagonal = diagonal;
}

/* The blocks of a split of `all` blocks. */
template <class S>
__device__ __forceinline__ int few_each(const attn_cuda_forward_params &a, const attn_band &band,
                                        const Blocks &all)
{
    const attn_cuda_schedule &s = a.schedule;
    const int least =
        S::Codes::PLAIN ? attn_cuda_evened_least(&s, ATTN_CUDA_FEW_TIMES, all.count) : s.least;
    return attn_cuda_split_each(&s, least, band.keys, all.count);
}

/* The blocks of a CTA's splits, `run` of them, of rows first .. first + rows - 1; each: of a split.
 * Splits are counted from the left, so that sequences of about one length are cut at the same
 * keys. */
template <class S>
__device__ __forceinline__ Blocks few_blocks(const attn_cuda_forward_params &a,
                                             const attn_band &band, int first, int rows, int cta,
                                             int run, int &each)
{
    const int query = (int)quotient((uint32_t)first, a.few.group),
              last = (int)quotient((uint32_t)(first + rows - 1), a.few.group);
    Blocks b = key_blocks(band, query, last - query + 1, S::KEYS);
    each = a.schedule.splits == 1 ? b.count : few_each<S>(a, band, b);
    const int before = cta * run * each, begin = b.last - b.count + 1 + before;
    b.count = max(min(b.count - before, run * each), 0);
    b.last = begin + b.count - 1;
    b.end = min(b.end, (b.last + 1) * S::KEYS);
    return b;
}

/* The same of rows that are one block, see all keys, and whose sequence is as long as the others:
 * few.each says so. */
template <class S>
__device__ __forceinline__ Blocks even_blocks(const attn_cuda_few &few, const attn_band &band,
                                              int cta)
{
    const int count = (few.keys + S::KEYS - 1) / S::KEYS, most = few.run * few.each,
              begin = cta * most;
    Blocks b;
    b.count = max(min(count - begin, most), 0);
    b.last = begin + b.count - 1;
    b.full_first = 0, b.full_last = clamp_key(band, band.to) / S::KEYS;
    b.end = min(few.keys, (b.last + 1) * S::KEYS);
    return b;
}

/* The rows of an item, and its sequence. */
template <class S>
__device__ __forceinline__ FewBlock few_block(const attn_cuda_few &few, const FewColumn &place,
                                              uint32_t &sequence)
{
    sequence = quotient(place.column, few.kv_heads);
    const int first = (int)place.block * S::ROWS;
    return {(int)(place.column - sequence * few.kv_heads.by), first,
            min(few.nq * (int)few.group.by - first, S::ROWS)};
}

/* The start of an item whose blocks are even_blocks, by each thread for itself. */
template <class S>
__device__ __forceinline__ FewStart even_start(const attn_cuda_few &few, uint32_t index)
{
    const FewColumn place = few_column(few, index);
    uint32_t sequence;
    const FewBlock block = few_block<S>(few, place, sequence);
    return FewStart(block, sequence, few.keys, even_blocks<S>(few, attn_band{}, (int)place.cta));
}

/* Finds an item: a split, or several, of a block of rows of a KV head of a sequence. EVEN: its
 * blocks are even_blocks. */
template <class S, bool EVEN>
__device__ __forceinline__ void few_item(const attn_cuda_forward_params &a, uint32_t index,
                                         FewItem &item)
{
    const attn_problem &p = a.problem;
    const attn_cuda_few &few = a.few;
    const FewColumn place = few_column(few, index);
    uint32_t sequence;
    (FewBlock &)item = few_block<S>(few, place, sequence);
    const typename S::Codes::Masks masks = S::Codes::masks();
    item.masks[0] = masks.low, item.masks[1] = masks.high;
    item.part = (int64_t)S::ROWS *
                (S::ADDS ? index : place.whole * (uint32_t)few.parts + place.cta * few.run);
    if (EVEN || few.plain) {
        fill_plain<EVEN>(a, (int)sequence, item);
    } else {
        fill_segment(a, (int)sequence + 1, item.sequence);
        item.band = attn_mask_band(&p, &item.sequence);
    }
    int each = few.each;
    const bool even = EVEN || (S::RUNS && S::ANY && each > 0);
    item.blocks =
        even ? even_blocks<S>(few, item.band, (int)place.cta)
             : few_blocks<S>(a, item.band, item.first, item.rows, (int)place.cta, few.run, each);
    item.each = each;
}
