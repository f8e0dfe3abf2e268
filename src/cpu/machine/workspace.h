/*
 * workspace.h: where a call's scratch comes from: the caller, or one call of the context's
 * allocator.
 */
#ifndef ATTN_CPU_WORKSPACE_H
#define ATTN_CPU_WORKSPACE_H

#include "core/backend.h"
#include <stddef.h>

typedef struct attn_workspace {
    void *first; /* aligned to 64 bytes */
    void *owned; /* from the allocator, or NULL */
    size_t bytes;
} attn_workspace;

/* `bytes` of scratch, of which 63 are for alignment: the call's, or allocated if it has none.
 * Errors: workspace, out of memory. */
attn_status attn_workspace_open(attn_workspace *workspace, const attn_allocator *allocator,
                                uint64_t bytes, const attn_call *call);
void attn_workspace_close(const attn_workspace *workspace, const attn_allocator *allocator);

#endif
