/*
 * device_cpu.c: the CPU as a device.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"
#include "fail.h"
#include "threads.h"

static void copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static void clear(void *memory, size_t bytes)
{
    memset(memory, 0, bytes);
}

static double free_bytes(void)
{
    return (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

const device device_cpu = {
    .name = "cpu",
    .context = threads_context,
    .allocate = allocate,
    .release = free,
    .put = copy,
    .get = copy,
    .copy = copy,
    .clear = clear,
    .free_bytes = free_bytes,
    .embed_forward = embed_forward,
    .embed_backward = embed_backward,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .matmul = matmul,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .cross_entropy = cross_entropy,
    .magnitude = magnitude,
    .adamw = adamw_update,
    .standard_scratch_bytes = standard_scratch_bytes,
    .standard_forward = standard_forward,
    .standard_backward = standard_backward,
};
