/*
 * backend.h: the operations of a kind of device as a table: one for CPUs (cpu/backend.c), one for
 * GPUs (cuda/backend.c). src/api copies and checks arguments and calls through it.
 */
#ifndef ATTN_CORE_BACKEND_H
#define ATTN_CORE_BACKEND_H

#include "core/codes.h"
#include "core/dropout_args.h"
#include "core/problem.h"

/* The parts of one call. NULL: no workspace, the default stream. */
typedef struct attn_call {
    void *workspace;
    uint64_t workspace_bytes;
    void *stream;
} attn_call;

/* The first multiple of 64 from here on, as workspaces begin. */
static inline void *attn_align_up(void *address)
{
    return (void *)(((uintptr_t)address + 63) & ~(uintptr_t)63);
}

/* The bytes of a call's workspace that are used of those needed. Overlaps are those of the memory
 * that was handed in, however much is needed: a workspace that ends before O begins is too small,
 * not misplaced. */
static inline uint64_t attn_handed_in(const attn_call *call, uint64_t needed)
{
    return call->workspace_bytes < needed ? call->workspace_bytes : needed;
}

/* `device` is that of the context. Each function makes the plan that it needs, once. */
typedef struct attn_backend {
    int meaning;  /* of arguments (attn_problem_init): ATTN_OF_DEVICE or 0 */
    bool streams; /* calls may name a stream */
    const char *(*name)(const void *device);

    struct {
        /* sets members of *plan, which is all zero */
        attn_status (*plan)(const void *device, const attn_problem *p, attn_plan *plan);
        attn_status (*workspace)(const void *device, const attn_problem *p, uint64_t *bytes);
        attn_status (*run)(const void *device, const attn_problem *p, const attn_call *call);
    } forward;
    struct {
        attn_status (*plan)(const void *device, const attn_gradients *g, attn_plan *plan);
        attn_status (*workspace)(const void *device, const attn_gradients *g, uint64_t *bytes);
        attn_status (*run)(const void *device, const attn_gradients *g, const attn_call *call);
    } backward;
    attn_status (*merge)(const void *device, const attn_merge_args *args);
    /* args->forward is a whole struct of this library's size */
    attn_status (*merge_backward)(const void *device, const attn_merge_backward_args *args);
    attn_status (*dropout_mask)(const void *device, const attn_dropout_problem *p, void *stream);
    attn_status (*quantize)(const void *device, const attn_quantized *t, void *stream);
    attn_status (*dequantize)(const void *device, const attn_quantized *t, void *stream);
} attn_backend;

#endif
