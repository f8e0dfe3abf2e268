/*
 * fields.h: THE table of the binding: each keyword, the field of attn.h that it fills, and how.
 */
#ifndef LIBATTN_FIELDS_H
#define LIBATTN_FIELDS_H

#include "core.h"

typedef enum field_kind {
    FIELD_INPUT,    /* an array, or None */
    FIELD_LENGTHS,  /* an array, a number, a list, or None */
    FIELD_RESULT,   /* of the forward pass: an array, True (allocate), or None; input of backward */
    FIELD_GRADIENT, /* likewise, of the backward pass */
    FIELD_FLAG,     /* a bit of flags */
    FIELD_SCALE,    /* a number and its flag, or None */
    FIELD_NUMBER,   /* double */
    FIELD_WINDOW,   /* int64 and its flag; negative: unbounded */
    FIELD_COUNTER,  /* uint64 */
    FIELD_LAYOUT,   /* "bshd" or "bhsd" */
    FIELD_MEMORY,   /* "rows", "pytorch" or "contiguous" */
    FIELD_CONTEXT,  /* a Context, or None */
    FIELD_STREAM    /* a CUstream as a number, or None */
} field_kind;

typedef struct field_spec {
    const char *name;   /* keyword, and name in messages */
    const char *member; /* in attn.h: the field, or the bit of flags */
    field_kind kind;
    axes axes;
    bool backward; /* in attn_backward_args */
    size_t offset;
    uint64_t flag;
    int like; /* for a result, the field whose shape it has */
} field_spec;

enum {
    F_Q,
    F_K,
    F_V,
    F_OUT,
    F_OUT_F32,
    F_LSE,
    F_ROW_MAX,
    F_D_OUT,
    F_D_LSE,
    F_MASK,
    F_MASK_BITS,
    F_BIAS,
    F_SLOPES,
    F_SINKS,
    F_CU_Q,
    F_CU_K,
    F_USED_Q,
    F_USED_K,
    F_Q_ORIGIN,
    F_K_ORIGIN,
    F_TABLE,
    F_LEFTPAD,
    F_K_NEW,
    F_V_NEW,
    F_ROPE_COS,
    F_ROPE_SIN,
    F_K_SCALE,
    F_K_SHIFT,
    F_V_SCALE,
    F_V_SHIFT,
    F_DQ,
    F_DK,
    F_DV,
    F_D_BIAS,
    F_D_SLOPES,
    F_D_SINKS,
    F_SCALE,
    F_CAUSAL,
    F_TOP_LEFT,
    F_WINDOW_LEFT,
    F_WINDOW_RIGHT,
    F_SOFTCAP,
    F_DROPOUT,
    F_SEED,
    F_OFFSET,
    F_ROPE_BASE,
    F_ROPE_DIMS,
    F_ROPE_INTERLEAVED,
    F_SHARES_PAGES,
    F_PRECISE,
    F_BF16X3,
    F_LAYOUT,
    F_MEMORY,
    F_CONTEXT,
    F_STREAM,
    F_COUNT
};

extern const field_spec fields[F_COUNT];

/* Finds the field of a name; or -1. */
int fields_find(const char *name);

/* Fields one by one: begin, each value (or view, with its place in field_view), end. */
void fields_begin(core_call *call);
bool fields_set(core_call *call, int at, PyObject *value);
bool fields_end(core_call *call);

/* The place of a field in the call's structs. */
void *fields_member(core_call *call, const field_spec *field);

#endif
