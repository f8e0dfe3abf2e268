/*
 * select.h: from features and a cap to a table.
 */
#ifndef ATTN_CPU_SELECT_H
#define ATTN_CPU_SELECT_H

#include "cpu/ukernel/table.h"

typedef struct attn_isa {
    const char *name;
    uint32_t needs;
    const attn_ukernel *f32, *f64, *f16, *bf16;
    const attn_ukernel *precise; /* f32, f16 and bf16 in the arithmetic of f32, in scalar's bits */
    const attn_ukernel *bf16x3;  /* f32 with fewer bits where that is faster */
} attn_isa;

/* The instruction sets of this build, worst first; *count of them. */
const attn_isa *attn_isas(int *count);

/* The best whose needs the features meet; cap (may be NULL or "") = the best allowed. NULL if the
 * cap names nothing that this build and machine have. */
const attn_isa *attn_select(uint32_t features, const char *cap);

#endif
