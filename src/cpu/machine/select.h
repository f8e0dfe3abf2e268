/*
 * select.h: from features and a cap to a table.
 */
#ifndef ATTN_CPU_SELECT_H
#define ATTN_CPU_SELECT_H

#include "cpu/ukernel/table.h"

typedef struct attn_isa {
    const char *name;
    uint32_t needs, prefers; /* features: to run; to be the choice without a cap, as well */
    const attn_ukernel *f32, *f64, *f16, *bf16;
    const attn_ukernel *codes;   /* quantised K and V, Q of bf16 (attn_cpu_table); or NULL */
    uint32_t codes_needs;        /* features that `codes` needs as well */
    const attn_ukernel *precise; /* f32, f16 and bf16 in the arithmetic of f32, in scalar's bits */
    const attn_ukernel *bf16x3;  /* f32 with fewer bits where that is faster */
} attn_isa;

/* The instruction sets of this build, worst first; *count = their number. */
const attn_isa *attn_isas(int *count);

/* The best set whose needs the features meet; cap (may be NULL or "") = the best one allowed. NULL
 * if this build or machine lacks the cap. */
const attn_isa *attn_select(uint32_t features, const char *cap);

#endif
