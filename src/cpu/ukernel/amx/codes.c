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
#include "cpu/ukernel/codes/numbers.h"
#include "cpu/ukernel/codes/operands.h"
#include "cpu/ukernel/amx/codes_scores.h"
#include "cpu/ukernel/amx/codes_values.h"

static uint64_t p_bytes(void)
{
    return 0;
}

static void begin(void)
{
    tiles_begin();
}

static void end(void)
{
    tiles_end();
}

const attn_ukernel attn_ukernel_amx_codes = {
    .name = "amx_codes",
    .bits = ATTN_BITS_AMX,
    .losses = {0, 0x1p-8},
    .vector_bits = 512,
    .tile_products = 1,
    .strip = STRIP,
    .granule = 2 * TILE,
    .key_block = ATTN_KEY_BLOCK,
    .segment = ATTN_SEGMENT,
    .key_tile = ATTN_KEY_BLOCK,
    .key_step = KEY_STEP,
    .real_size = 4,
    .begin = begin,
    .end = end,
    .k_bytes = k_bytes,
    .v_bytes = v_bytes,
    .q_bytes = q_bytes,
    .p_bytes = p_bytes,
    .takes_rows = takes_rows,
    .pack_k = pack_k,
    .pack_v = pack_v,
    .pack_q = pack_q,
    .qk = qk,
    .qk_codes = qk_codes,
    .widen = widen_f32,
    .bias = bias_f32,
    .score = score_f32,
    .mask = mask_f32,
    .softmax = softmax_f32,
    .qk_softmax = qk_softmax,
    .pv = pv,
    .few_lanes = TILE,
    .pv_few = pv_few,
    .clean_v = clean_v,
    .finite = finite_f32,
    .store = store_f32,
    .logs = logs_f32,
    .join = join_f32,
    .copy = copy_f32,
};
