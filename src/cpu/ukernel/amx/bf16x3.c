/*
 * bf16x3.c: the table for f32 with fewer bits on AMX tiles, for calls with ATTN_BF16X3. Every f32
 * is replaced by two bf16 parts, x0 + x1, each the bf16 nearest to the rest before it. Of their
 * four products the three of weight 2^-8 and more are taken: x0 y0, x0 y1, x1 y0, half of the tile
 * products of f32.c.
 *
 * With |x1| <= 2^-8 |x| and a rest of at most 2^-17 |x|, a product of two inputs loses 2^-16 for x1
 * y1 and 2^-17 for either rest, 4 2^-17 of |x||y|. P and dS are cut off for their first part, so
 * |x1| and the rest are twice as large: 7 2^-17. Panels and the rest are in pairs/body.h.
 */

#define ISA amx
#define NAME bf16x3
#define PARTS 2
#define INPUT_LOSS 0x4p-17
#define WEIGHT_LOSS 0x7p-17
#include "cpu/ukernel/amx/tiles.h"

#include "cpu/ukernel/pairs/element_f32.h"
#include "cpu/ukernel/pairs/split.h"

static const part_product products[] = {{1, 0}, {0, 0}, {0, 1}};

#include "cpu/ukernel/pairs/exp2.h"
#define PRODUCTS_HEADER "cpu/ukernel/amx/products.h"
#include "cpu/ukernel/pairs/body.h"
