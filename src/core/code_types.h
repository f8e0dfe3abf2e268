/*
 * code_types.h: the types of quantised tensors (codes.h). C and CUDA.
 */
#ifndef ATTN_CORE_CODE_TYPES_H
#define ATTN_CORE_CODE_TYPES_H

#include "core/compiler.h"
#include <attn/attn.h>
#include <stdbool.h>

ATTN_CORE bool attn_is_code(int32_t dtype)
{
    return dtype == ATTN_I8 || dtype == ATTN_E4M3 || dtype == ATTN_E5M2 || dtype == ATTN_I4X2;
}

/* Columns that one element of memory holds. */
ATTN_CORE int64_t attn_code_columns(int32_t dtype)
{
    return dtype == ATTN_I4X2 ? 2 : 1;
}

#endif
