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
};

attn_tensor *args_at(attn_forward_args *args, int i)
{
    return (attn_tensor *)(void *)((char *)args + args_tensors[i].offset);
}

const attn_tensor *args_get(const attn_forward_args *args, int i)
{
    return (const attn_tensor *)(const void *)((const char *)args + args_tensors[i].offset);
}
