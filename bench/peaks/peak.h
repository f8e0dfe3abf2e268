/*
 * peak.h: the ceilings of this machine, measured: multiply-adds that never leave the registers,
 * products of tiles, and reading memory. Both with a number of threads at once.
 */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include <attn/attn.h>
#include <stddef.h>

/* GFLOP/s of independent multiply-adds on vectors of a width, of numbers of 32 or 64 bits or of
 * pairs of bf16 (16), over about `seconds`; 0 if the CPU lacks the instructions (emulated kernels),
 * or for an unknown width. */
double peak_fma(int vector_bits, int number_bits, int threads, double seconds);

/* The same of a CPU's plan: its kernel's instructions and threads. */
double peak_vectors(const attn_plan *plan, double seconds);

/* GFLOP/s of products of random bf16 tiles from the L1 cache (AMX); 0 where this process has
 * none. */
double peak_amx(int threads, double seconds);

/* peak_amx.c: n rounds of them; returns the operations done, 0 if the compiler or the processor
 * knows no AMX. Only where a context has asked the system for it. */
double peak_amx_loop(long n);

/* GB/s (10^9) of reading a buffer larger than the caches, over about `seconds`; 0 if there is no
 * memory for it. */
double peak_read(int threads, double seconds);

/* Likewise, of memory that the caller has, and of as much other memory in turn, or NULL; 0 for less
 * than 64 KiB. */
double peak_read_of(const void *memory, const void *other, size_t bytes, int threads,
                    double seconds);

#endif
