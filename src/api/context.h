/*
 * context.h: the contents of a context. Immutable after creation.
 */
#ifndef ATTN_API_CONTEXT_H
#define ATTN_API_CONTEXT_H

#include "cpu/forward/forward.h"
#include "cpu/machine/pool.h"
#include "cuda/cuda.h"

struct attn_context {
    attn_allocator allocator;
    attn_executor executor; /* the caller's, or the pool's */
    attn_pool *pool;        /* NULL with the caller's executor */
    uint32_t features;
    attn_machine machine; /* threads: of the pool; a caller's executor is asked at each call */
    char tables[64];      /* for attn_get_info */
    attn_cuda *cuda;      /* NULL: calls run on the CPU */
};

/* The context itself, or the default one for NULL. Errors: those of attn_context_create. */
attn_status attn_context_get(attn_context *context, attn_context **actual);

/* The machine as this call sees it. Error: an executor without threads. */
attn_status attn_context_machine(const attn_context *context, attn_machine *machine);

#endif
