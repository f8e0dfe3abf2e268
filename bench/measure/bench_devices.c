/*
 * bench_devices.c: see bench_devices.h.
 */
#include "bench_devices.h"
#include "bench_gpu.h"

#include <string.h>

static const bench_device cpu = {
    .names = {"libattn", "standard", "torch", "onnxruntime", "onednn", "ggml", "libattn.torch"},
    .by_default = {true, true},
    .binding = {[6] = true},
    .min_time = 0.1,
    .rounds = 5,
    .start = worker_start,
    .sample = worker_sample,
    .peak = worker_peak,
    .finish = worker_finish,
    .stop = worker_stop,
};

const bench_device *bench_device_of(int32_t device)
{
    return device == ATTN_DEVICE_CUDA ? &bench_gpu : &cpu;
}

int bench_find(const bench_device *on, const char *name)
{
    for (int i = 0; i < BENCH_IMPLEMENTATIONS && on->names[i] != NULL; i++) {
        if (strcmp(name, on->names[i]) == 0) {
            return i;
        }
    }
    return -1;
}
