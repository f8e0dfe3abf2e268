/*
 * f32.c: the table for f32 on AMX tiles. Every f32 is the exact sum of three bf16 parts, x = x0 +
 * x1 + x2, each the bf16 nearest to the rest before it. Of the nine products of parts the six of
 * weight 2^-16 and more are taken: x0 y0, x0 y1, x1 y0, x1 y1, x0 y2, x2 y0, each a tile product
 * with f32 sums. The others are at most 2^-24 of |x||y|, of either sign. Six tile products cost
 * less than half of the multiply-adds of AVX-512.
 *
 * Panels and the rest are in body.h. Parts below 2^-126 are lost: inputs smaller than about
 * 2^-110 keep fewer bits.
 */

#define ISA amx
#define NAME f32
#define PARTS 3
#define INPUT_LOSS 0
#define WEIGHT_LOSS 0
#include "cpu/ukernel/amx/tiles.h"

#include "cpu/ukernel/pairs/element_f32.h"
#include "cpu/ukernel/pairs/split.h"

static const part_product products[] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};

#include "cpu/ukernel/pairs/exp2_f32.h"
#define PRODUCTS_HEADER "cpu/ukernel/amx/products.h"
#include "cpu/ukernel/pairs/body.h"
