/*
 * codes.c: the table for quantised K and V beside Q in bf16, on CPUs with AVX512_BF16 and
 * AVX512_VBMI. Codes are exact in bf16, so products are dot products of pairs, and scales come
 * afterwards: those of K multiply sums, those of V the probabilities before these are rounded to
 * bf16. All else is the arithmetic of f32 (body.h). A scale that is not finite gives its row values
 * in place of codes.
 */
#include "core/half.h"
#include <string.h>

#define ISA avx512bf16
#define VEC_HEADER "cpu/ukernel/body/vec_avx512.h"
#define REAL_BITS 32
#include "cpu/ukernel/body/body_rows.h"
#include "cpu/ukernel/body/body_softmax.h"
#include "cpu/ukernel/pairs/dwords_avx512.h"
#include "cpu/ukernel/avx512bf16/instructions.h"
#include "cpu/ukernel/codes/types.h"
#include "cpu/ukernel/codes/numbers.h"
#include "cpu/ukernel/codes/operands.h"
#include "cpu/ukernel/avx512bf16/codes_scores.h"
#include "cpu/ukernel/avx512bf16/codes_few.h"
#include "cpu/ukernel/avx512bf16/codes_values.h"

enum { GRANULE = 16, KEY_STEP = 2, FEW_LANES = FEW_f32 };
enum { BITS = ATTN_BITS_CODES, TILE_PRODUCTS = 0, PAIR_PRODUCTS = 1 };

static void begin(void)
{
}

static void end(void)
{
}

#include "cpu/ukernel/codes/body.h"
