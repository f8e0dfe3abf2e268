/*
 * backend.h: a CPU as a device of a context: its operations and their machine.
 */
#ifndef ATTN_CPU_BACKEND_H
#define ATTN_CPU_BACKEND_H

#include "core/backend.h"
#include "cpu/forward/plan.h"

/* Immutable after the context's creation. */
typedef struct attn_cpu_device {
    attn_machine machine; /* threads: of the pool; a caller's executor is asked at each call */
    attn_executor executor;
    bool own_pool; /* the executor is the context's pool */
    attn_allocator allocator;
} attn_cpu_device;

extern const attn_backend attn_cpu_backend;

/* The machine as a call sees it. Errors: an executor without threads. */
attn_status attn_cpu_machine(const attn_cpu_device *device, attn_machine *machine);

/* Operations of the table that plan nothing. */
attn_status attn_cpu_merge(const void *device, const attn_merge_args *args);
attn_status attn_cpu_merge_backward(const void *device, const attn_merge_backward_args *args);
attn_status attn_cpu_dropout_mask(const void *device, const attn_dropout_problem *problem,
                                  void *stream);
attn_status attn_cpu_quantize(const void *device, const attn_quantized *t, void *stream);
attn_status attn_cpu_dequantize(const void *device, const attn_quantized *t, void *stream);

#endif
