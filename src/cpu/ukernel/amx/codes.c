/*
 * codes.c: the table for quantised K and V beside Q in bf16 on AMX tiles, on CPUs that have
 * AVX512_VBMI too (all with tiles). Codes are exact in bf16, so tile products are those of codes,
 * and scales come afterwards: those of K multiply sums, those of V the probabilities before these
 * are rounded to bf16. All else is the arithmetic of f32 (body.h). A scale that is not finite gives
 * its row values in place of codes.
 */
#include "core/half.h"
#include <string.h>

#define ISA amx
#define VEC_HEADER "cpu/ukernel/body/vec_avx512.h"
#define REAL_BITS 32
#include "cpu/ukernel/body/body_rows.h"
#include "cpu/ukernel/body/body_softmax.h"
#include "cpu/ukernel/pairs/dwords_avx512.h"
#include "cpu/ukernel/amx/instructions.h"
#include "cpu/ukernel/amx/sums.h"
#include "cpu/ukernel/codes/types.h"
#include "cpu/ukernel/codes/numbers.h"
#include "cpu/ukernel/codes/operands.h"
#include "cpu/ukernel/amx/codes_scores.h"
#include "cpu/ukernel/amx/codes_values.h"

enum { GRANULE = 2 * TILE, FEW_LANES = TILE };
enum { BITS = ATTN_BITS_AMX, TILE_PRODUCTS = 1, PAIR_PRODUCTS = 0 };

static void begin(void)
{
    tiles_begin();
}

static void end(void)
{
    tiles_end();
}

#include "cpu/ukernel/codes/body.h"
