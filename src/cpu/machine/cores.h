/*
 * cores.h: how many threads a context begins with if nobody says.
 */
#ifndef ATTN_CPU_CORES_H
#define ATTN_CPU_CORES_H

#include <stdint.h>

/* Cores that this thread may run on (its affinity), or fewer if a quota gives their time to others.
 * At least 1. */
int32_t attn_cpu_cores(void);

/* Cores' worth of time, rounded up, that control groups allow: the least of cpu.max (version 2:
 * "QUOTA PERIOD" or "max PERIOD", microseconds) in the group and in those around it. groups: a file
 * like /proc/self/cgroup; mount: where groups are mounted. INT32_MAX if nothing is said or nothing
 * can be read. */
int32_t attn_cpu_quota(const char *groups, const char *mount);

#endif
