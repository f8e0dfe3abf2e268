/*
 * shared.h: keys that several sequences share, because their tables begin with the same pages, as
 * those of forks do. A whole segment of them is summed once, with the rows of all these sequences
 * side by side in the lanes, and joined with each sequence's other segments at its place in the
 * tree (core/segment.h). Bits of a row depend neither on its neighbours in the lanes nor on who
 * sums a node, so they are those of a sequence on its own. Not here: threads (items.c).
 */
#ifndef ATTN_CPU_FORWARD_SHARED_H
#define ATTN_CPU_FORWARD_SHARED_H

#include "cpu/forward/item.h"

/* Keys that sequences of a call share. A task sums pieces of neighbouring strips. */
typedef struct attn_shared {
    const attn_cpu_plan *plan;
    const attn_problem *problem;
    int64_t tasks; /* 0: nothing is shared */
    int64_t used;  /* pieces */
    int64_t families;
    attn_family *family;
    int64_t *order;   /* sequences, family by family */
    int64_t *of, *at; /* [sequences]: a sequence's family, or -1, and its place there */
    char *pieces, *taken;
} attn_shared;

/* Compares the tables of all sequences. */
void attn_shared_find(attn_shared *shared, const attn_cpu_plan *plan, const attn_problem *problem,
                      void *workspace);

/* Describes a task as an item: sets *item to its rows, which are those of all sequences of a family
 * one behind the other, and *sequence to one that has the keys they share. Returns the numbers of
 * these sequences. */
const int64_t *attn_shared_rows(const attn_shared *shared, int64_t task, attn_item *item,
                                attn_sequence *sequence);

/* The segment of keys that a task sums. */
int64_t attn_shared_segment(const attn_shared *shared, int64_t task);

/* The piece of a task's first strip. Those of its other ones follow. */
attn_piece *attn_shared_piece(const attn_shared *shared, int64_t task);

/* The number of segments that sequence b shares with others; 0: none. */
int64_t attn_shared_segments(const attn_shared *shared, int64_t b);

/* Copies the lanes of an item's rows out of a shared segment's sum, to a piece of the item's own
 * thread. Returns that piece. */
attn_piece *attn_shared_take(const attn_shared *shared, const attn_forward_item *item,
                             int64_t segment);

#endif
