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
        bool turned = call->heads_first && field->axes == AXES_ROWS && ndim == 4;
        call->results[at] = allocate_like(call->state, &call->views[call->field_view[field->like]],
                                          ndim, shape, dtype, turned, view);
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
