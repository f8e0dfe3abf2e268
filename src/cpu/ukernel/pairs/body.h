/*
 * body.h: the microkernels on pairs of bf16 numbers, for elements that are the sum of PARTS bf16
 * parts. Included at the end of a table's file, which defines before it
 *
 *   ISA, NAME, PARTS   amx: bf16, 1; f16, bf16x3, 2; f32, 3. avx512bf16, neonbf16: bf16, 1
 *   INPUT_LOSS, WEIGHT_LOSS   attn_ukernel.losses
 *   element            the type of Q, K, V in memory
 *   split_columns()    32 columns of a row -> PARTS vectors of bf16: dword i of columns
 *                      LOW_COLUMN + COLUMN_STEP i and HIGH_COLUMN + COLUMN_STEP i;
 *                      store_columns() takes two such rows to [column][2]
 *   split()            16 floats -> PARTS vectors of bf16, in upper halves;
 *                      split_probability(), of a P
 *   probabilities()    exp2; FUSED_EXPONENT, see pairs/softmax.h; FLUSHES, attn_ukernel.flushes
 *   PRODUCTS_HEADER    the instructions' part: store_product() and add_product() of factors.h,
 *                      add_rows_product(), qk_softmax(), pv(), pv_few() of at most FEW_LANES rows,
 *                      begin(), end(), BITS, TILE_PRODUCTS, PAIR_PRODUCTS
 *
 * and get one table. Scores, masks and results are those of AVX-512; panels are those of
 * pairs.h.
 */

#include "cpu/ukernel/pairs/panels.h"
#include "cpu/ukernel/pairs/clean.h"
#ifdef DOTS_HEADER
#include "cpu/ukernel/pairs/values_dots.h"
#else
#include "cpu/ukernel/pairs/values_tiles.h"
#endif
#include "cpu/ukernel/pairs/softmax.h"
#include "cpu/ukernel/pairs/softmax_tile.h"
#include "cpu/ukernel/pairs/factors.h"
#include "cpu/ukernel/pairs/few.h"
#include PRODUCTS_HEADER
#ifndef VALUE_ROWS
#define VALUE_ROWS .row_columns = 0
#endif
#ifndef OWN_MEMBERS
#define OWN_MEMBERS .own_qk = NULL
#endif

/* ---- products -------------------------------------------------------------------------------- */

static void qk(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n, int lanes)
{
    const factors f = score_factors(k, at, qt, d);
    store_product(s, &f, n, true, lanes);
}

/* Rows of any length. */
static bool takes_rows(int32_t dtype, int64_t cols)
{
    (void)cols;
    return dtype == ROW_TYPE;
}

#include "cpu/ukernel/pairs/grad.h"

/* ---- the table ------------------------------------------------------------------------------- */

#define TABLE ATTN_CAT(ATTN_CAT(attn_ukernel_, ISA), ATTN_CAT(_, NAME))

const attn_ukernel TABLE = {
    .name = ATTN_STRING(ISA) "_" ATTN_STRING(NAME),
    .grad = &grad,
    .bits = BITS,
    .losses = {INPUT_LOSS, WEIGHT_LOSS},
    .vector_bits = VECTOR_BITS,
    .tile_products = TILE_PRODUCTS,
    .pair_products = PAIR_PRODUCTS,
    .strip = STRIP,
    .granule = GRANULE,
    .key_block = KEY_BLOCK,
    .segment = PARTS < 3 ? ATTN_LONG_SEGMENT : ATTN_SEGMENT,
    .key_tile = KEY_TILE,
    .key_step = KEY_STEP,
    .real_size = 4,
    .takes_rows = takes_rows,
    .k_columns = K_KEYS ? K_GRANULE : 0,
    .k_keys = K_KEYS,
    .lags = true,
    .flushes = FLUSHES,
    .begin = begin,
    .end = end,
    .k_bytes = k_bytes,
    .v_bytes = v_bytes,
    .q_bytes = q_bytes,
    .p_bytes = p_bytes,
    .pack_k = pack_k,
    .pack_v = pack_v,
    .pack_q = pack_q,
    .qk = qk,
    .qk_softmax = qk_softmax,
    .bias = bias_f32,
    .score = score_f32,
    .mask = mask_f32,
    .softmax = softmax,
    .pv = pv,
    .few_lanes = FEW_LANES,
    .pv_few = pv_few,
    OWN_MEMBERS,
    VALUE_ROWS,
    .clean_v = clean_v,
    .finite = finite_f32,
    .store = store_f32,
    .logs = logs_f32,
    .join = join_f32,
    .copy = copy_f32,
};
