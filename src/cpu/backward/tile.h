/*
 * tile.h: one tile of the backward pass: P and dS of a strip and some keys, from their packed Q, K,
 * V and dO. Not here: the products with P and dS (cpu/backward/backward.c), and sums of dS for a
 * bias (cpu/backward/bias.c, cpu/backward/shared_bias.c).
 */
#ifndef ATTN_CPU_GRAD_TILE_H
#define ATTN_CPU_GRAD_TILE_H

#include "core/segment.h"
#include "cpu/backward/plan.h"
#include "cpu/scores.h"
#include "cpu/specials.h"

/* An item, or part of one, on one thread. */
typedef struct attn_grad_item {
    const attn_grad_plan *plan;
    const attn_gradients *grads;
    const attn_problem *problem;
    const attn_ukernel *table;
    const attn_ukernel_grad *grad;
    attn_sequence seq;
    int64_t kv_head;
    attn_score_rows scores;
    attn_cells cells;
    double factor;           /* of dS */
    bool d_scores;           /* tiles leave dS without the factor in `plain` */
    bool natural;            /* dS with respect to the capped score, not to the product */
    bool careful;            /* numbers that are not finite are apart (cpu/specials.h) */
    const void *lse, *delta; /* real [rows] of the whole problem */
    double *partial;         /* of all key sums (backward.h) */

    /* the thread's scratch */
    char *k, *kt, *v, *dk_sums, *dv_sums, *qt, *d_o_t, *q, *d_o, *s, *dp, *p_left, *ds_left, *right,
        *products, *keep, *plain;
    char *lane_lse, *lane_delta, *ones, *dq_sums;
    attn_segment_stack *dq_stacks; /* of each row block of the item */
    double *sums, *key_sums;

    /* of a careful item: the panel kt of the block at hand, numbers of it and of the row block that
     * are not finite, whether there are any, and lanes that see each key of the block [strip] */
    char *clean;
    attn_specials kt_specials, q_specials, d_o_specials;
    bool kt_special, q_special, d_o_special;
    uint64_t *seen;

    /* sums over the segment at hand (sums.h): dK and dV of the panels' keys, dQ of the row block */
    char *dk, *dv, *dq_block;
    attn_segment_stack dkv_stack;

    int64_t first_key;       /* first key of the panels */
    int64_t packed, fetched; /* ends of the keys that are packed, and prefetched */
    uint64_t ready;          /* a bit for each block of keys that is packed */

    /* The row block at hand: rows first_row .. last_row-1 in `strips` strips. */
    int64_t first_row, last_row;
    int strips;
    attn_tile_rows rows[ATTN_MAX_ROW_BLOCK]; /* of each strip */
    uint64_t spoilt[ATTN_MAX_ROW_BLOCK];     /* lanes of each strip whose LSE is NaN */
} attn_grad_item;

/* Points into the workspace, with scratch at `base`; kv_head, fold and so on are the caller's. */
void attn_grad_item_init(attn_grad_item *item, const attn_grad_job *job, char *base);

/* Packs keys first .. last-1, first a multiple of key_block, into their panels k and v, and kt if
 * wanted. */
void attn_grad_pack_keys(attn_grad_item *item, int64_t first, int64_t last, bool transposed);

/* The panel of a block of keys. */
static inline void *attn_grad_panel(const attn_grad_item *item, char *panels, uint64_t bytes,
                                    int64_t key)
{
    return panels + (key - item->first_key) / item->table->key_block * (int64_t)bytes;
}

/* Loads rows first .. last-1, at most row_block: which keys they see, QT, dOT, lse, delta, and q,
 * d_o as rows if wanted. */
void attn_grad_pack_rows(attn_grad_item *item, int64_t first, int64_t last, bool as_rows);

/* A strip's piece of an array of strips. */
static inline char *attn_grad_strip(char *strips, uint64_t bytes, int strip_index)
{
    return strips + strip_index * (int64_t)bytes;
}

/* Rows of a strip. */
int attn_grad_lanes(const attn_grad_item *item, int strip_index);

/* True if products read the tiles of P and dS themselves. */
static inline bool attn_grad_in_place(const attn_grad_item *item)
{
    return item->grad->split == NULL;
}

/* Lanes that kernels work on: forms of P and dS have all lanes of a strip. */
static inline int attn_grad_width(const attn_grad_item *item, int strip_index)
{
    return attn_grad_in_place(item) ? attn_grad_lanes(item, strip_index) : item->table->strip;
}

/* A tile in item->s or item->dp, real [key_tile][strip], whose first key is key `at` of the
 * block. */
static inline char *attn_grad_tile_at(const attn_grad_item *item, char *tiles, int strip_index,
                                      int64_t at)
{
    const int64_t key = strip_index * (int64_t)item->table->key_block + at;
    return attn_grad_in_place(item) ? tiles + key * item->table->strip * item->table->real_size
                                    : tiles;
}

/* The keys that some row of the strip sees by intervals alone: `rows` reads P and dS of all strips
 * of a row block. */
static inline attn_interval attn_grad_part(const attn_grad_item *item, int strip_index,
                                           attn_interval all)
{
    return attn_tile_keys(&item->rows[strip_index], all);
}

/* The tile that begins a part. */
static inline attn_interval attn_grad_first_tile(const attn_grad_item *item, attn_interval part)
{
    return (attn_interval){
        part.lo, min64(part.lo + item->grad->key_tile - part.lo % item->grad->key_tile, part.hi)};
}

/* Computes P and dS of a strip for the keys of one tile of the block that begins at key `block`; 0
 * where masked. Writes them to item->s and item->dp, or in the table's own forms where it has them
 * and the caller wants them. */
void attn_grad_tile_run(attn_grad_item *item, int strip_index, int64_t block, attn_interval keys,
                        const attn_grad_forms *to);

/* True if a factor at hand has numbers that are not finite. */
static inline bool attn_grad_special(const attn_grad_item *item)
{
    return item->kt_special || item->q_special || item->d_o_special;
}

/* Stores dK and dV of keys first .. last-1; keys not in use have sums of 0. False if a result is
 * not finite. */
bool attn_grad_store_keys(const attn_grad_item *item, int64_t first, int64_t last);

/* Stores dQ of rows first .. last-1 of a row block. Returns as attn_grad_store_keys. */
bool attn_grad_store_rows(attn_grad_item *item, int64_t first, int64_t last);

#endif
