/*
 * cores.h: the default number of threads of a context.
 */
#ifndef ATTN_CPU_CORES_H
#define ATTN_CPU_CORES_H

#include <stdint.h>

/* Number of cores in this thread's affinity, or fewer if a quota gives their time to others. At
 * least 1. */
int32_t attn_cpu_cores(void);

/* Number of cores, rounded up, whose time the control groups allow: the least of cpu.max (version
 * 2: "QUOTA PERIOD" or "max PERIOD", microseconds) in the group and in those around it. groups: a
 * file like /proc/self/cgroup; mount: the folder where groups are mounted. INT32_MAX without a
 * limit or a readable file. */
int32_t attn_cpu_quota(const char *groups, const char *mount);

#endif
