/*
 * select.c: the choice of a kernel table, from the list in tables.inc.
 */
#include "cpu/machine/select.h"
#include "cpu/machine/features.h"
#include <string.h>

#define ATTN_TABLES(...)
#define ATTN_ISA(isa, features, ...) {.name = #isa, .needs = features, __VA_ARGS__},
static const attn_isa isas[] = {
#include "cpu/ukernel/tables.inc"
};
#undef ATTN_TABLES
#undef ATTN_ISA

enum { COUNT = sizeof isas / sizeof isas[0] };

const attn_isa *attn_isas(int *count)
{
    *count = COUNT;
    return isas;
}

const attn_isa *attn_select(uint32_t features, const char *cap)
{
    const attn_isa *best = NULL;
    for (int i = 0; i < COUNT; i++) {
        if (cap && strcmp(cap, isas[i].name) == 0) {
            return (isas[i].needs & ~features) == 0 ? &isas[i] : NULL;
        }
        if (((isas[i].needs | isas[i].prefers) & ~features) == 0) {
            best = &isas[i];
        }
    }
    return cap && *cap ? NULL : best;
}
