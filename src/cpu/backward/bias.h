/*
 * bias.h: gradients of a bias and of ALiBi slopes that the passes of cpu/backward/backward.c meet
 * on their way. A bias with an element for each score is written as dS comes up; one with an
 * element for all queries, and slopes, are sums over queries, kept for each (batch, head, key).
 * Other shapes need a pass of their own (cpu/backward/shared_bias.c).
 */
#ifndef ATTN_CPU_GRAD_BIAS_H
#define ATTN_CPU_GRAD_BIAS_H

#include "cpu/backward/tile.h"

/* Four steps of a pass with d_scores over a set of keys. begin opens the sums of the keys; clear
 * writes 0 for a row block and keys that some row does not see, before the tiles; tile adds the dS
 * of a tile; end stores the sums. */
void attn_grad_bias_begin(attn_grad_item *item);
void attn_grad_bias_clear(const attn_grad_item *item, attn_interval rows, attn_interval keys);
void attn_grad_bias_tile(attn_grad_item *item, int strip_index, attn_interval keys);
void attn_grad_bias_end(attn_grad_item *item, int64_t first, int64_t last);

/* Runs after the passes. Adds the sums of all keys, heads and sequences that share an element. */
void attn_grad_bias_finish(const attn_grad_plan *plan, const attn_gradients *grads,
                           const attn_executor *executor, char *workspace);

#endif
