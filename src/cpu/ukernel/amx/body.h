/*
 * body.h: the microkernels on AMX tiles, for elements that are the sum of PARTS bf16 parts.
 * Included at the end of <NAME>.c, which defines before it
 *
 *   NAME, PARTS        bf16, 1; f16, bf16x3, 2; f32, 3
 *   INPUT_LOSS, WEIGHT_LOSS   attn_ukernel.losses
 *   element            the type of Q, K, V in memory
 *   split_columns()    32 columns of a row -> PARTS vectors of bf16: dword i of columns
 *                      LOW_COLUMN + COLUMN_STEP i and HIGH_COLUMN + COLUMN_STEP i;
 *                      store_columns() takes two such rows to [column][2]
 *   split()            16 floats -> PARTS vectors of bf16, in upper halves;
 *                      split_probability(), of a P
 *   probability()      exp2; FUSED_EXPONENT, see pairs/softmax.h; FLUSHES, attn_ukernel.flushes
 *   products           the products of parts that are taken, in their order within a step
 *
 * and get one table. Scores, masks and results are those of AVX-512; panels are those of
 * pairs/pairs.h.
 */

#include "cpu/ukernel/pairs/panels.h"
#include "cpu/ukernel/pairs/softmax.h"
#include "cpu/ukernel/pairs/softmax_tile.h"
#include "cpu/ukernel/pairs/careful.h"

enum { PRODUCTS = sizeof products / sizeof products[0] };

#include "cpu/ukernel/amx/products.h"

/* ---- products -------------------------------------------------------------------------------- */

ATTN_INLINE factors score_factors(const void *k, int64_t at, const void *qt, int64_t d)
{
    const int64_t d_pad = pad32(d);
    return (factors){
        .a = (const uint16_t *)k + at * d_pad,
        .b = qt,
        .a_stride = d_pad * 2,
        .a_part = PANEL_KEYS * d_pad,
        .a_step = 32,
        .a_rows = TILE * d_pad,
        .b_stride = STRIDE,
        .b_part = d_pad * STRIP,
        .b_step = TILE * 2 * STRIP,
        .steps = d_pad / 32,
    };
}

/* Here and below, strips of at most 16 queries are half as wide. */
static void qk(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n, int lanes)
{
    const factors f = score_factors(k, at, qt, d);
    if (lanes > TILE) {
        store_product(s, &f, n, true, true);
    } else {
        store_product(s, &f, n, true, false);
    }
}

static void pv(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad, int64_t n,
               const void *alpha, int lanes)
{
    const factors f = {
        .a = (const uint16_t *)v + at,
        .b = p,
        .a_stride = PANEL_KEYS * 2,
        .a_part = dv_pad * PANEL_KEYS,
        .a_step = 32,
        .a_rows = TILE * PANEL_KEYS,
        .b_stride = STRIDE,
        .b_part = P_PART,
        .b_step = TILE * 2 * STRIP,
        .steps = (n + KEY_STEP - 1) / KEY_STEP,
    };
    vec a0 = v_set1(0), a1 = a0;
    if (alpha) {
        a0 = v_load(alpha), a1 = v_load((const float *)alpha + VL);
    } else {
        memset(ot, 0, (size_t)(dv_pad * STRIP) * sizeof(float));
    }
    if (lanes > TILE) {
        add_product(ot, STRIP, dv_pad, a0, a1, &f, true);
    } else {
        add_product(ot, STRIP, dv_pad, a0, a1, &f, false);
    }
}

#include "cpu/ukernel/amx/few.h"
#include "cpu/ukernel/amx/block.h"
#include "cpu/ukernel/amx/grad.h"

/* ---- the table ------------------------------------------------------------------------------- */

static void begin(void)
{
    tiles_begin();
}

static void end(void)
{
    tiles_end();
}

const attn_ukernel ATTN_CAT(attn_ukernel_amx_, NAME) = {
    .name = "amx_" ATTN_STRING(NAME),
    .grad = &grad,
    .bits = ATTN_BITS_AMX,
    .losses = {INPUT_LOSS, WEIGHT_LOSS},
    .vector_bits = 8 * VL * (int)sizeof(real),
    .tile_products = PRODUCTS,
    .strip = STRIP,
    .granule = 2 * TILE,
    .key_block = KEY_BLOCK,
    .segment = PARTS < 3 ? ATTN_LONG_SEGMENT : ATTN_SEGMENT,
    .key_tile = KEY_TILE,
    .key_step = KEY_STEP,
    .real_size = 4,
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
    .few_lanes = GROUP,
    .pack_v_few = pack_v_few,
    .pv_few = pv_few,
    .pv_careful = pv_careful,
    .careful_bytes = careful_bytes,
    .finite = finite_f32,
    .store = store_f32,
    .logs = logs_f32,
    .join = join_f32,
    .copy = copy_f32,
};
