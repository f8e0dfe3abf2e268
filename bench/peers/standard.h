/*
 * standard.h: standard attention, done well: the baseline for speed. For each (batch, head) the
 * whole Nq x Nk matrix of scores is stored, both products are OpenBLAS's sgemm with the given
 * number of threads, and the softmax between them is vectorised and threaded the same way. It
 * computes in f32. OpenBLAS is opened at run time, so the program does not need it, and its threads
 * start on demand only.
 */
#ifndef BENCH_STANDARD_H
#define BENCH_STANDARD_H

#include <attn/attn.h>
#include <stdbool.h>

/* NULL, or the feature that keeps a call from being plain attention, which is all that the peers
 * compute. Static string. */
const char *standard_not_plain(const attn_forward_args *args);

/* NULL, or that K and V are quantised. Static string. */
const char *standard_no_codes(const attn_forward_args *args);

/* NULL, or the reason why standard attention cannot do it here (a feature, no OpenBLAS). Static
 * string. */
const char *standard_refuses(const attn_forward_args *args);

/* "openblas Haswell": the library and the core whose kernels it uses. Valid once standard_refuses
 * has returned NULL. */
const char *standard_kernel(void);

/* Bytes of the score matrix. */
double standard_workspace(const attn_forward_args *args);

/* *own = the call for standard attention: the same tensors, or f32 copies where sgemm cannot take
 * them (other types, odd strides), and an o, in *memory, to be freed. False: out of memory. */
bool standard_adopt(const attn_forward_args *args, attn_forward_args *own, void **memory);

/* Computes own->o. workspace holds standard_workspace() bytes. standard_refuses must have returned
 * NULL. */
void standard_forward(const attn_forward_args *own, int threads, float *workspace);

#endif
