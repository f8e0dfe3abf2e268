/*
 * standard.h: standard attention, done well: what libattn is measured against. For each (batch,
 * head) the whole Nq x Nk matrix of scores is stored, both products are OpenBLAS's sgemm with as
 * many threads as asked for, and the softmax between them is vectorised and threaded the same way.
 * It computes in f32. OpenBLAS is opened at run time, so that the program neither needs it nor
 * starts its threads unless asked.
 */
#ifndef CLI_STANDARD_H
#define CLI_STANDARD_H

#include <attn/attn.h>
#include <stdbool.h>

/* NULL, or what keeps a call from being plain attention, all that libattn is measured against here.
 * Static string. */
const char *standard_not_plain(const attn_forward_args *args);

/* NULL, or why standard attention here cannot do it (a feature, no OpenBLAS). Static string. */
const char *standard_refuses(const attn_forward_args *args);

/* "openblas Haswell": the library and the core whose kernels it uses. Once standard_refuses
 * returned NULL. */
const char *standard_kernel(void);

/* Bytes of the score matrix. */
double standard_workspace(const attn_forward_args *args);

/* *own = the call as standard attention does it: the same tensors, or where sgemm cannot take them
 * (other types, odd strides) f32 copies, and an o, in *memory, to be freed. False: no memory for
 * them. */
bool standard_adopt(const attn_forward_args *args, attn_forward_args *own, void **memory);

/* Computes own->o. workspace holds standard_workspace() bytes. Call only if standard_refuses
 * returned NULL. */
void standard_forward(const attn_forward_args *own, int threads, float *workspace);

#endif
