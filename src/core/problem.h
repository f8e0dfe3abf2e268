/*
 * problem.h: the validated, normalised problem. Nothing is checked again after attn_problem_init,
 * and everything behind src/api takes this instead of the caller's arguments. No threads, no
 * instruction sets, no CUDA.
 */
#ifndef ATTN_CORE_PROBLEM_H
#define ATTN_CORE_PROBLEM_H

#include "core/compiler.h"
#include "core/dropout.h"
#include <attn/attn.h>
#include <stdbool.h>

#define ATTN_UNBOUNDED INT64_MAX

/* Rotation of Q and of new rows of K: by tensors, or by powers of the base. */
typedef struct attn_rope {
    attn_tensor cos, sin; /* absent: angles follow from the base */
    double base;
    int64_t dims; /* columns that are rotated; 0: none */
    bool interleaved;
} attn_rope;

/* Scale and shift of quantised K or V (codes.h): tensors of the arguments; NULL: absent. */
typedef struct attn_codes {
    const attn_tensor *scale, *shift;
} attn_codes;

typedef struct attn_problem {
    attn_tensor q, k, v, o, o_f32, lse, row_max, mask, bias, alibi, sinks;
    attn_tensor cu_q, cu_k, used_q, used_k, q_origin, k_origin, table, pad_k;
    attn_tensor k_new, v_new; /* rows that the call writes to k and v first */
    attn_rope rope;
    bool paged;   /* k and v are pools of pages, and table names them (kv.h) */
    int64_t keys; /* rows that k has for a sequence, or for all of varlen */
    int64_t batch, heads, kv_heads, group, d, dv;
    bool varlen, top_left, precise, bf16x3;
    bool shares;                       /* sequences have the same pages: a hint */
    bool device;                       /* data, lengths too, is a GPU's: not to be read here */
    int64_t window_left, window_right; /* ATTN_UNBOUNDED or >= 0; causal is window_right = 0 */
    double scale, softcap;             /* softcap 0 = off */
    bool backward;                     /* o and lse are inputs */
    attn_dropout dropout;
    attn_codes k_codes, v_codes;
} attn_problem;

/* A problem and the gradients wanted of it; data == NULL: absent. */
typedef struct attn_gradients {
    attn_problem problem;
    attn_tensor d_o, d_lse;
    attn_tensor dq, dk, dv, d_bias, d_alibi, d_sinks;
} attn_gradients;

/* One sequence: where its rows lie, how many there are, how many count. */
typedef struct attn_sequence {
    int64_t index;  /* b, for everything indexed by batch */
    int64_t tensor; /* the batch index into q, o, and k, v unless paged: b, or 0 when varlen */
    int64_t q_first, k_first;
    int64_t nq, nq_used; /* rows to write; rows that may see keys */
    int64_t nk;          /* keys in use */
    int64_t k_rows;      /* keys to write gradients of: those in use and those after them */
    int64_t diagonal;    /* off of C3 */
    bool outside;        /* rows of a varlen tensor that belong to no sequence: they see no key */
} attn_sequence;

/* Meanings of arguments, or-ed. */
enum {
    ATTN_OF_DEVICE = 1,   /* in a GPU's memory: lengths are not read, nothing is known of them */
    ATTN_OF_BACKWARD = 2, /* o, o_f32 and lse are inputs, row_max is not looked at */
    ATTN_OF_SHAPES = 4    /* for a plan: required tensors may have no data yet */
};

/* Checks every field (the sentence of an error is set) and normalises. Reads lengths, never q, k,
 * v. */
attn_status attn_problem_init(attn_problem *problem, const attn_forward_args *args, int meaning);

/* attn_problem_init for the backward pass (gradients.c); args->forward is a whole struct of this
 * library's size. */
attn_status attn_gradients_init(attn_gradients *grads, const attn_backward_args *args, int meaning);

/* Sequences to run: batch, and for varlen two more for the rows before the first and after the last
 * sequence. */
ATTN_CORE int64_t attn_problem_sequences(const attn_problem *problem)
{
    return problem->varlen ? problem->batch + 2 : problem->batch;
}

/* Lengths, pages, padding and origins (lengths.c); sets varlen, batch and keys. */
attn_status attn_check_lengths(attn_problem *problem, int meaning);

/* Scales and shifts of quantised K and V (codes.c). args outlives the problem. */
attn_status attn_check_codes(attn_problem *problem, const attn_forward_args *args);

/* New rows of the cache, and rotation (append.c). */
attn_status attn_check_append(attn_problem *problem, const attn_forward_args *args, int meaning);

/* Checks an origin of `batch` sequences of up to `rows` rows, if it is present. *end = the largest
 * origin, or 0, plus rows. On a device values are not read and *end = rows. */
attn_status attn_check_origin(const char *name, const attn_tensor *tensor, int64_t batch,
                              int64_t rows, bool device, int64_t *end);

/* Sets of dtypes for attn_check_tensor. */
enum {
    ATTN_FLOAT_TYPES = 1 << ATTN_F64 | 1 << ATTN_F32 | 1 << ATTN_F16 | 1 << ATTN_BF16,
    ATTN_WIDE_TYPES = 1 << ATTN_F64 | 1 << ATTN_F32,
    ATTN_CODE_TYPES = 1 << ATTN_I8 | 1 << ATTN_E4M3 | 1 << ATTN_E5M2 | 1 << ATTN_I4X2
};

/* The types of a mask; contexts of a GPU take those with a byte for each key. */
enum {
    ATTN_BYTE_MASK_TYPES = 1 << ATTN_BOOL | 1 << ATTN_U8 | 1 << ATTN_I8,
    ATTN_MASK_TYPES = ATTN_BYTE_MASK_TYPES | 1 << ATTN_I32 | 1 << ATTN_I64 | 1 << ATTN_B1X8
};

/* Of an optional tensor. */
ATTN_CORE bool attn_tensor_present(const attn_tensor *tensor)
{
    return tensor->data != NULL;
}

/* "f32"; "unknown" for other numbers. */
const char *attn_type_name(int32_t dtype);

/* Type, extents, memory, alignment and address span of one tensor; an output must not write one
 * place twice by a stride of 0. `name` is for the error's sentence. */
attn_status attn_check_tensor(const char *name, const attn_tensor *tensor, int types, bool output);

/* Checks that an extent of a tensor is equal to one of another tensor, or the first `axes` are. */
attn_status attn_check_extent(const char *name, const attn_tensor *tensor, int axis,
                              const char *like_name, const attn_tensor *like, int like_axis);
attn_status attn_check_extents(const char *name, const attn_tensor *tensor, const char *like_name,
                               const attn_tensor *like, int axes);

/* *rows = the product of the first `axes` extents. Errors: overflow. */
attn_status attn_count_rows(const char *name, const attn_tensor *tensor, int axes, int64_t *rows);

/* Refuses a tensor for its shape, naming the shape that is wanted. */
attn_status attn_refuse_shape(const char *name, const attn_tensor *tensor, const char *want);

/* A required tensor without data points somewhere: for plans, which read shapes only. */
void attn_stand_in(attn_tensor *tensor);

/* Keeps values that no element needs out of arithmetic, whatever the caller left there: strides
 * become 0, and a tensor without elements is absent or, if it is required, points somewhere. */
void attn_normalise_tensor(attn_tensor *tensor, bool required);

/* Bytes from one element to the next along an axis; 0 along an axis of one element, whose stride
 * may be any number, and in a tensor without elements. */
int64_t attn_axis_step(const attn_tensor *tensor, int axis);

/* Address of element (i0, i1, i2, i3); an axis of extent 1 in a broadcast tensor ignores its
 * index. */
ATTN_CORE char *attn_at(const attn_tensor *tensor, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    /* log2 of attn_dtype_size, two bits for each type: a table would be a load from global memory
     * on a GPU, before every first access */
    const uint32_t logarithms = 0xE16C;
    int64_t e = i0 * tensor->stride[0] + i1 * tensor->stride[1] + i2 * tensor->stride[2] +
                i3 * tensor->stride[3];
    return (char *)tensor->data + e * (int64_t)(1u << (logarithms >> 2 * tensor->dtype & 3));
}

/* attn_at with axes of extent 1 broadcast. */
ATTN_CORE char *attn_at_broadcast(const attn_tensor *tensor, int64_t i0, int64_t i1, int64_t i2,
                                  int64_t i3)
{
    return attn_at(tensor, tensor->shape[0] == 1 ? 0 : i0, tensor->shape[1] == 1 ? 0 : i1,
                   tensor->shape[2] == 1 ? 0 : i2, tensor->shape[3] == 1 ? 0 : i3);
}

/* Keys that one element of a mask tensor holds. */
ATTN_CORE int64_t attn_mask_each(int32_t dtype)
{
    return dtype == ATTN_B1X8 ? 8 : 1;
}

/* True if a row of a mask lets key i be seen, counted from the first key of the element at `row`.
 * step: elements from one to the next. */
ATTN_CORE bool attn_mask_shows(const void *row, int64_t step, int32_t dtype, int64_t i)
{
    const unsigned char *bytes = (const unsigned char *)row;
    return dtype == ATTN_B1X8  ? bytes[i / 8 * step] >> i % 8 & 1
           : dtype == ATTN_I32 ? ((const int32_t *)row)[i * step] != 0
           : dtype == ATTN_I64 ? ((const int64_t *)row)[i * step] != 0
                               : bytes[i * step] != 0;
}

/* ---- lengths and origins: on a GPU their values were not checked, hence the clamps ----------- */

/* Positions end here, so that a position plus or minus a window's bound does not leave 64 bits. */
#define ATTN_POSITIONS (INT64_C(1) << 60)

ATTN_CORE int64_t attn_clamp(int64_t n, int64_t lo, int64_t hi)
{
    return n < lo ? lo : n > hi ? hi : n;
}

ATTN_CORE int64_t attn_index_at(const attn_tensor *tensor, int64_t i)
{
    const int64_t at =
        i * tensor->stride[0]; /* shorter than attn_at: GPU code is short of registers */
    return tensor->dtype == ATTN_I32 ? ((const int32_t *)tensor->data)[at]
                                     : ((const int64_t *)tensor->data)[at];
}

/* The first row of sequence b among `rows`, and its number of rows. */
ATTN_CORE int64_t attn_first_row(const attn_tensor *cu, const attn_tensor *rows, int64_t b)
{
    return attn_tensor_present(cu) ? attn_clamp(attn_index_at(cu, b), 0, rows->shape[1]) : 0;
}

ATTN_CORE int64_t attn_declared_length(const attn_tensor *cu, const attn_tensor *rows, int64_t b)
{
    if (!attn_tensor_present(cu)) {
        return rows->shape[1];
    }
    int64_t first = attn_first_row(cu, rows, b);
    return attn_clamp(attn_index_at(cu, b + 1), first, rows->shape[1]) - first;
}

ATTN_CORE int64_t attn_used_length(const attn_tensor *used, int64_t declared, int64_t b)
{
    return attn_tensor_present(used) ? attn_clamp(attn_index_at(used, b), 0, declared) : declared;
}

/* Rows of K that sequence b may use. */
ATTN_CORE int64_t attn_declared_keys(const attn_problem *problem, int64_t b)
{
    return problem->paged ? problem->keys : attn_declared_length(&problem->cu_k, &problem->k, b);
}

/* Rows before the first key of sequence b, of `used` rows in use. */
ATTN_CORE int64_t attn_left_padding(const attn_problem *problem, int64_t used, int64_t b)
{
    return attn_tensor_present(&problem->pad_k)
               ? attn_clamp(attn_index_at(&problem->pad_k, b), 0, used)
               : 0;
}

/* Every sequence is as long as the tensors, and none has an origin. */
ATTN_CORE bool attn_problem_is_whole(const attn_problem *problem)
{
    return !problem->varlen && !attn_tensor_present(&problem->used_q) &&
           !attn_tensor_present(&problem->used_k) && !attn_tensor_present(&problem->q_origin) &&
           !attn_tensor_present(&problem->k_origin) && !attn_tensor_present(&problem->pad_k);
}

/* Sequence b of such a problem. */
ATTN_CORE attn_sequence attn_problem_whole_sequence(const attn_problem *problem, int64_t b)
{
    int64_t nq = problem->q.shape[1], nk = problem->keys;
    attn_sequence sequence = {b, b, 0, 0, nq, nq, nk, nk, problem->top_left ? 0 : nk - nq, false};
    return sequence;
}

/* The position of row 0 or of key 0 of sequence b; one for all has a stride of 0. */
ATTN_CORE int64_t attn_origin(const attn_tensor *origin, int64_t b)
{
    return attn_tensor_present(origin) ? attn_clamp(attn_index_at(origin, b), 0, ATTN_POSITIONS)
                                       : 0;
}

/* off of C3, of a sequence of which all else is known. */
ATTN_CORE int64_t attn_sequence_diagonal(const attn_problem *problem, const attn_sequence *sequence)
{
    if (attn_tensor_present(&problem->q_origin) || attn_tensor_present(&problem->k_origin)) {
        return attn_origin(&problem->q_origin, sequence->index) -
               attn_origin(&problem->k_origin, sequence->index);
    }
    return problem->top_left ? 0 : sequence->nk - sequence->nq_used;
}

/* A sequence but for its diagonal. */
ATTN_CORE attn_sequence attn_problem_lengths(const attn_problem *problem, int64_t index)
{
    attn_sequence sequence = {0, 0, 0, 0, 0, 0, 0, 0, 0, false};
    if (index >= problem->batch) { /* the rows outside every sequence */
        int64_t first = attn_first_row(&problem->cu_q, &problem->q, 0),
                last = attn_first_row(&problem->cu_q, &problem->q, problem->batch);
        bool before = index == problem->batch;
        sequence.q_first = before ? 0 : last;
        sequence.nq = before ? first : problem->q.shape[1] - last;
        first = attn_first_row(&problem->cu_k, &problem->k, 0),
        last = attn_first_row(&problem->cu_k, &problem->k, problem->batch);
        sequence.k_first = before ? 0 : last;
        sequence.k_rows = before ? first : problem->k.shape[1] - last;
        sequence.outside = true;
        return sequence;
    }
    sequence.index = index;
    sequence.tensor = problem->varlen ? 0 : index;
    sequence.q_first = attn_first_row(&problem->cu_q, &problem->q, index);
    sequence.k_first = attn_first_row(&problem->cu_k, &problem->k, index);
    sequence.nq = attn_declared_length(&problem->cu_q, &problem->q, index);
    sequence.nq_used = attn_used_length(&problem->used_q, sequence.nq, index);
    sequence.k_rows = attn_declared_keys(problem, index);
    sequence.nk = attn_used_length(&problem->used_k, sequence.k_rows, index);
    const int64_t padding = attn_left_padding(problem, sequence.nk, index);
    sequence.k_first += padding, sequence.k_rows -= padding, sequence.nk -= padding;
    return sequence;
}

ATTN_CORE attn_sequence attn_problem_sequence(const attn_problem *problem, int64_t index)
{
    attn_sequence sequence = attn_problem_lengths(problem, index);
    sequence.diagonal = attn_sequence_diagonal(problem, &sequence);
    return sequence;
}

/* The position of row 0, for rotation. */
ATTN_CORE int64_t attn_first_position(const attn_problem *problem, const attn_sequence *sequence)
{
    return attn_tensor_present(&problem->q_origin)
               ? attn_origin(&problem->q_origin, sequence->index)
               : sequence->nk - sequence->nq_used;
}

/* Rows outside every sequence have a sink only if it is the same for all sequences. */
ATTN_CORE bool attn_sequence_has_sink(const attn_problem *problem, const attn_sequence *sequence)
{
    return problem->sinks.data != NULL && (!sequence->outside || problem->sinks.shape[0] == 1);
}

#endif
