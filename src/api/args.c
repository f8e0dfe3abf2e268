/*
 * args.c: copying size-first structs in and out, whatever version of the header the caller was
 * built with.
 */
#include "api/args.h"
#include "core/error.h"
#include <string.h>

/* Larger sizes are refused as uninitialised memory. */
static const uint64_t LARGEST = 1 << 16;

static attn_status read_size(const void *from, const char *what, uint64_t *size)
{
    if (from == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s is NULL", what);
    }
    memcpy(size, from, sizeof *size);
    if (*size < sizeof *size || *size > LARGEST) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.struct_size = %llu is not sizeof(%s)", what,
                         (unsigned long long)*size, what);
    }
    return ATTN_OK;
}

attn_status attn_copy_args(void *to, size_t size, const void *from, const char *what)
{
    uint64_t theirs = 0;
    TRY(read_size(from, what, &theirs));
    for (uint64_t i = size; i < theirs; i++) {
        if (((const unsigned char *)from)[i] != 0) {
            return attn_fail(
                ATTN_ERR_UNKNOWN_FIELD,
                "%s.struct_size = %llu and byte %llu is not 0: this library knows %llu bytes", what,
                (unsigned long long)theirs, (unsigned long long)i, (unsigned long long)size);
        }
    }
    const size_t copied = theirs < size ? (size_t)theirs : size;
    memcpy(to, from, copied);
    if (copied < size) { /* glibc's memset of nothing takes long on some processors */
        memset((char *)to + copied, 0, size - copied);
    }
    return ATTN_OK;
}

attn_status attn_copy_out(void *to, const void *from, size_t size, const char *what)
{
    uint64_t theirs = 0;
    TRY(read_size(to, what, &theirs));
    const size_t copied = theirs < size ? (size_t)theirs : size;
    memcpy((char *)to + sizeof theirs, (const char *)from + sizeof theirs, copied - sizeof theirs);
    memset((char *)to + copied, 0, (size_t)theirs - copied);
    return ATTN_OK;
}
