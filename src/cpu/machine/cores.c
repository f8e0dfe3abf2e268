/*
 * cores.c: see cores.h. A container with a quota sees all cores of its machine. A thread on each of
 * them would use up the quota early in each period, and then all would sleep until it ends.
 */
#define _GNU_SOURCE
#include "cpu/machine/cores.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int32_t attn_cpu_quota(const char *groups, const char *mount)
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

int32_t attn_cpu_cores(void)
{
    const int saved = errno;
    cpu_set_t set;
    /* not beyond CPU_SETSIZE = 1024 cores */
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    const long own = known ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    const int32_t quota = attn_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    errno = saved;
    return own < 1 ? 1 : own < quota ? (int32_t)own : quota;
}
