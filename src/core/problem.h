/*
 * problem.h: the validated, normalised problem. Nothing is checked again after attn_problem_init, and everything
 * behind the front door takes this instead of the caller's arguments. No threads, no instruction sets, no CUDA.
 */
#ifndef ATTN_CORE_PROBLEM_H
#define ATTN_CORE_PROBLEM_H

#include <attn/attn.h>
#include <stdbool.h>

#define ATTN_UNBOUNDED INT64_MAX

typedef struct attn_problem {
    attn_tensor q, k, v, o, lse, row_max, mask, bias, alibi, sinks;
    attn_tensor cu_q, cu_k, used_q, used_k;
    int64_t batch, heads, kv_heads, group, d, dv;
    bool varlen, top_left;
    int64_t window_left, window_right; /* ATTN_UNBOUNDED or >= 0; causal is window_right = 0 */
    double scale, softcap;             /* softcap 0 = off */
} attn_problem;

/* One sequence: where its rows lie, how many there are, how many count. */
typedef struct attn_sequence {
    int64_t index;     /* b, for everything indexed by batch */
    int64_t tensor;    /* the batch index into q, k, v, o: b, or 0 when varlen */
    int64_t q_first, k_first;
    int64_t nq, nq_used; /* rows to write; rows that may see keys */
    int64_t nk;          /* keys in use */
    int64_t diagonal;    /* off of C3 */
    bool outside;        /* rows of a varlen tensor that belong to no sequence: no key, no sink */
} attn_sequence;

/* Checks every field (the sentence of an error is set) and normalises. Reads lengths, never q, k, v. */
attn_status attn_problem_init(attn_problem *p, const attn_forward_args *args);

/* Sequences to run: batch, and for varlen two more for the rows before the first and after the last sequence. */
static inline int64_t attn_problem_sequences(const attn_problem *p)
{
    return p->varlen ? p->batch + 2 : p->batch;
}

attn_sequence attn_problem_sequence(const attn_problem *p, int64_t index);

/* Sets of dtypes for attn_check_tensor. */
enum {
    ATTN_FLOAT_TYPES = 1 << ATTN_F64 | 1 << ATTN_F32 | 1 << ATTN_F16 | 1 << ATTN_BF16,
    ATTN_WIDE_TYPES = 1 << ATTN_F64 | 1 << ATTN_F32
};

static inline bool attn_tensor_present(const attn_tensor *t)
{
    return t->dtype != 0 || t->data != NULL;
}

/* Type, extents, memory, alignment and address span of one tensor; an output must not write one place twice by a
 * stride of 0. `name` is for the error's sentence. */
attn_status attn_check_tensor(const char *name, const attn_tensor *t, int types, bool output);

/* Address of element (i0, i1, i2, i3); an axis of extent 1 in a broadcast tensor ignores its index. */
static inline char *attn_at(const attn_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    static const unsigned char size[] = {0, 8, 4, 2, 2, 1, 4, 8};
    int64_t e = i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] + i3 * t->stride[3];
    return (char *)t->data + e * size[t->dtype];
}

/* The same with axes of extent 1 broadcast. */
static inline char *attn_at_broadcast(const attn_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return attn_at(t, t->shape[0] == 1 ? 0 : i0, t->shape[1] == 1 ? 0 : i1, t->shape[2] == 1 ? 0 : i2,
                   t->shape[3] == 1 ? 0 : i3);
}

#endif
