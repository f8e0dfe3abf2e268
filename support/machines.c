/*
 * machines.c: see machines.h. Rates are without sparsity. Shared memory is what CUDA lets a CTA of
 * the compute capability have (CUDA C++ programming guide, table of technical specifications).
 */
#include "machines.h"

#include <string.h>

const machine_figures machines[MACHINES] = {
    {"a10g", "A10G", "NVIDIA A10G data sheet (AWS G5); f64 a 64th of f32", 86, 80, 6 << 20,
     99 << 10, 70e3, 31.5e3, 0.49e3, 600},
    {"a100", "A100", "NVIDIA A100 80GB SXM data sheet", 80, 108, 40 << 20, 163 << 10, 312e3, 19.5e3,
     9.7e3, 2039},
    {"l4", "L4", "NVIDIA L4 data sheet, tensor rates halved; f64 a 64th of f32", 89, 58, 48 << 20,
     99 << 10, 121e3, 30.3e3, 0.47e3, 300},
    {"h100", "H100", "NVIDIA H100 SXM data sheet", 90, 132, 50 << 20, 227 << 10, 989.4e3, 66.9e3,
     33.5e3, 3350},
    {"h200", "H200", "NVIDIA H200 SXM data sheet", 90, 132, 60 << 20, 227 << 10, 989.4e3, 66.9e3,
     33.5e3, 4800},
    {"b200", "B200", "NVIDIA Blackwell data sheet, HGX B200, tensor rates halved", 100, 148,
     126 << 20, 227 << 10, 2250e3, 75e3, 37e3, 7700},
};

const machine_figures *machine_find(const char *name)
{
    for (int i = 0; i < MACHINES; i++) {
        if (strcmp(name, machines[i].name) == 0) {
            return &machines[i];
        }
    }
    return NULL;
}

double machine_gflops(const machine_figures *machine, int bits)
{
    return bits == 16   ? machine->half_gflops
           : bits == 64 ? machine->f64_gflops
                        : machine->f32_gflops;
}
