/*
 * body.h: the table for quantised K and V beside Q in bf16. Included at the end of a table's file,
 * which defines before it
 *
 *   ISA                          avx512bf16, amx
 *   GRANULE, KEY_STEP, FEW_LANES, BITS, TILE_PRODUCTS, PAIR_PRODUCTS   see table.h
 *   begin(), end()               the processor's state
 *   pack_k(), pack_v() ..        panels and products
 *   value_place(c, key)          the place of a number in a panel of V
 *
 * All else is the arithmetic of f32 on AVX-512 (body/body.h).
 */

/* A value is not finite where its number in the panel is not: a code of e4m3 or e5m2, or the value
 * itself where its scale is not finite. The scale may turn the sign of a code. */
static bool clean_v(void *to_, const void *v_, int64_t at, int64_t n, int64_t dv_pad,
                    const attn_specials *found)
{
    void *from = (void *)(uintptr_t)v_;
    const float *scale = v_scales(from, dv_pad);
    const int64_t group = *v_group(from, dv_pad);
    bool any = false;
    memmove(to_, v_, v_bytes(dv_pad));
    memset(found->plus, 0, (size_t)dv_pad * sizeof *found->plus);
    memset(found->minus, 0, (size_t)dv_pad * sizeof *found->minus);
    for (int64_t c = 0; c < dv_pad; c++) {
        for (int64_t key = at; key < at + n; key++) {
            uint16_t *x = (uint16_t *)to_ + value_place(c, key);
            const float code = attn_bf16_to_f32(*x),
                        value = code * scale[c / group * ATTN_KEY_BLOCK + key];
            if (code - code != 0) {
                found->plus[c] |= (uint64_t)!(value < 0) << key;
                found->minus[c] |= (uint64_t)!(value > 0) << key;
                *x = 0, any = true;
            }
        }
    }
    return any;
}

/* P is of f32, in place of the scores. */
static uint64_t p_bytes(void)
{
    return 0;
}

const attn_ukernel ATTN_CAT(ATTN_CAT(attn_ukernel_, ISA), _codes) = {
    .name = ATTN_STRING(ISA) "_codes",
    .bits = BITS,
    .losses = {0, 0x1p-8},
    .vector_bits = 512,
    .tile_products = TILE_PRODUCTS,
    .pair_products = PAIR_PRODUCTS,
    .strip = STRIP,
    .granule = GRANULE,
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
    .few_lanes = FEW_LANES,
    .pv_few = pv_few,
    .clean_v = clean_v,
    .finite = finite_f32,
    .store = store_f32,
    .logs = logs_f32,
    .join = join_f32,
    .copy = copy_f32,
};
