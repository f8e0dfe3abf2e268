/*
 * results.c: the arrays that a call gives back: allocated where the caller has none.
 */
#include "fields.h"

#include <string.h>

/* The shape and type of a result to allocate. */
static int32_t result_shape(const core_call *call, int at, int *ndim, int64_t shape[4])
{
    const array_view *q = &call->views[call->field_view[F_Q]],
                     *v = &call->views[call->field_view[F_V]];
    int64_t rows = call->forward.q.shape[1], heads = call->forward.q.shape[2];
    const array_view *like =
        fields[at].like == F_Q ? q : &call->views[call->field_view[fields[at].like]];
    if (fields[at].axes == AXES_STATS) {
        *ndim = q->ndim - 1;
        if (*ndim == 3)
            shape[0] = call->forward.q.shape[0];
        shape[*ndim - 2] = heads, shape[*ndim - 1] = rows;
        return q->dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    }
    *ndim = like->ndim;
    memcpy(shape, like->shape, sizeof like->shape);
    if (fields[at].kind == FIELD_RESULT)
        shape[*ndim - 1] = v->shape[v->ndim - 1] * (v->dtype == ATTN_I4X2 ? 2 : 1);
    return at == F_OUT_F32 ? ATTN_F32 : like->dtype;
}

/* Gives a result of a plan some address: plans look at shapes only. */
static bool pretend(core_call *call, int at, int ndim, const int64_t shape[4], int32_t dtype)
{
    array_view view = {.data = (void *)(uintptr_t)64, .ndim = ndim, .dtype = dtype};
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        view.shape[i] = shape[i], view.stride[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
    return axes_map(&view, fields[at].axes, call->heads_first, fields[at].name,
                    fields_member(call, &fields[at]));
}

/* The axes of an array as they lie in memory, the fastest last, by the rule of PyTorch's
 * empty_like: an axis of stride 0 says nothing, and the longer of two with equal strides is slower.
 */
static void order_of(const array_view *view, int order[4])
{
    for (int i = 0; i < 4; i++)
        order[i] = i;
    for (int i = 2; i >= 0; i--) {
        for (int at = i, next = i + 1; next < 4; next++) {
            int a = order[at], b = order[next];
            int64_t more = view->stride[b] - view->stride[a];
            if (!view->stride[a] || !view->stride[b] || (!more && view->shape[b] <= view->shape[a]))
                continue;
            if (more < 0)
                break;
            order[at] = b, order[next] = a;
            at = next;
        }
    }
}

/* True where PyTorch has a kernel, whose result lies as Q does; elsewhere it is contiguous. */
static bool has_kernel(const core_call *call)
{
    const array_view *q = &call->views[call->field_view[F_Q]],
                     *k = &call->views[call->field_view[F_K]],
                     *v = &call->views[call->field_view[F_V]];
    return q->shape[3] == k->shape[3] && k->shape[3] == v->shape[3] && q->stride[3] == 1 &&
           k->stride[3] == 1 && v->stride[3] == 1;
}

/* The order in memory of a result; NULL: as its axes stand. */
static const int *memory_order(const core_call *call, const field_spec *field, int ndim,
                               int order[4])
{
    static const int rows[4] = {0, 2, 1, 3};
    if (!call->heads_first || field->axes != AXES_ROWS || ndim != 4)
        return NULL;
    if (field->kind == FIELD_GRADIENT || call->memory == MEMORY_ROWS)
        return rows;
    if (call->memory == MEMORY_CONTIGUOUS || !has_kernel(call))
        return NULL;
    order_of(&call->views[call->field_view[F_Q]], order);
    return order;
}

bool results_allocate(core_call *call)
{
    if (call->is_plan && call->is_backward) {
        call->wanted[F_OUT] = call->field_view[F_OUT] < 0;
        call->wanted[F_LSE] = call->field_view[F_LSE] < 0;
    }
    for (int at = 0; at < F_COUNT; at++) {
        const field_spec *field = &fields[at];
        if (!call->wanted[at])
            continue;
        if (call->field_view[field->like] < 0) {
            PyErr_Format(PyExc_ValueError, "%s is asked for without %s", field->name,
                         fields[field->like].name);
            return false;
        }
        int ndim;
        int64_t shape[4];
        int32_t dtype = result_shape(call, at, &ndim, shape);
        if (call->is_plan) {
            if (!pretend(call, at, ndim, shape, dtype))
                return false;
            continue;
        }
        array_view *view = &call->views[call->count];
        int order[4];
        call->results[at] =
            allocate_like(call->state, &call->views[call->field_view[field->like]], ndim, shape,
                          dtype, memory_order(call, field, ndim, order), view);
        if (!call->results[at])
            return false;
        call->field_view[at] = call->count++;
        if (!axes_map(view, field->axes, call->heads_first, field->name,
                      fields_member(call, field)))
            return false;
    }
    return true;
}

/* Returns the results of `list`, None for each that was not asked for. */
PyObject *results_give(core_call *call, const int *list, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        int at = list[i];
        PyObject *result = call->results[at];
        call->results[at] = NULL;
        if (!result) {
            result = Py_NewRef(Py_None);
        } else if (call->wanted[at]) {
            array_view *view = &call->views[call->field_view[at]];
            result = allocate_finish(call->state, &call->views[call->field_view[fields[at].like]],
                                     view, result);
        }
        if (!result || PyTuple_SetItem(tuple, i, result))
            Py_CLEAR(tuple);
    }
    return tuple;
}
