/*
 * wasm128.c: the microkernel table for WebAssembly with 128-bit vectors, f32 only.
 */
#define ISA wasm128
#define VEC_HEADER "cpu/ukernel/body/vec_wasm128.h"
#define REAL_BITS 32
#include "cpu/ukernel/body/body.h"
