/*
 * bench_record.c: see bench_record.h.
 */
#include "bench_record.h"
#include "cli.h"
#include "gpu.h"

#include <stdio.h>
#include <string.h>

/* "NVIDIA H200, sm_90, 132 multiprocessors, 140 GiB, CUDA driver 13.0; " */
static int describe_gpu(char *text, size_t size)
{
    cli_text memory;
    gpu_properties gpu;
    int driver;
    (void)gpu_count(&driver);
    gpu_describe(0, &gpu);
    return snprintf(text, size, "%s, sm_%d%d, %d multiprocessors, %s, CUDA driver %d.%d; ",
                    gpu.name, gpu.major, gpu.minor, gpu.multiprocessors,
                    cli_bytes(memory, (double)gpu.memory_bytes), driver / 1000, driver % 1000 / 10);
}

/* "AMD EPYC, 2 cores, avx2, L2 512 KiB" */
static void describe_cpu(char *text, size_t size)
{
    char line[512], model[256] = "CPU";
    cli_text l2;
    attn_info info = {.struct_size = sizeof info};
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL &&
           sscanf(line, "model name : %255[^\n]", model) != 1) {
    }
    if (file != NULL) {
        fclose(file);
    }
    attn_get_info(NULL, &info);
    snprintf(text, size, "%s, %d cores, %s, L2 %s; %s", model, info.threads, info.cpu_features,
             cli_bytes(l2, (double)info.l2_bytes), info.build);
}

/* Prints words as they can be typed again: those with blanks in quotes. */
static void write_command(char *text, size_t size, int argc, char **argv)
{
    size_t used = 0;
    for (int i = 0; i < argc && used < size; i++) {
        const char *quote = i > 0 && strpbrk(argv[i], " {}*$") != NULL ? "\"" : "";
        used += (size_t)snprintf(text + used, size - used, "%s%s%s%s", i > 0 ? " " : "", quote,
                                 argv[i], quote);
    }
}

void bench_record_fill(bench_record *record, int32_t device, int argc, char **argv)
{
    int used = device == ATTN_DEVICE_CUDA ? describe_gpu(record->machine, 256) : 0;
    describe_cpu(record->machine + used, sizeof record->machine - (size_t)used);
    snprintf(record->commit, sizeof record->commit, "%s", ATTN_COMMIT);
    write_command(record->command, sizeof record->command, argc, argv);
}
