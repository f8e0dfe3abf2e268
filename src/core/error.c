/*
 * error.c: status names and the sentence behind attn_last_error(), which is this thread's only
 * hidden state.
 */
#include "core/error.h"
#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[256];

attn_status attn_fail(attn_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return status;
}

const char *attn_last_error(void)
{
    return sentence;
}

const char *attn_status_string(attn_status status)
{
    static const char *const names[] = {
        "ok",       "invalid argument", "unknown field",       "unsupported",
        "overflow", "out of memory",    "workspace too small", "device error",
    };
    return (unsigned)status < sizeof names / sizeof names[0] ? names[status] : "unknown status";
}

size_t attn_dtype_size(int32_t dtype)
{
    static const unsigned char sizes[] = {0, 8, 4, 2, 2, 1, 4, 8, 1, 1, 1, 1, 1, 1};
    return dtype > 0 && dtype < (int32_t)sizeof sizes ? sizes[dtype] : 0;
}
