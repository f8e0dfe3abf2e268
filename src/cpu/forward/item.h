/*
 * item.h: the state of one item on one thread, and the places of its strips.
 */
#ifndef ATTN_CPU_FORWARD_ITEM_H
#define ATTN_CPU_FORWARD_ITEM_H

#include "cpu/forward/plan.h"

/* How far the sum over a strip's keys has come. */
typedef struct attn_sums {
    int64_t segment; /* segment of the sum in OT and the running state; -1: none yet */
    int nodes;       /* sums of earlier segments, which wait (nodes.h) */
    /* sums are columns, as in OT, or rows (pv_rows); or O is stored already */
    enum { ATTN_SUMS_COLUMNS, ATTN_SUMS_ROWS, ATTN_SUMS_STORED } form;
} attn_sums;

/* Where the rows of some keys are. */
typedef struct attn_key_list {
    attn_interval keys;
    const char *k[ATTN_MAX_KEY_BLOCK], *v[ATTN_MAX_KEY_BLOCK];
} attn_key_list;

/* Scales and shifts of the codes of some keys: [key][group]. */
typedef float attn_factors[ATTN_KEY_BLOCK * ATTN_MAX_KEY_GROUPS];
typedef struct attn_key_factors {
    attn_factors scale, shift, k_scale, k_shift;
} attn_key_factors;

typedef struct attn_forward_item {
    const attn_cpu_plan *plan;
    const attn_problem *problem;
    const attn_ukernel *table;
    attn_sequence seq;
    const int64_t *members; /* sequences whose rows the item has, one behind the other; NULL: seq */
    int64_t kv_head, first_row, last_row;
    int64_t heads;      /* > 1: KV heads from first_head on, a strip of each, in turn by blocks */
    int64_t first_head; /* kv_head is the one at hand */
    int64_t place;      /* number of the scratch that it works in */
    attn_interval keys; /* keys to sum: all, or those of a piece */
    int strips;
    attn_score_rows scores;
    char *s, *prob, *strip, *node, *sum; /* regions of attn_scratch_map */
    char *k_space, *v_space;             /* memory of panels */
    const void *k, *v;                   /* panels of the block at hand */
    bool scored;                         /* S of the tile at hand is there already (pack.c) */
    bool special;              /* V of the block at hand has numbers that are not finite .. */
    attn_specials specials;    /* .. these .. */
    uint64_t *seen;            /* .. and lanes that see each of its keys (cpu/specials.h) */
    attn_tile_rows *rows;      /* of each strip */
    attn_sums *sums;           /* of each strip */
    bool by_tile;              /* keys are packed tile by tile: one strip needs each of them once */
    bool by_rows;              /* sums are rows of O (pv_rows) */
    bool few;                  /* products with V are those of pv_few */
    bool k_rows, v_rows;       /* few, and rows of K, of V stay where they are (takes_rows) */
    bool one_row;              /* few, and the strip has one row, in members of body.h */
    bool runs;                 /* few, and keys go block by block through one member (runs.h) */
    attn_key_list *list;       /* [2]: rows of two blocks, if by_tile */
    attn_key_factors *factors; /* of V of the block at hand, if v_rows and codes; K's in runs.c */
    int at_hand;        /* the list of the block at hand; the other one is of the next block */
    attn_soon soon;     /* rows of V of the block, then of K of the next one, if by_tile */
    attn_interval pack; /* keys of the block to pack */
    attn_interval next; /* keys of the next block that are not prefetched yet */
    int64_t next_head;  /* its KV head */
    int64_t next_rows;  /* rows to prefetch per tile */
} attn_forward_item;

static inline char *strip_qt(const attn_forward_item *item, int strip_index)
{
    return item->strip + (uint64_t)strip_index * item->plan->scratch.strip_bytes;
}

/* OT of sum number `level` of the strip; 0 is the oldest. */
static inline char *strip_sum(const attn_forward_item *item, int strip_index, int level)
{
    const attn_cpu_plan *plan = item->plan;
    const int64_t above = (level - 1) * plan->scratch.strip_count + strip_index;
    return level == 0 ? strip_qt(item, strip_index) + plan->scratch.strip_ot
                      : item->sum + above * (int64_t)plan->scratch.ot_bytes;
}

/* OT of the sum at hand. */
static inline char *strip_ot(const attn_forward_item *item, int strip_index)
{
    return strip_sum(item, strip_index, item->sums[strip_index].nodes);
}

static inline attn_running strip_state(const attn_forward_item *item, int strip_index)
{
    int64_t lanes = item->table->strip * item->table->real_size;
    char *m = strip_qt(item, strip_index) + item->plan->scratch.strip_state;
    char *top = item->problem->row_max.data ? m + 3 * lanes : NULL; /* strip_row_max */
    return (attn_running){
        .m = m, .l = m + lanes, .alpha = m + 2 * lanes, .top = item->table->lags ? top : m};
}

/* real [strip]: the largest score so far, of tables whose reference lags and of earlier
 * segments. */
static inline void *strip_row_max(const attn_forward_item *item, int strip_index)
{
    const int64_t lanes = item->table->strip * item->table->real_size;
    return strip_qt(item, strip_index) + item->plan->scratch.strip_state + 3 * lanes;
}

/* The unit of the scores that kernels see, in natural units. */
static inline double strip_unit(const attn_forward_item *item)
{
    return item->plan->scores.has_score_step ? 1 : item->plan->scores.scale;
}

static inline int64_t strip_first(const attn_forward_item *item, int strip_index)
{
    const int64_t before = item->heads > 1 ? 0 : strip_index; /* in rows of the same head */
    return item->first_row + before * item->table->strip;
}

static inline int strip_lanes(const attn_forward_item *item, int strip_index)
{
    return (int)min64(item->last_row - strip_first(item, strip_index), item->table->strip);
}

/* Goes to the KV head of a strip. */
static inline void strip_take_head(attn_forward_item *item, int strip_index)
{
    if (item->heads > 1) {
        item->kv_head = item->first_head + strip_index;
        item->scores.first_head = item->kv_head * item->problem->group;
    }
}

static inline bool strip_sees_nothing(const attn_forward_item *item, int strip_index)
{
    return item->rows[strip_index].mask.hull.lo >= item->rows[strip_index].mask.hull.hi;
}

#endif
