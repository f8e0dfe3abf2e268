/*
 * f16.c: the table for f16 on AMX tiles. An f16 is the exact sum of two bf16 parts, x = x0 + x1,
 * and all four products of parts are taken: Q K^T is exact but for f32 sums. Probabilities are
 * rounded to two parts too, 16 bits: an error of at most 2^-16 p |v|, far below that of rounding O
 * to f16.
 *
 * Panels and the rest are in pairs/body.h.
 */

#define ISA amx
#define NAME f16
#define PARTS 2
#define INPUT_LOSS 0
#define WEIGHT_LOSS 0x1p-16
#include "cpu/ukernel/amx/tiles.h"

#include "cpu/ukernel/pairs/element_f16.h"
#include "cpu/ukernel/pairs/split.h"

static const part_product products[] = {{1, 1}, {1, 0}, {0, 1}, {0, 0}};

#include "cpu/ukernel/pairs/exp2.h"
#define PRODUCTS_HEADER "cpu/ukernel/amx/products.h"
#include "cpu/ukernel/pairs/body.h"
