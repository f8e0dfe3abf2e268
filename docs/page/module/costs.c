/*
 * costs.c: the IO analysis of attn plan (support/traffic.h) for one size, and the table of
 * machines.
 */
#include "machines.h"
#include "page.h"
#include "traffic.h"

static void write_bytes(FILE *to, const char *name, const traffic_bytes *bytes)
{
    fprintf(to, "\"%s\":{\"read\":%.17g,\"written\":%.17g,\"on_chip\":%.17g}", name, bytes->read,
            bytes->written, bytes->on_chip);
}

/* Of one head, by blocks of rows, strips of them, and tiles of keys; `near`: bytes of the near
 * memory. */
const char *PAGE_EXPORT(page_costs)(double n, int d, int element, int causal, int rows, int strip,
                                    int keys, double near)
{
    const int64_t length = (int64_t)n;
    const traffic_shape shape = {.nq = length,
                                 .nk = length,
                                 .d = d,
                                 .dv = d,
                                 .group = 1,
                                 .element = element,
                                 .real = element > 4 ? element : 4,
                                 .low = -TRAFFIC_FAR,
                                 .high = causal ? 1 : TRAFFIC_FAR};
    const traffic_tiles tiles = {rows, strip, keys};
    const traffic_bytes tiled = traffic_tiled(&shape, &tiles, near),
                        standard = traffic_standard(&shape, &tiles, near);
    const traffic_memory memory = traffic_memory_of(&shape);
    const double visible = causal ? n * (n + 1) / 2 : n * n;
    FILE *to = page_open();
    fprintf(to, "{\"flops\":%.17g,", 4 * d * visible);
    write_bytes(to, "tiled", &tiled);
    fputs(",", to);
    write_bytes(to, "standard", &standard);
    fprintf(to,
            ",\"memory\":{\"tensors\":%.17g,\"scores\":%.17g,\"probabilities\":%.17g,"
            "\"statistics\":%.17g}}",
            memory.tensors, memory.scores, memory.probabilities, memory.statistics);
    return page_text();
}

const char *PAGE_EXPORT(page_roof)(double operations, double bytes, double peak, double bandwidth)
{
    const traffic_roof roof = traffic_roof_of(operations, bytes, peak, bandwidth);
    fprintf(page_open(),
            "{\"intensity\":%.17g,\"ridge\":%.17g,\"rate\":%.17g,\"seconds\":%.17g,"
            "\"memory_bound\":%s}",
            roof.intensity, roof.ridge, roof.rate, roof.seconds,
            roof.memory_bound ? "true" : "false");
    return page_text();
}

const char *PAGE_EXPORT(page_machines)(void)
{
    FILE *to = page_open();
    fputs("[", to);
    for (int i = 0; i < MACHINES; i++) {
        const machine_figures *machine = &machines[i];
        fprintf(to,
                "%s{\"name\":\"%s\",\"model\":\"%s\",\"shared_bytes\":%d,\"l2_bytes\":%d,"
                "\"half_gflops\":%.17g,\"f32_gflops\":%.17g,\"read_gbytes\":%.17g}",
                i > 0 ? "," : "", machine->name, machine->model, machine->shared_bytes,
                machine->l2_bytes, machine->half_gflops, machine->f32_gflops, machine->read_gbytes);
    }
    fputs("]", to);
    return page_text();
}
