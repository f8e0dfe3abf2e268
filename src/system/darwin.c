/*
 * darwin.c: cores and caches under macOS: see system.h. There are no AMX tiles.
 */
#include "system/system.h"
#include <sys/sysctl.h>
#include <unistd.h>

int32_t attn_system_cores(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 && cores < INT32_MAX ? (int32_t)cores : 1;
}

int32_t attn_system_core(void)
{
    return -1;
}

void attn_system_leave_core(int32_t core)
{
    (void)core;
}

int64_t attn_system_cache(int level)
{
    static const char *const names[] = {"hw.l1dcachesize", "hw.l2cachesize", "hw.l3cachesize"};
    int64_t bytes = 0;
    size_t size = sizeof bytes;
    return sysctlbyname(names[level - 1], &bytes, &size, NULL, 0) == 0 ? bytes : 0;
}

bool attn_system_bf16(void)
{
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, NULL, 0) == 0 && has;
}

bool attn_system_tiles(void)
{
    return false;
}
