/*
 * machines.h: THE table of GPUs by their published figures, for rooflines and plans where a GPU is
 * absent.
 */
#ifndef SUPPORT_MACHINES_H
#define SUPPORT_MACHINES_H

typedef struct machine_figures {
    const char *name, *model; /* "h200"; a part of the driver's name for it */
    const char *source;       /* where the figures are published */
    int capability, multiprocessors, l2_bytes;
    int shared_bytes; /* shared memory of a multiprocessor that a CTA can have */
    /* GFLOP/s: dense products of 16-bit numbers on tensor cores, multiply-adds of f32 and of f64 */
    double half_gflops, f32_gflops, f64_gflops;
    double read_gbytes; /* GB/s of its memory */
} machine_figures;

enum {
    MACHINES = 6,
    MACHINE_REGISTER_BYTES = 256 << 10 /* of a multiprocessor of any of these GPUs */
};
extern const machine_figures machines[MACHINES];

/* Finds a machine by its name; NULL: unknown. */
const machine_figures *machine_find(const char *name);

/* GFLOP/s of products of numbers of so many bits. */
double machine_gflops(const machine_figures *machine, int bits);

#endif
