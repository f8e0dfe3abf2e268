/*
 * peak.h: the ceilings of this machine, measured: multiply-adds that never leave the registers, and reading
 * memory. Both with a number of threads at once.
 */
#ifndef CLI_PEAK_H
#define CLI_PEAK_H

/* GFLOP/s of independent multiply-adds in the vectors or tiles of a kernel table ("avx2_f32", "amx_bf16", ...)
 * over about `seconds`; 0 if the CPU has no FMA instruction, or for an unknown name. */
double peak_fma(const char *kernel, int threads, double seconds);

/* GB/s (10^9) of reading a buffer larger than the caches, over about `seconds`; 0 if there is no memory for it. */
double peak_read(int threads, double seconds);

#endif
