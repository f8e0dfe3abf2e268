/*
 * bench_devices.h: the devices, and their implementations by name.
 */
#ifndef BENCH_DEVICES_H
#define BENCH_DEVICES_H

#include "bench_device.h"

/* device: enum attn_device. */
const bench_device *bench_device_of(int32_t device);

/* Index of a name in on->names; -1: unknown. */
int bench_find(const bench_device *on, const char *name);

#endif
