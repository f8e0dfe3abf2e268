/*
 * nodes.h: the sum over the keys of a strip, segment by segment (core/segment.h). The sum of a
 * segment becomes a node once the next segment begins: rows of O divided by their own sums, and the
 * logarithms of these sums. Nodes wait on a stack until their neighbours are complete. The sum at
 * hand lies above them, and its OT becomes the node's O in place. A strip that sees keys of one
 * segment only has no node: its sum stays in OT. With sinks it has a node all the same: the bits of
 * a row must not depend on the keys that other rows of its strip see.
 */
#ifndef ATTN_CPU_FORWARD_NODES_H
#define ATTN_CPU_FORWARD_NODES_H

#include "cpu/forward/item.h"

/* Node i of the strip's stack; 0 is the oldest. */
attn_node *attn_strip_node(const attn_forward_item *item, int strip_index, int i);

/* Resets the running state for the first key of a segment. */
void attn_strip_begin(const attn_forward_item *item, int strip_index);

/* Runs before keys of a segment. True if they are the first ones of it. */
bool attn_strip_enter(attn_forward_item *item, int strip_index, int64_t segment);

static inline char *attn_piece_o(attn_piece *piece)
{
    return (char *)piece + ((sizeof *piece + 63) & ~(size_t)63);
}

/* Runs after the keys of a piece (plan.h): stores its node and O in *piece. */
void attn_strip_save(attn_forward_item *item, int strip_index, attn_piece *piece);

/* Adds a piece behind the earlier ones, as a node of the strip's tree. next: the first segment of
 * the piece after it, or INT64_MAX. */
void attn_strip_add(attn_forward_item *item, int strip_index, attn_piece *piece, int64_t next);

/* Runs after all keys: leaves one node or none. Sum 0 of the strip holds O of node 0, or OT. */
void attn_strip_leave(attn_forward_item *item, int strip_index);

#endif
