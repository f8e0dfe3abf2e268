/*
 * pack.h: packs rows of K and V into the panels of an item: block by block for several strips, tile
 * by tile for one.
 */
#ifndef ATTN_CPU_FORWARD_PACK_H
#define ATTN_CPU_FORWARD_PACK_H

#include "cpu/forward/item.h"

/* Opens the panels of the block that begins at key `block`, and packs these keys of it unless
 * packing goes tile by tile. */
void attn_pack_block(attn_forward_item *item, attn_interval keys, int64_t block);

/* Packs the tile at hand, and with the last one of a block all that is left of its keys. Rows of K
 * of a `plain` tile, whose scores are the products, may stay where they are. The rows of the next
 * tile are noted, to be fetched from then on. */
void attn_pack_tile(attn_forward_item *item, attn_interval keys, int64_t block, bool last,
                    bool plain);

#endif
