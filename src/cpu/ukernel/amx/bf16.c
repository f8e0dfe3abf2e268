/*
 * bf16.c: the table for bf16 on AMX tiles (Sapphire Rapids and later): both products are tile
 * products of bf16 with f32 sums, probabilities are rounded to bf16 for the second one. Panels and
 * the rest are in pairs/body.h.
 */
#define ISA amx
#define NAME bf16
#define PARTS 1
#define INPUT_LOSS 0
#define WEIGHT_LOSS 0x1p-8
#include "cpu/ukernel/amx/tiles.h"

#include "cpu/ukernel/pairs/element_bf16.h"

static const part_product products[] = {{0, 0}};

#include "cpu/ukernel/pairs/exp2.h"
#define PRODUCTS_HEADER "cpu/ukernel/amx/products.h"
#include "cpu/ukernel/pairs/body.h"
