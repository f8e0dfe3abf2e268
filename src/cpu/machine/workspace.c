/*
 * workspace.c: see workspace.h.
 */
#include "cpu/machine/workspace.h"
#include "core/error.h"

attn_status attn_workspace_open(attn_workspace *workspace, const attn_allocator *allocator,
                                uint64_t bytes, const attn_call *call)
{
    *workspace = (attn_workspace){0};
    if (call->workspace) {
        workspace->first = attn_align_up(call->workspace);
        return call->workspace_bytes >= bytes
                   ? ATTN_OK
                   : attn_fail(ATTN_ERR_WORKSPACE, "workspace_bytes = %llu, %llu are needed",
                               (unsigned long long)call->workspace_bytes,
                               (unsigned long long)bytes);
    }
    if (bytes <= PTRDIFF_MAX - 63) {
        workspace->bytes = (size_t)(bytes + 63) / 64 * 64;
        workspace->owned = allocator->alloc(allocator->user, workspace->bytes, 64);
    }
    workspace->first = workspace->owned;
    return workspace->owned
               ? ATTN_OK
               : attn_fail(ATTN_ERR_OUT_OF_MEMORY, "no memory for a workspace of %llu bytes",
                           (unsigned long long)bytes);
}

void attn_workspace_close(const attn_workspace *workspace, const attn_allocator *allocator)
{
    if (workspace->owned) {
        allocator->free(allocator->user, workspace->owned, workspace->bytes);
    }
}
