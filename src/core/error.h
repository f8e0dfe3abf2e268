/*
 * error.h: the sentence behind attn_last_error(), one per thread.
 */
#ifndef ATTN_CORE_ERROR_H
#define ATTN_CORE_ERROR_H

#include "core/compiler.h"
#include <attn/attn.h>

/* Stores the sentence (cut at 255 characters) and returns status. */
attn_status attn_fail(attn_status status, const char *format, ...) ATTN_PRINTF(2, 3);

/* The call's status, if it is an error, becomes this function's. */
#define TRY(call)                    \
    do {                             \
        attn_status tried_ = (call); \
        if (tried_ != ATTN_OK) {     \
            return tried_;           \
        }                            \
    } while (0)

#endif
