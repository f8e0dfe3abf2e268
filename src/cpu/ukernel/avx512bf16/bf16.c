/*
 * bf16.c: the table for bf16 on CPUs with AVX512_BF16: products are dot products of pairs of bf16
 * with f32 sums, twice as many a vector as there are floats; probabilities are rounded to bf16 for
 * the second product, as on AMX. Panels and the rest are in pairs/body.h.
 */
#define ISA avx512bf16
#define NAME bf16
#define PARTS 1
#define INPUT_LOSS 0
#define WEIGHT_LOSS 0x1p-8
#define ASIDE 4
#define K_GRANULE 8
#define Q_QUADS 1
#include "cpu/ukernel/pairs/pairs.h"

#include "cpu/ukernel/pairs/element_bf16.h"
#include "cpu/ukernel/pairs/exp2.h"
#define DOTS_HEADER "cpu/ukernel/avx512bf16/instructions.h"
enum { SUMS = 16, WIDE = 2, FEW_LANES = 8 };
#define DOT_BITS ATTN_BITS_PAIRS
#define PRODUCTS_HEADER "cpu/ukernel/pairs/dots.h"
#include "cpu/ukernel/pairs/body.h"
