/*
 * nodes.h: the sum over the keys of a strip, segment by segment (core/segment.h). The sum of a
 * segment becomes a node once the next segment begins: rows of O that are divided by their own sum,
 * and the logarithms of these sums. Nodes wait on a stack until their neighbours are complete. The
 * sum at hand is above them: its OT becomes the node's O where it lies. A strip that sees keys of
 * one segment only has no node: its sum stays in OT. With sinks it has one all the same, since a
 * row's bits must not depend on what other rows of its strip see.
 */
#ifndef ATTN_CPU_FORWARD_NODES_H
#define ATTN_CPU_FORWARD_NODES_H

#include "cpu/forward/item.h"

/* Node i of the strip's stack, the oldest being 0. */
attn_node *attn_strip_node(const attn_forward_item *item, int strip_index, int i);

/* The running state before the first key of a segment. */
void attn_strip_begin(const attn_forward_item *item, int strip_index);

/* Before keys of a segment. True if they are the first ones of it. */
bool attn_strip_enter(attn_forward_item *item, int strip_index, int64_t segment);

/* After the keys of a piece (plan.h): its node, and O, go to *piece. */
void attn_strip_save(attn_forward_item *item, int strip_index, attn_piece *piece);

/* Adds a piece behind those before it, as a node of the same tree; `next`: the first segment of the
 * piece after it, or INT64_MAX. */
void attn_strip_add(attn_forward_item *item, int strip_index, attn_piece *piece, int64_t next);

/* After all keys: one node is left, or none. O of node 0, or OT, is sum 0 of the strip. */
void attn_strip_leave(attn_forward_item *item, int strip_index);

#endif
