/*
 * context.c: creating contexts, and the default one.
 */
#include "api/context.h"
#include "api/args.h"
#include "core/error.h"
#include "system/system.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void *default_alloc(void *user, size_t size, size_t alignment)
{
    (void)user;
    return attn_memory_alloc(alignment, size);
}

static void default_free(void *user, void *ptr, size_t size)
{
    (void)user, (void)size;
    attn_memory_free(ptr);
}

static const size_t CONTEXT_BYTES = (sizeof(attn_context) + 63) / 64 * 64;

static attn_status check_config(const attn_context_config *config)
{
    if (config->device != ATTN_DEVICE_CPU && config->device != ATTN_DEVICE_CUDA) {
        return attn_fail(ATTN_ERR_UNSUPPORTED, "config.device = %d is neither the CPU nor a GPU",
                         config->device);
    }
    if (config->threads < 0) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "config.threads = %d is negative",
                         config->threads);
    }
    if ((config->device == ATTN_DEVICE_CPU && config->device_ordinal != 0) ||
        config->reserved != 0) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "config.device_ordinal = %d and config.reserved = %d must be 0",
                         config->device_ordinal, config->reserved);
    }
    if ((config->allocator.alloc == NULL) != (config->allocator.free == NULL)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "config.allocator needs both alloc and free");
    }
    if ((config->executor.num_threads == NULL) != (config->executor.parallel_for == NULL)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "config.executor needs both num_threads and parallel_for");
    }
    return ATTN_OK;
}

static void list_tables(attn_context *context)
{
    int count;
    const attn_isa *isas = attn_isas(&count);
    for (int i = count - 1; i >= 0; i--) {
        if ((isas[i].needs & ~context->cpu.machine.features) == 0) {
            strncat(context->tables, context->tables[0] ? " " : "",
                    sizeof context->tables - strlen(context->tables) - 1);
            strncat(context->tables, isas[i].name,
                    sizeof context->tables - strlen(context->tables) - 1);
        }
    }
}

static attn_status select_table(attn_context *context, const char *cpu)
{
    const char *cap = cpu ? cpu : getenv("ATTN_CPU");
    context->cpu.machine.features = attn_cpu_features();
    context->cpu.machine.isa = attn_select(context->cpu.machine.features, cap);
    list_tables(context);
    if (context->cpu.machine.isa == NULL) {
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "%s = \"%.40s\" is none of this machine's tables: %s",
                         cpu ? "config.cpu" : "ATTN_CPU", cap, context->tables);
    }
    return ATTN_OK;
}

static attn_status fill_context(attn_context *context, const attn_context_config *config)
{
    TRY(select_table(context, config->cpu));
    attn_machine *machine = &context->cpu.machine;
    machine->caches = attn_cpu_caches();
    /* a GPU's context needs no pool */
    int32_t most = config->device == ATTN_DEVICE_CPU ? attn_system_cores() : 1;
    machine->threads = config->threads > 0 ? config->threads : most;
    context->cpu.allocator = context->allocator;
    context->cpu.executor = config->executor;
    if (context->cpu.executor.parallel_for == NULL) {
        context->pool = attn_pool_create(machine->threads, &context->allocator);
        if (context->pool == NULL) {
            return attn_fail(ATTN_ERR_OUT_OF_MEMORY, "no memory for a pool of %d threads",
                             machine->threads);
        }
        context->cpu.executor = (attn_executor){context->pool, attn_pool_threads, attn_pool_for};
        context->cpu.own_pool = true;
    }
    context->backend = &attn_cpu_backend;
    context->device = &context->cpu;
    return ATTN_OK;
}

static attn_status fill_gpu(attn_context *context, const attn_context_config *config)
{
    TRY(attn_cuda_create(&context->cuda, config->device_ordinal, &context->allocator));
    context->backend = &attn_cuda_backend;
    context->device = context->cuda;
    return ATTN_OK;
}

attn_status attn_context_create(const attn_context_config *config, attn_context **context)
{
    attn_context_config checked = {.struct_size = sizeof checked};
    if (context == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "context is NULL");
    }
    *context = NULL;
    if (config) {
        TRY(attn_copy_args(&checked, sizeof checked, config, "attn_context_config"));
    }
    TRY(check_config(&checked));
    if (checked.allocator.alloc == NULL) {
        checked.allocator = (attn_allocator){NULL, default_alloc, default_free};
    }
    attn_context *made = checked.allocator.alloc(checked.allocator.user, CONTEXT_BYTES, 64);
    if (made == NULL) {
        return attn_fail(ATTN_ERR_OUT_OF_MEMORY, "no memory for a context of %llu bytes",
                         (unsigned long long)CONTEXT_BYTES);
    }
    *made = (attn_context){.allocator = checked.allocator};
    attn_status status = fill_context(made, &checked);
    if (status == ATTN_OK && checked.device == ATTN_DEVICE_CUDA) {
        status = fill_gpu(made, &checked);
    }
    if (status != ATTN_OK) {
        attn_context_destroy(made);
        return status;
    }
    *context = made;
    return ATTN_OK;
}

void attn_context_destroy(attn_context *context)
{
    if (context == NULL) {
        return;
    }
    attn_allocator allocator = context->allocator;
    attn_cuda_destroy(context->cuda, &allocator);
    if (context->pool) {
        attn_pool_destroy(context->pool, &allocator);
    }
    allocator.free(allocator.user, context, CONTEXT_BYTES);
}

/* The default context is the library's only global state. After a failure the next call tries
 * again. No lock guards it: a child of fork() could find a lock held by a thread that the child
 * does not have. Of contexts made at once the first to arrive stays. */
attn_status attn_context_get(attn_context *context, attn_context **actual)
{
    static _Atomic(attn_context *) shared;
    *actual = context ? context : atomic_load(&shared);
    if (*actual == NULL) {
        attn_context *own;
        TRY(attn_context_create(NULL, &own));
        if (atomic_compare_exchange_strong(&shared, actual, own)) {
            *actual = own;
        } else {
            attn_context_destroy(own);
        }
    }
    return ATTN_OK;
}

attn_status attn_context_takes_stream(const attn_context *context, const void *stream)
{
    return stream == NULL || context->backend->streams
               ? ATTN_OK
               : attn_fail(ATTN_ERR_INVALID_ARGUMENT, "stream = %p, but the context is for %s",
                           stream, context->backend->name(context->device));
}
