/*
 * linux.c: cores, caches, instructions under Linux: see system.h. A container with a quota sees all
 * cores of its machine. A thread on each of them would use up the quota early in each period, and
 * then all would sleep until it ends.
 */
#define _GNU_SOURCE
#include "system/system.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FILE_BYTES = 4096 };

/* Reads the beginning of a file as a string, "" without such a file. */
static void read_file(char *text, const char *path)
{
    ssize_t n = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        n = read(file, text, FILE_BYTES - 1);
        close(file);
    }
    text[n > 0 ? n : 0] = '\0';
}

static int32_t quota_of(const char *folder)
{
    char path[FILE_BYTES], text[FILE_BYTES], *end;
    if (snprintf(path, sizeof path, "%s/cpu.max", folder) >= (int)sizeof path) {
        return INT32_MAX;
    }
    read_file(text, path);
    /* 0 for "max" */
    const long long quota = strtoll(text, &end, 10), period = strtoll(end, NULL, 10);
    if (quota <= 0 || period <= 0 || quota / period >= INT32_MAX) {
        return INT32_MAX;
    }
    return (int32_t)((quota - 1) / period + 1);
}

int32_t attn_system_quota(const char *groups, const char *mount)
{
    char text[FILE_BYTES], folder[FILE_BYTES];
    read_file(text, groups);
    /* version 2 */
    const char *line = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");
    if (line == NULL) {
        return INT32_MAX;
    }
    const char *name = strchr(line, '/');
    const size_t root = strlen(mount);
    const int length =
        snprintf(folder, sizeof folder, "%s%.*s", mount, (int)strcspn(name, "\n"), name);
    int32_t least = INT32_MAX;
    for (char *end = length < (int)sizeof folder ? folder + length : NULL; end;
         end = strrchr(folder + root, '/')) {
        *end = '\0';
        const int32_t quota = quota_of(folder);
        least = quota < least ? quota : least;
    }
    return least;
}

int32_t attn_system_cores(void)
{
    const int saved = errno;
    cpu_set_t set;
    /* not beyond CPU_SETSIZE = 1024 cores */
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    const long own = known ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    const int32_t quota = attn_system_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    errno = saved;
    return own < 1 ? 1 : own < quota ? (int32_t)own : quota;
}

int32_t attn_system_core(void)
{
    return sched_getcpu();
}

/* The system moves a thread at once off a core that its affinity has lost, and leaves it where it
 * is when it gets the core back. */
void attn_system_leave_core(int32_t core)
{
    const int saved = errno;
    cpu_set_t own, others;
    if (core >= 0 && core < CPU_SETSIZE && sched_getaffinity(0, sizeof own, &own) == 0) {
        others = own;
        CPU_CLR((size_t)core, &others);
        if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0) {
            (void)sched_setaffinity(0, sizeof own, &own);
        }
    }
    errno = saved;
}

/* ---- caches and tiles ------------------------------------------------------------------------ */

int64_t attn_system_cache(int level)
{
#ifdef _SC_LEVEL1_DCACHE_SIZE /* glibc */
    static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE,
                                _SC_LEVEL3_CACHE_SIZE};
    const long bytes = sysconf(names[level - 1]);
    return bytes > 0 ? (int64_t)bytes : 0;
#else
    (void)level;
    return 0;
#endif
}

bool attn_system_bf16(void)
{
#ifdef __aarch64__
    enum { BF16 = 1 << 14 }; /* HWCAP2_BF16, which older headers lack */
    return getauxval(AT_HWCAP2) & BF16;
#else
    return false;
#endif
}

bool attn_system_tiles(void)
{
#ifdef SYS_arch_prctl /* x86-64; tiles since 5.16 */
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const int saved = errno;
    const bool granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    errno = saved;
    return granted;
#else
    return false;
#endif
}
