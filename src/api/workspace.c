/*
 * workspace.c: see workspace.h.
 */
#include "api/workspace.h"
#include "core/error.h"

void *attn_align_up(void *address)
{
    return (void *)(((uintptr_t)address + 63) & ~(uintptr_t)63);
}

attn_status attn_workspace_open(attn_workspace *w, const attn_context *context, uint64_t bytes,
                                void *given, uint64_t given_bytes)
{
    *w = (attn_workspace){0};
    if (given) {
        w->first = attn_align_up(given);
        return given_bytes >= bytes
                   ? ATTN_OK
                   : attn_fail(ATTN_ERR_WORKSPACE, "workspace_bytes = %llu, %llu are needed",
                               (unsigned long long)given_bytes, (unsigned long long)bytes);
    }
    const attn_allocator *allocator = &context->allocator;
    if (bytes <= PTRDIFF_MAX - 63) {
        w->bytes = (bytes + 63) / 64 * 64;
        w->owned = allocator->alloc(allocator->user, w->bytes, 64);
    }
    w->first = w->owned;
    return w->owned ? ATTN_OK
                    : attn_fail(ATTN_ERR_OUT_OF_MEMORY, "no memory for a workspace of %llu bytes",
                                (unsigned long long)bytes);
}

void attn_workspace_close(const attn_workspace *w, const attn_context *context)
{
    if (w->owned) {
        context->allocator.free(context->allocator.user, w->owned, w->bytes);
    }
}
