/*
 * pack.h: rows of K and V for an item: packed into panels, block by block for several strips and
 * tile by tile for one; or left where they are, for kernels that read them there.
 */
#ifndef ATTN_CPU_FORWARD_PACK_H
#define ATTN_CPU_FORWARD_PACK_H

#include "cpu/forward/item.h"

/* Lists the rows of a KV head's keys, run by run, from place `at` on. */
void attn_list_keys(const attn_forward_item *item, attn_key_list *list, int64_t at,
                    attn_interval keys, int64_t kv_head);

/* Lays scales of K or V of codes side by side, [key][group], and shifts unless NULL. */
void attn_list_factors(attn_forward_item *item, bool of_k, attn_interval keys, float *scale,
                       float *shift);

/* True if no packing is needed at all: the keys are one block, whose rows have the form of
 * panels already. */
bool attn_pack_is_done(const attn_forward_item *item);

/* Forgets the lists of an earlier walk. Runs before the first block of each. */
void attn_pack_open(attn_forward_item *item);

/* Opens the panels of the block that begins at key `block`, and packs these keys of it unless
 * packing goes tile by tile. */
void attn_pack_block(attn_forward_item *item, attn_interval keys, int64_t block);

/* Packs K of a strip's tile, where packing goes tile by tile, or computes its scores straight from
 * rows (scored). qk_softmax reads rows of numbers itself (k_rows): of these the scores are computed
 * only of tiles that are not `plain`, with a score step or a mask. */
void attn_pack_tile(attn_forward_item *item, int strip_index, attn_interval keys, int64_t block,
                    bool plain);

/* Packs V of a block, where packing goes tile by tile: once, after the scores of all its tiles. */
void attn_pack_values(attn_forward_item *item, attn_interval keys, int64_t block);

/* The operand of qk_softmax for keys of the block at hand, of an item with k_rows. */
attn_keys attn_rows_at(const attn_forward_item *item, attn_interval keys, const void *qt);

/* Sets *values to V of these keys of the block at hand, for pv_few. */
void attn_values_at(attn_forward_item *item, attn_interval keys, int64_t block,
                    attn_values *values);

#endif
