/*
 * bf16.c: the table for bf16 on Arm CPUs with FEAT_BF16: products are dot products of pairs of bf16
 * (BFDOT) with f32 sums, twice as many a vector as there are floats; probabilities are rounded to
 * bf16 for the second product, as on AMX. A vector of pairs/ is four registers.
 */
#define ISA neonbf16
#define NAME bf16
#define PARTS 1
#define INPUT_LOSS 0
#define WEIGHT_LOSS 0x1p-8
#define VEC_HEADER "cpu/ukernel/pairs/vec_neon16.h"
#define DWORDS_HEADER "cpu/ukernel/pairs/dwords_neon.h"
#define K_GRANULE 8
#define Q_QUADS 1
#include "cpu/ukernel/pairs/pairs.h"

#include "cpu/ukernel/pairs/element_bf16.h"
#include "cpu/ukernel/pairs/exp2.h"
#define DOTS_HEADER "cpu/ukernel/neonbf16/instructions.h"
enum { SUMS = 4, WIDE = 1, FEW_LANES = 4 };
#define DOT_BITS ATTN_BITS_ODD_PAIRS
#define PRODUCTS_HEADER "cpu/ukernel/pairs/dots.h"
#include "cpu/ukernel/pairs/body.h"
