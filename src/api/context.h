/*
 * context.h: the contents of a context. Immutable after creation.
 */
#ifndef ATTN_API_CONTEXT_H
#define ATTN_API_CONTEXT_H

#include "cpu/backend.h"
#include "cpu/machine/pool.h"
#include "cuda/cuda.h"

struct attn_context {
    attn_allocator allocator;
    const attn_backend *backend;
    const void *device; /* of the backend's operations: &cpu or cuda */
    attn_cpu_device cpu;
    attn_cuda *cuda; /* NULL: calls run on the CPU */
    attn_pool *pool; /* NULL with the caller's executor */
    char tables[64]; /* for attn_get_info */
};

/* The context itself, or the default one for NULL. Errors: those of attn_context_create. */
attn_status attn_context_get(attn_context *context, attn_context **actual);

/* Refuses a stream where there are none. */
attn_status attn_context_takes_stream(const attn_context *context, const void *stream);

#endif
