/*
 * info.c: version, build, machine.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/compiler.h"
#include "core/error.h"

#define VERSION                     \
    ATTN_STRING(ATTN_VERSION_MAJOR) \
    "." ATTN_STRING(ATTN_VERSION_MINOR) "." ATTN_STRING(ATTN_VERSION_PATCH)

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown compiler"
#endif

int32_t attn_version(void)
{
    return ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH;
}

attn_status attn_get_info(attn_context *context, attn_info *info)
{
    attn_machine machine;
    TRY(attn_context_get(context, &context));
    TRY(attn_cpu_machine(&context->cpu, &machine));
    const attn_info out = {
        .version = VERSION,
        .build = COMPILER,
        .cpu_features = attn_cpu_feature_names(context->cpu.machine.features),
        .cpu_table = machine.isa->name,
        .cpu_tables = context->tables,
        .threads = machine.threads,
        .l1d_bytes = machine.caches.l1d,
        .l2_bytes = machine.caches.l2,
        .l3_bytes = machine.caches.l3,
    };
    return attn_copy_out(info, &out, sizeof out, "attn_info");
}
