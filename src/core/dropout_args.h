/*
 * dropout_args.h: dropout from a call's arguments, checked. C and CUDA.
 */
#ifndef ATTN_CORE_DROPOUT_ARGS_H
#define ATTN_CORE_DROPOUT_ARGS_H

#include "attn/attn.h"
#include "core/dropout.h"

/* attn_dropout_mask_args, checked. Absent origins are 0. */
typedef struct attn_dropout_problem {
    attn_tensor keep, q_origin, k_origin;
    attn_dropout dropout;
} attn_dropout_problem;

/* Reads dropout from the arguments. Refuses rows and keys that its stream cannot count. */
attn_status attn_dropout_init(attn_dropout *dropout, double p, uint64_t seed, uint64_t offset);
attn_status attn_dropout_fits(const attn_dropout *dropout, const char *rows_name, int64_t rows_end,
                              const char *keys_name, int64_t keys_end);

#endif
