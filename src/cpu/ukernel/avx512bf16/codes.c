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
#include "cpu/ukernel/codes/numbers.h"
#include "cpu/ukernel/codes/operands.h"
#include "cpu/ukernel/avx512bf16/codes_scores.h"
#include "cpu/ukernel/avx512bf16/codes_few.h"
#include "cpu/ukernel/avx512bf16/codes_values.h"

static uint64_t p_bytes(void)
{
    return 0;
}

static void no_state(void)
{
}

const attn_ukernel attn_ukernel_avx512bf16_codes = {
    .name = "avx512bf16_codes",
    .bits = ATTN_BITS_CODES,
    .losses = {0, 0x1p-8},
    .vector_bits = 512,
    .pair_products = 1,
    .strip = STRIP,
    .granule = 16,
    .key_block = ATTN_KEY_BLOCK,
    .segment = ATTN_SEGMENT,
    .key_tile = ATTN_KEY_BLOCK,
    .key_step = 2,
    .real_size = 4,
    .begin = no_state,
    .end = no_state,
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
    .few_lanes = FEW_f32,
    .pv_few = pv_few,
    .clean_v = clean_v,
    .finite = finite_f32,
    .store = store_f32,
    .logs = logs_f32,
    .join = join_f32,
    .copy = copy_f32,
};
