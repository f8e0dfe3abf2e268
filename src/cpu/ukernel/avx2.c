/*
 * avx2.c: the microkernel tables for AVX2 with FMA and F16C (Haswell, Zen and later).
 */
#define ISA avx2
#define VEC_HEADER "cpu/ukernel/body/vec_avx2.h"

#define REAL_BITS 32
#include "cpu/ukernel/body/body.h"
#undef REAL_BITS

#define REAL_BITS 64
#include "cpu/ukernel/body/body.h"
