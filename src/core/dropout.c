/*
 * dropout.c: validation of dropout's arguments, for the passes and for the mask on its own.
 */
#include "core/error.h"
#include "core/problem.h"

attn_status attn_dropout_init(attn_dropout *d, double p, uint64_t seed, uint64_t offset)
{
    if (!(p >= 0 && p <= 1)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "dropout_p = %g must be in [0, 1]", p);
    }
    *d = attn_dropout_make(p, seed, offset);
    return ATTN_OK;
}

attn_status attn_dropout_fits(const attn_dropout *d, const char *rows_name, int64_t rows,
                              const char *keys_name, int64_t keys)
{
    if (d->on && (rows > UINT32_MAX || keys >> 34 != 0)) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "%s has %lld rows or %s %lld keys, more than dropout counts", rows_name,
                         (long long)rows, keys_name, (long long)keys);
    }
    return ATTN_OK;
}
