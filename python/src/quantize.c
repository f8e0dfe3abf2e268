/*
 * quantize.c: tensors as codes of 8 or 4 bits, and back.
 */
#include "core.h"

#include <string.h>

enum { SLOTS = 4 };

/* Arrays of a call, in the order of its arguments. */
typedef struct quantize_call {
    core_state *state;
    const array_view *first; /* of the arrays that there are */
    array_view views[SLOTS];
    attn_tensor tensors[SLOTS];
} quantize_call;

static bool take(quantize_call *call, int slot, PyObject *array, bool written)
{
    static const char *const names[SLOTS] = {"x", "codes", "scale", "shift"};
    array_view *view = &call->views[slot];
    if (array == Py_None)
        return true;
    if (!view_take(call->state, array, names[slot], view))
        return false;
    call->first = call->first ? call->first : view;
    if (view->device.type != call->first->device.type ||
        view->device.id != call->first->device.id) {
        PyErr_SetString(PyExc_ValueError, "the arrays are not on one device");
        return false;
    }
    if (written && view->readonly) {
        PyErr_Format(PyExc_ValueError, "%s is read-only", names[slot]);
        return false;
    }
    if (slot == 1)
        view_as_codes(view);
    return axes_map(view, AXES_ROWS, false, names[slot], &call->tensors[slot]);
}

static PyObject *run(PyObject *module, PyObject *arguments, bool back)
{
    PyObject *arrays[SLOTS];
    if (!PyArg_ParseTuple(arguments, "OOOO", &arrays[0], &arrays[1], &arrays[2], &arrays[3]))
        return NULL;
    quantize_call call;
    memset(&call, 0, sizeof call);
    call.state = PyModule_GetState(module);
    bool ready = true;
    for (int slot = 0; slot < SLOTS && ready; slot++)
        ready = take(&call, slot, arrays[slot], back == (slot == 0));
    PyObject *result = NULL, *chosen = NULL;
    void *stream = NULL;
    if (ready && !call.first)
        PyErr_SetString(PyExc_TypeError, "x and codes must be arrays");
    else if (ready && context_choose(call.state, call.first->device, &chosen) &&
             view_stream(call.state, call.first, &stream)) {
        attn_quantize_args args = {.struct_size = sizeof args,
                                   .x = call.tensors[0],
                                   .codes = call.tensors[1],
                                   .scale = call.tensors[2],
                                   .shift = call.tensors[3],
                                   .stream = stream};
        attn_context *context = context_of(chosen);
        attn_status status;
        Py_BEGIN_ALLOW_THREADS status =
            back ? attn_dequantize(context, &args) : attn_quantize(context, &args);
        Py_END_ALLOW_THREADS result = status ? core_raise(status) : Py_NewRef(Py_None);
    }
    for (int slot = 0; slot < SLOTS; slot++)
        view_release(&call.views[slot]);
    Py_XDECREF(chosen);
    return result;
}

/* quantize(x, codes, scale, shift): fills the last three; scale and shift may be None */
PyObject *core_quantize(PyObject *module, PyObject *arguments)
{
    return run(module, arguments, false);
}

/* dequantize(x, codes, scale, shift): fills x */
PyObject *core_dequantize(PyObject *module, PyObject *arguments)
{
    return run(module, arguments, true);
}
