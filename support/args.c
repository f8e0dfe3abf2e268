/*
 * args.c: see args.h.
 */
#include "args.h"

#define AT(field) offsetof(attn_forward_args, field)

const args_tensor args_tensors[ARGS_TENSORS] = {
    [ARGS_Q] = {"q", AT(q), ARGS_VECTORS, false},
    [ARGS_K] = {"k", AT(k), ARGS_VECTORS, false},
    [ARGS_V] = {"v", AT(v), ARGS_VECTORS, false},
    [ARGS_O] = {"o", AT(o), ARGS_VECTORS, true},
    [ARGS_O_F32] = {"o_f32", AT(o_f32), ARGS_VECTORS, true},
    [ARGS_LSE] = {"lse", AT(lse), ARGS_ROWS, true},
    [ARGS_ROW_MAX] = {"row_max", AT(row_max), ARGS_ROWS, true},
    [ARGS_MASK] = {"mask", AT(mask), ARGS_SCORES, false},
    [ARGS_BIAS] = {"bias", AT(bias), ARGS_SCORES, false},
    [ARGS_ALIBI] = {"alibi", AT(alibi_slopes), ARGS_HEADS, false},
    [ARGS_SINKS] = {"sinks", AT(sinks), ARGS_HEADS, false},
    [ARGS_CU_Q] = {"cu_seqlens_q", AT(cu_seqlens_q), ARGS_LENGTHS, false},
    [ARGS_CU_K] = {"cu_seqlens_k", AT(cu_seqlens_k), ARGS_LENGTHS, false},
    [ARGS_USED_Q] = {"seqused_q", AT(seqused_q), ARGS_LENGTHS, false},
    [ARGS_USED_K] = {"seqused_k", AT(seqused_k), ARGS_LENGTHS, false},
    [ARGS_ORIGIN_Q] = {"q_origin", AT(q_origin), ARGS_LENGTHS, false},
    [ARGS_ORIGIN_K] = {"k_origin", AT(k_origin), ARGS_LENGTHS, false},
    [ARGS_TABLE] = {"block_table", AT(block_table), ARGS_LENGTHS, false},
    [ARGS_LEFTPAD] = {"leftpad_k", AT(leftpad_k), ARGS_LENGTHS, false},
    [ARGS_K_NEW] = {"k_new", AT(k_new), ARGS_VECTORS, false},
    [ARGS_V_NEW] = {"v_new", AT(v_new), ARGS_VECTORS, false},
    [ARGS_COS] = {"rope_cos", AT(rope_cos), ARGS_ANGLES, false},
    [ARGS_SIN] = {"rope_sin", AT(rope_sin), ARGS_ANGLES, false},
    [ARGS_K_SCALE] = {"k_scale", AT(k_scale), ARGS_VECTORS, false},
    [ARGS_K_SHIFT] = {"k_shift", AT(k_shift), ARGS_VECTORS, false},
    [ARGS_V_SCALE] = {"v_scale", AT(v_scale), ARGS_VECTORS, false},
    [ARGS_V_SHIFT] = {"v_shift", AT(v_shift), ARGS_VECTORS, false},
};

attn_tensor *args_at(attn_forward_args *args, int i)
{
    return (attn_tensor *)(void *)((char *)args + args_tensors[i].offset);
}

const attn_tensor *args_get(const attn_forward_args *args, int i)
{
    return (const attn_tensor *)(const void *)((const char *)args + args_tensors[i].offset);
}

#define GRADIENT(field) offsetof(attn_backward_args, field)

const args_gradient args_gradients[ARGS_GRADIENTS] = {
    [ARGS_D_O] = {"d_o", GRADIENT(d_o), ARGS_O, false},
    [ARGS_D_LSE] = {"d_lse", GRADIENT(d_lse), ARGS_LSE, false},
    [ARGS_DQ] = {"dq", GRADIENT(dq), ARGS_Q, true},
    [ARGS_DK] = {"dk", GRADIENT(dk), ARGS_K, true},
    [ARGS_DV] = {"dv", GRADIENT(dv), ARGS_V, true},
    [ARGS_D_BIAS] = {"d_bias", GRADIENT(d_bias), ARGS_BIAS, true},
    [ARGS_D_ALIBI] = {"d_alibi", GRADIENT(d_alibi_slopes), ARGS_ALIBI, true},
    [ARGS_D_SINKS] = {"d_sinks", GRADIENT(d_sinks), ARGS_SINKS, true},
};

attn_tensor *args_gradient_at(attn_backward_args *args, int i)
{
    return (attn_tensor *)(void *)((char *)args + args_gradients[i].offset);
}
