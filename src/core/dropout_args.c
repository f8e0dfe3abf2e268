/*
 * dropout_args.c: validation of dropout's arguments, for the passes and for the mask on its own.
 */
#include "core/dropout_args.h"
#include "core/error.h"

attn_status attn_dropout_init(attn_dropout *dropout, double p, uint64_t seed, uint64_t offset)
{
    if (!(p >= 0 && p <= 1)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "dropout_p = %.9g must be in [0, 1]", p);
    }
    *dropout = attn_dropout_make(p, seed, offset);
    return ATTN_OK;
}

attn_status attn_dropout_fits(const attn_dropout *dropout, const char *rows_name, int64_t rows_end,
                              const char *keys_name, int64_t keys_end)
{
    if (dropout->on && (rows_end > UINT32_MAX || keys_end >> 34 != 0)) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "the positions of %s end at row %lld, of %s at key %lld: dropout counts "
                         "to 2^32 and 2^34",
                         rows_name, (long long)rows_end, keys_name, (long long)keys_end);
    }
    return ATTN_OK;
}
