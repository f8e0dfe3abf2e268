/*
 * avx512.c: the microkernel tables for AVX-512 F, BW, DQ, VL (Skylake-X, Zen 4 and later).
 */
#define ISA avx512
#define VEC_HEADER "cpu/ukernel/body/vec_avx512.h"

#define REAL_BITS 32
#include "cpu/ukernel/body/body.h"
#undef REAL_BITS

#define REAL_BITS 64
#include "cpu/ukernel/body/body.h"
