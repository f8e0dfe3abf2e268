/*
 * workspace.h: the source of a call's scratch: the caller, or one call of the context's allocator.
 */
#ifndef ATTN_API_WORKSPACE_H
#define ATTN_API_WORKSPACE_H

#include "api/context.h"

typedef struct attn_workspace {
    void *first; /* aligned to 64 bytes */
    void *owned; /* from the allocator, or NULL */
    uint64_t bytes;
} attn_workspace;

/* Takes `bytes` of scratch, of which 63 are for alignment, from `given`, which has given_bytes;
 * NULL: allocates them. Errors: workspace, out of memory. */
attn_status attn_workspace_open(attn_workspace *w, const attn_context *context, uint64_t bytes,
                                void *given, uint64_t given_bytes);
void attn_workspace_close(const attn_workspace *w, const attn_context *context);

/* The first multiple of 64 at or behind address. */
void *attn_align_up(void *address);

#endif
