/*
 * fields.c: keywords into the structs of attn.h.
 */
#include "fields.h"

#include <string.h>

#define IN(name, axes, member)                                                              \
    {                                                                                       \
        name, #member, FIELD_INPUT, axes, false, offsetof(attn_forward_args, member), 0, -1 \
    }
#define COUNTS(name, member)                                                                       \
    {                                                                                              \
        name, #member, FIELD_LENGTHS, AXES_LENGTHS, false, offsetof(attn_forward_args, member), 0, \
            -1                                                                                     \
    }
#define OUT(name, axes, member)                                                               \
    {                                                                                         \
        name, #member, FIELD_RESULT, axes, false, offsetof(attn_forward_args, member), 0, F_Q \
    }
#define GRAD_IN(name, axes, member)                                                         \
    {                                                                                       \
        name, #member, FIELD_INPUT, axes, true, offsetof(attn_backward_args, member), 0, -1 \
    }
#define GRAD(name, axes, member, like)                                                           \
    {                                                                                            \
        name, #member, FIELD_GRADIENT, axes, true, offsetof(attn_backward_args, member), 0, like \
    }
#define OPTION(name, kind, member, flag)                                                     \
    {                                                                                        \
        name, #member, kind, AXES_ROWS, false, offsetof(attn_forward_args, member), flag, -1 \
    }
#define FLAG(name, flag)                                                                        \
    {                                                                                           \
        name, #flag, FIELD_FLAG, AXES_ROWS, false, offsetof(attn_forward_args, flags), flag, -1 \
    }

const field_spec fields[F_COUNT] = {
    [F_Q] = IN("q", AXES_ROWS, q),
    [F_K] = IN("k", AXES_ROWS, k),
    [F_V] = IN("v", AXES_ROWS, v),
    [F_OUT] = OUT("out", AXES_ROWS, o),
    [F_OUT_F32] = OUT("out_f32", AXES_ROWS, o_f32),
    [F_LSE] = OUT("lse", AXES_STATS, lse),
    [F_ROW_MAX] = OUT("row_max", AXES_STATS, row_max),
    [F_D_OUT] = GRAD_IN("d_out", AXES_ROWS, d_o),
    [F_D_LSE] = GRAD_IN("d_lse", AXES_STATS, d_lse),
    [F_MASK] = IN("mask", AXES_SCORES, mask),
    [F_MASK_BITS] = IN("mask_bits", AXES_SCORES, mask),
    [F_BIAS] = IN("bias", AXES_SCORES, bias),
    [F_SLOPES] = IN("alibi_slopes", AXES_HEADS, alibi_slopes),
    [F_SINKS] = IN("sinks", AXES_HEADS, sinks),
    [F_CU_Q] = COUNTS("cu_seqlens_q", cu_seqlens_q),
    [F_CU_K] = COUNTS("cu_seqlens_k", cu_seqlens_k),
    [F_USED_Q] = COUNTS("seqused_q", seqused_q),
    [F_USED_K] = COUNTS("seqused_k", seqused_k),
    [F_Q_ORIGIN] = COUNTS("q_origin", q_origin),
    [F_K_ORIGIN] = COUNTS("k_origin", k_origin),
    [F_TABLE] = IN("block_table", AXES_TABLE, block_table),
    [F_LEFTPAD] = COUNTS("leftpad_k", leftpad_k),
    [F_K_NEW] = IN("k_new", AXES_ROWS, k_new),
    [F_V_NEW] = IN("v_new", AXES_ROWS, v_new),
    [F_ROPE_COS] = IN("rope_cos", AXES_TABLE, rope_cos),
    [F_ROPE_SIN] = IN("rope_sin", AXES_TABLE, rope_sin),
    [F_K_SCALE] = IN("k_scale", AXES_ROWS, k_scale),
    [F_K_SHIFT] = IN("k_shift", AXES_ROWS, k_shift),
    [F_V_SCALE] = IN("v_scale", AXES_ROWS, v_scale),
    [F_V_SHIFT] = IN("v_shift", AXES_ROWS, v_shift),
    [F_DQ] = GRAD("dq", AXES_ROWS, dq, F_Q),
    [F_DK] = GRAD("dk", AXES_ROWS, dk, F_K),
    [F_DV] = GRAD("dv", AXES_ROWS, dv, F_V),
    [F_D_BIAS] = GRAD("d_bias", AXES_SCORES, d_bias, F_BIAS),
    [F_D_SLOPES] = GRAD("d_alibi_slopes", AXES_HEADS, d_alibi_slopes, F_SLOPES),
    [F_D_SINKS] = GRAD("d_sinks", AXES_HEADS, d_sinks, F_SINKS),
    [F_SCALE] = OPTION("softmax_scale", FIELD_SCALE, softmax_scale, ATTN_SCALE),
    [F_CAUSAL] = FLAG("causal", ATTN_CAUSAL),
    [F_TOP_LEFT] = FLAG("top_left", ATTN_TOP_LEFT),
    [F_WINDOW_LEFT] = OPTION("window_left", FIELD_WINDOW, window_left, ATTN_WINDOW),
    [F_WINDOW_RIGHT] = OPTION("window_right", FIELD_WINDOW, window_right, ATTN_WINDOW),
    [F_SOFTCAP] = OPTION("softcap", FIELD_NUMBER, softcap, 0),
    [F_DROPOUT] = OPTION("dropout_p", FIELD_NUMBER, dropout_p, 0),
    [F_SEED] = OPTION("dropout_seed", FIELD_COUNTER, dropout_seed, 0),
    [F_OFFSET] = OPTION("dropout_offset", FIELD_COUNTER, dropout_offset, 0),
    [F_ROPE_BASE] = OPTION("rope_base", FIELD_NUMBER, rope_base, 0),
    [F_ROPE_DIMS] = OPTION("rope_dims", FIELD_COUNTER, rope_dims, 0),
    [F_ROPE_INTERLEAVED] = FLAG("rope_interleaved", ATTN_ROPE_INTERLEAVED),
    [F_SHARES_PAGES] = FLAG("shares_pages", ATTN_SHARES_PAGES),
    [F_PRECISE] = FLAG("precise", ATTN_PRECISE),
    [F_BF16X3] = FLAG("bf16x3", ATTN_BF16X3),
    [F_LAYOUT] = {"layout", "layout", FIELD_LAYOUT, AXES_ROWS, false, 0, 0, -1},
    [F_MEMORY] = {"memory", "memory", FIELD_MEMORY, AXES_ROWS, false, 0, 0, -1},
    [F_CONTEXT] = {"context", "context", FIELD_CONTEXT, AXES_ROWS, false, 0, 0, -1},
    [F_STREAM] = {"stream", "stream", FIELD_STREAM, AXES_ROWS, false, 0, 0, -1},
};

bool fields_intern(core_state *state)
{
    for (int i = 0; i < F_COUNT; i++) {
        if (!(state->names[i] = PyUnicode_InternFromString(fields[i].name)))
            return false;
    }
    return true;
}

/* Finds the field of a keyword, from `start` on, where the next one usually is; or -1. */
static int find(const core_state *state, PyObject *name, int start)
{
    for (int i = 0; i < F_COUNT; i++) {
        int at = start + i < F_COUNT ? start + i : start + i - F_COUNT;
        if (state->names[at] == name)
            return at;
    }
    for (int i = 0; i < F_COUNT; i++) {
        if (!PyUnicode_CompareWithASCIIString(name, fields[i].name))
            return i;
    }
    return -1;
}

int fields_find(const char *name)
{
    for (int i = 0; i < F_COUNT; i++) {
        if (!strcmp(fields[i].name, name))
            return i;
    }
    return -1;
}

void *fields_member(core_call *call, const field_spec *field)
{
    return field->backward ? (char *)&call->backward + field->offset
                           : (char *)&call->forward + field->offset;
}

/* ---- A call's keywords ----------------------------------------------------------------------- */

static bool complete(core_call *call)
{
    static const int required[] = {F_Q, F_K, F_V, F_OUT, F_LSE, F_D_OUT};
    int count = call->is_backward && !call->is_plan ? 6 : 3; /* a plan needs no results */
    for (int i = 0; i < count; i++) {
        if (call->field_view[required[i]] >= 0)
            continue;
        PyErr_Format(PyExc_TypeError, "%s is missing", fields[required[i]].name);
        return false;
    }
    return true;
}

/* New rows, and their scales and shifts, are written to the inputs k, v and theirs. */
static bool cache_writable(const core_call *call)
{
    static const int cache[] = {F_K, F_V, F_K_SCALE, F_V_SCALE, F_K_SHIFT, F_V_SHIFT};
    for (int i = 0; i < 6; i++) {
        int at = cache[i];
        bool written = call->field_view[i % 2 ? F_V_NEW : F_K_NEW] >= 0;
        if (!written || call->field_view[at] < 0 || !call->views[call->field_view[at]].readonly)
            continue;
        PyErr_Format(PyExc_ValueError, "%s is read-only, and new rows are written to it",
                     fields[at].name);
        return false;
    }
    return true;
}

/* A mask comes with a byte for each key, or in packed bytes. */
static bool one_mask(const core_call *call)
{
    if (call->field_view[F_MASK] < 0 || call->field_view[F_MASK_BITS] < 0)
        return true;
    PyErr_SetString(PyExc_ValueError, "mask and mask_bits exclude each other");
    return false;
}

/* Reads the elements of packed arrays as what they hold. */
static bool unpack(int at, array_view *view)
{
    if (at == F_MASK_BITS)
        return view_as_bits(view, fields[at].name);
    if (at == F_K || at == F_V)
        view_as_codes(view);
    return true;
}

/* Makes tensors of the arrays, all of which are on one device. */
static bool map(core_call *call)
{
    const array_view *q = &call->views[call->field_view[F_Q]];
    for (int at = 0; at < F_COUNT; at++) {
        if (call->field_view[at] < 0)
            continue;
        array_view *view = &call->views[call->field_view[at]];
        const field_spec *field = &fields[at];
        if (!unpack(at, view))
            return false;
        if (view->device.type != q->device.type || view->device.id != q->device.id) {
            PyErr_Format(PyExc_ValueError, "%s and q are on different devices", field->name);
            return false;
        }
        bool cached = at == F_K || at == F_V || (at >= F_K_SCALE && at <= F_V_SHIFT);
        bool pool = cached && call->field_view[F_TABLE] >= 0;
        if (field->axes == AXES_ROWS && view->ndim != (pool ? 4 : q->ndim)) {
            PyErr_Format(PyExc_ValueError, "%s has %d axes and q has %d", field->name, view->ndim,
                         q->ndim);
            return false;
        }
        if (!axes_map(view, field->axes, call->heads_first, field->name,
                      fields_member(call, field)))
            return false;
    }
    if (q->ndim == 3 && call->field_view[F_CU_Q] < 0) {
        PyErr_Format(PyExc_ValueError, "q has 3 axes; without cu_seqlens_q it must have 4: %s",
                     call->heads_first ? "(batch, heads, sequence, dim)"
                                       : "(batch, sequence, heads, dim)");
        return false;
    }
    return true;
}

void fields_begin(core_call *call)
{
    for (int i = 0; i < F_COUNT; i++)
        call->field_view[i] = -1;
    memset(call->results, 0, sizeof call->results);
    memset(call->wanted, 0, sizeof call->wanted);
    call->forward.struct_size = sizeof call->forward;
    call->forward.window_left = call->forward.window_right = -1;
}

bool fields_end(core_call *call)
{
    if (!(call->forward.flags & ATTN_WINDOW))
        call->forward.window_left = call->forward.window_right = 0;
    return complete(call) && cache_writable(call) && one_mask(call) && map(call);
}

bool fields_parse(core_call *call, const char *function, PyObject *const *values, Py_ssize_t count,
                  PyObject *names)
{
    fields_begin(call);
    Py_ssize_t total = names ? PyTuple_Size(names) : 0;
    if (count) {
        PyErr_Format(PyExc_TypeError, "%s takes keywords only", function);
        return false;
    }
    int at = -1;
    for (Py_ssize_t i = 0; i < total; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        at = find(call->state, name, at + 1);
        if (at < 0) {
            PyErr_Format(PyExc_TypeError, "%s has no keyword '%U'", function, name);
            return false;
        }
        if (values[i] != Py_None && !fields_set(call, at, values[i]))
            return false;
    }
    return fields_end(call);
}
