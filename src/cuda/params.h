/* params.h: arguments of the kernels of the forward pass, by value. C and CUDA. */
#ifndef ATTN_CUDA_PARAMS_H
#define ATTN_CUDA_PARAMS_H

#include "core/mask.h"

/* CUtensorMap of the driver: opaque, made by cuTensorMapEncodeTiled. */
typedef struct attn_tensor_map {
#ifdef __cplusplus
    alignas(64) uint64_t opaque[16];
#else
    _Alignas(64) uint64_t opaque[16];
#endif
} attn_tensor_map;

/* Ways of forward_sm90 tiles into shared memory: by TMA from whole sequences; by TMA from
 * sequences that may end inside the tensors, perhaps with the heads of a group folded into rows;
 * the same where V is the first columns of K, where keys lie in pages, or both; or by the
 * producer's threads. The merge of splits has no tiles. */
enum {
    ATTN_CUDA_WHOLE,
    ATTN_CUDA_RAGGED,
    ATTN_CUDA_VIEW,
    ATTN_CUDA_PAGED,
    ATTN_CUDA_THREADS,
    ATTN_CUDA_MERGE,
    ATTN_CUDA_PAGED_VIEW
};
#define ATTN_CUDA_IS_VIEW(loads) ((loads) == ATTN_CUDA_VIEW || (loads) == ATTN_CUDA_PAGED_VIEW)
#define ATTN_CUDA_IS_PAGED(loads) ((loads) == ATTN_CUDA_PAGED || (loads) == ATTN_CUDA_PAGED_VIEW)

/* How a kernel of forward_sm90 makes exponents of products: by a scale; by steps that it asks for
 * in each block (steps_sm90.cuh); by softcap alone, by ALiBi alone (scores_sm90.cuh); by a scale
 * beside a mask tensor alone, of bytes or of bits by lane (masked_sm90.cuh), beside a bias alone
 * (biased_sm90.cuh). */
enum {
    ATTN_CUDA_SCALED,
    ATTN_CUDA_STEPPED,
    ATTN_CUDA_CAPPED,
    ATTN_CUDA_SLOPED,
    ATTN_CUDA_MASKED,
    ATTN_CUDA_MASKED_LANES,
    ATTN_CUDA_BIASED
};

/* Splits of keys of 16 bits on forward_few (heads beyond 256 columns): beyond that many each has up
 * to so many times as many blocks as schedule.least. */
enum {
    ATTN_CUDA_FEW_TIMES = 4,
    ATTN_CUDA_FEW_GROUP = 4, /* splits whose sums are added first */
    ATTN_CUDA_EVEN_SPLITS = 8,
    ATTN_CUDA_EVEN_TIMES = 2,
    ATTN_CUDA_MOST_SPLITS = 64
};

/* Work item <-> (sequence, head, block of rows); kernel/schedule.cuh explains the order. */
typedef struct attn_cuda_schedule {
    int64_t items;
    int32_t rows;    /* query rows per item */
    int32_t blocks;  /* items of one head of one sequence (dense) */
    int32_t columns; /* batch x query heads (dense) */
    int32_t section; /* columns that share the L2 cache */
    /* sections; the last one has all columns that are left */
    int32_t sections;
    int32_t heads;   /* columns of one sequence: its query heads, `fold` at a time */
    int32_t fold;    /* query heads of a group whose rows share a tile (ATTN_CUDA_RAGGED), or 1 */
    int32_t piece;   /* query rows in 64 rows of a tile: 64 / fold */
    int32_t inverse; /* ceil(2^16 / fold): r * inverse >> 16 is r / fold for r < 64 */
    int32_t splits;  /* most splits of an item's keys; items counts all of them */
    int32_t least;   /* blocks of keys in each split but an item's last */
    int32_t few;     /* keys below which an item is not split */
} attn_cuda_schedule;

/* The least blocks in a split where sequences of more than ATTN_CUDA_EVEN_SPLITS splits have up to
 * `times` times as many. count: blocks of the item. */
ATTN_CORE int32_t attn_cuda_evened_least(const attn_cuda_schedule *s, int32_t times, int32_t count)
{
    const int32_t even = (count + ATTN_CUDA_EVEN_SPLITS - 1) / ATTN_CUDA_EVEN_SPLITS,
                  most = times * s->least;
    return even > most ? most : even > s->least ? even : s->least;
}

/* The blocks in each split but the last of an item's `count` blocks. least: that many of them;
 * keys: of the sequence. */
ATTN_CORE int32_t attn_cuda_split_each(const attn_cuda_schedule *s, int32_t least, int32_t keys,
                                       int32_t count)
{
    const uint32_t blocks = (uint32_t)count, part = (uint32_t)least; /* unsigned divides faster */
    const uint32_t parts = (blocks + part - 1) / part, most = (uint32_t)s->splits;
    const uint32_t splits = keys < s->few || parts == 0 ? 1 : parts < most ? parts : most;
    return (int32_t)((blocks + splits - 1) / splits);
}

/* Results of splits of the keys, in the GPU's memory until they are merged. Each of `rows` rows of
 * each split of each item has `columns` sums, and a base, the sum of its probabilities, its largest
 * score and an unused word (kernel/forward/split_sm90.cuh). */
typedef struct attn_cuda_parts {
    float *sums, *states;
    int32_t rows, columns;
} attn_cuda_parts;

/* Whole numbers in the GPU's memory, `step` bytes apart, of 64 bits or 32. data == NULL: absent. */
typedef struct attn_cuda_index {
    const char *data;
    int64_t step;
    bool wide;
} attn_cuda_index;

enum {
    ATTN_CUDA_CU_Q,
    ATTN_CUDA_CU_K,
    ATTN_CUDA_USED_Q,
    ATTN_CUDA_USED_K,
    ATTN_CUDA_PAD_K,
    ATTN_CUDA_INDICES
};

/* Where rows of K or V in pages lie. step: eights of rows from a page to the next. In tiles, in 16
 * bytes: from 8 rows to the next 8, and from a chunk of 64 columns to the next. */
typedef struct attn_cuda_lie {
    int32_t step;
    uint32_t eight, chunk;
} attn_cuda_lie;

/* Pages of keys: `size` rows each, loaded `box` at a time, which all lie in one page. */
typedef struct attn_cuda_pages {
    int32_t size, box;
    int32_t boxes;    /* of a tile */
    uint32_t inverse; /* 2^32 / size, rounded down */
    /* A box has all chunks of its rows, eights of rows one after the other. */
    bool eights;
    attn_cuda_lie k, v;
} attn_cuda_pages;

enum {
    ATTN_CUDA_ALIGNED_Q = 1,
    ATTN_CUDA_ALIGNED_K = 2,
    ATTN_CUDA_ALIGNED_V = 4,
    ATTN_CUDA_ALIGNED_D_O = 8
};

/* A tensor whose rows are read and written 16 bytes at a time: steps in bytes. */
typedef struct attn_cuda_place {
    char *data;
    int64_t batch, row, head;
} attn_cuda_place;

/* The members of a problem that kernels for one block of keys take. */
typedef struct attn_cuda_single {
    attn_cuda_place q;
    attn_band band;
    int32_t group, d, dv;
    bool masked; /* some row sees less than a whole block */
    attn_cuda_place k, v, o;
} attn_cuda_single;

/* A divisor of whole numbers. inverse: ceil(2^32 / by), or 0 where its quotients are not exact. */
typedef struct attn_cuda_divisor {
    uint32_t by, inverse;
} attn_cuda_divisor;

/* The members of a problem that every CTA of forward_few takes. */
typedef struct attn_cuda_few {
    /* ctas: of a block of rows */
    attn_cuda_divisor ctas, blocks, kv_heads, group;
    int32_t nq, keys;
    /* blocks of keys of a split, where rows are one block that sees all keys of sequences of one
     * length; else 0 */
    int32_t each;
    int32_t before, after; /* row i sees keys i + diagonal - before .. i + diagonal + after */
    /* rows and keys begin where the tensors do; without origins, and lengths of keys alone */
    bool plain;
    bool top_left;            /* the diagonal is 0, not keys - nq */
    bool light;               /* score steps are softcap, ALiBi and the scale alone */
    uint8_t run;              /* splits of a CTA: one, a group, or all */
    uint8_t entry;            /* bytes of an entry of the table of pages; 0: none */
    bool straight;            /* kernel/forward/few_line.cuh loads the keys */
    bool used;                /* lengths of keys are given */
    bool steps;               /* scores are more than scaled products */
    int16_t k_bytes, v_bytes; /* of a row of K and of V */
    attn_cuda_place k, v, q;
    float *sums; /* of splits: attn_cuda_parts */
    float *states;
    int32_t page, last_page; /* rows of a page; the last one there is */
    uint32_t page_inverse;   /* 2^32 / page, rounded down */
    float scale_log2;
    const char *table; /* pages of sequences: steps in bytes */
    int64_t table_sequence, table_entry;
    int32_t parts;  /* of a row for the merge: splits, or sums that CTAs have added up */
    uint32_t items; /* of all CTAs; one does the gridDim.x-th after its own, too, if it stays */
} attn_cuda_few;

/* Ways of a bias to forward_sm90's steps. */
typedef enum attn_cuda_bias {
    ATTN_CUDA_NONE,     /* no bias */
    ATTN_CUDA_COPIED_2, /* 16 bytes at a time, of 2-byte elements */
    ATTN_CUDA_COPIED_4, /* of f32 */
    ATTN_CUDA_GATHERED  /* element by element */
} attn_cuda_bias;

/* From products of q and k to scores on forward_sm90 (steps_sm90.cuh, softcap.cuh). The first step
 * that there is multiplies with the scale. */
typedef struct attn_cuda_steps {
    float scale;                       /* if no other step has it */
    float bias_factor, alibi_factor;   /* the scale, or 1 after a step that had it */
    float near_scale, near[5];         /* softcap: z = near_scale s; scale P(z^2), lowest first */
    float near_most;                   /* largest |s| of the polynomial */
    float far_scale, far_cap;          /* e^(2|z|) = 2^(far_scale |s|); softcap, by sign of scale */
    bool scaled, softcap, alibi, mask; /* the steps of the problem */
    bool masks;                        /* a position may be masked by more than geometry */
    bool mask_copied;                  /* 16 bytes at a time */
    int32_t bias;                      /* attn_cuda_bias */
    int64_t bias_row, bias_step, mask_row, mask_step; /* bytes */
    float cap[5], cap_most, cap_far; /* ATTN_CUDA_CAPPED: x = s P(s^2) up to this s^2; softcap */
    float slope_factor;              /* ATTN_CUDA_SLOPED: from products to exponents of 2 */
} attn_cuda_steps;

/* Dropout, as kernel/rows/dropout.cuh wants it. */
typedef struct attn_cuda_dropout {
    uint32_t keys[ATTN_PHILOX_ROUNDS][2]; /* of each round; LOP3 takes them from the arguments */
    uint32_t carry, either;               /* kept_pair */
} attn_cuda_dropout;

/* Bits of a mask tensor, as lanes of forward_sm90 read them: 8 bytes a lane for 16 rows and 128
 * keys (kernel/rows/flags.cuh). Steps in bytes, row: a sixteenth of that from 16 rows to the next;
 * last: the first of the last 16 rows. */
typedef struct attn_cuda_lanes {
    const char *bits;
    int64_t batch, head;
    int32_t row, last;
} attn_cuda_lanes;

/* Small members come first, in the order of their use: constants come in lines of 64 bytes, and a
 * kernel of a few microseconds waits for each new line. */
typedef struct attn_cuda_forward_params {
    union {
        attn_cuda_single single;
        attn_cuda_few few;
        attn_cuda_dropout dropout;
        attn_cuda_lanes lanes;
    };
    float scale_log2; /* > 0: the factor from the softmax's operands to exponents of 2 */
    bool steps;       /* scores are more than scaled products, or a mask tensor counts */
    bool o_boxed;     /* O is laid out for the TMA, and of the inputs' type */
    bool statistics;  /* a row has a maximum to it beside O, a sink, or an LSE in f64 */
    bool lse_alone;   /* a row has an LSE, and none of these */
    bool whole;       /* every sequence is as long as the tensors, without an origin */
    bool joined;      /* a tile of K or V, and a warp's rows of O, are one box with all chunks */
    int32_t aligned;  /* without TMA: tensors whose rows can be read 16 bytes at a time */
    /* items handed out so far, 0 at the launch; NULL = every CTA takes a fixed share */
    uint32_t *counter;
    attn_cuda_schedule schedule;
    attn_cuda_parts parts; /* if schedule.splits > 1 */
    attn_cuda_index index[ATTN_CUDA_INDICES];
    attn_cuda_pages pages; /* ATTN_CUDA_PAGED */
    attn_tensor_map q_map, k_map, v_map, o_map,
        o_row_map; /* for kernels that load by TMA; o_map if o_boxed */
    attn_problem problem;
    attn_cuda_steps steps_sm90;
} attn_cuda_forward_params;

#ifdef __cplusplus
static_assert(sizeof(attn_cuda_forward_params) <= 4096, "kernel parameters");
#else
_Static_assert(sizeof(attn_cuda_forward_params) <= 4096, "kernel parameters");
#endif

#endif
