/*
 * neon.c: the microkernel tables for 64-bit Arm (Advanced SIMD, part of the baseline).
 */
#define ISA neon
#define VEC_HEADER "cpu/ukernel/body/vec_neon.h"

#define REAL_BITS 32
#include "cpu/ukernel/body/body.h"
#undef REAL_BITS

#define REAL_BITS 64
#include "cpu/ukernel/body/body.h"
