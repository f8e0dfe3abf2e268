/*
 * merge.c: results over parts of the keys combined, gradients of that, and dropout's mask.
 */
#include "core.h"

#include <stdlib.h>
#include <string.h>

/* O is made in the shape of a part. `keep` is dropout_mask's. */
static const core_name names[] = {{"part_o", "outs"}, {"part_lse", "lses"}, {"o", "outs[0]"},
                                  {"d_o", "d_out"},   {"keep", "out"},      {NULL, NULL}};

/* An array of a call. */
typedef struct merge_slot {
    array_view view;
    attn_tensor tensor;
    axes axes;
    const struct merge_slot *like; /* for a result, the array whose shape and type it has */
    PyObject *result;
} merge_slot;

typedef struct merge_parts {
    core_state *state;
    bool heads_first;
    Py_ssize_t count; /* parts */
    int slot_count;
    merge_slot *slots;
    attn_tensor *tensors; /* of all parts: outputs, LSEs, gradients of both */
    PyObject *context;    /* of the arrays' device */
    void *stream;
} merge_parts;

static bool begin(merge_parts *parts, PyObject *module, PyObject *outs, PyObject *lses,
                  int heads_first)
{
    memset(parts, 0, sizeof *parts);
    parts->state = PyModule_GetState(module);
    parts->heads_first = heads_first;
    parts->count = PyList_Size(outs);
    if (parts->count < 1 || PyList_Size(lses) != parts->count) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "merge takes as many LSEs as outputs, at least one");
        }
        return false;
    }
    parts->slots = calloc(4 * (size_t)parts->count + 4, sizeof *parts->slots);
    parts->tensors = calloc(4 * (size_t)parts->count, sizeof *parts->tensors);
    if (!parts->slots || !parts->tensors)
        PyErr_NoMemory();
    return parts->slots && parts->tensors;
}

static void end(merge_parts *parts)
{
    for (int i = 0; i < parts->slot_count; i++) {
        view_release(&parts->slots[i].view);
        Py_XDECREF(parts->slots[i].result);
    }
    free(parts->slots);
    free(parts->tensors);
    Py_XDECREF(parts->context);
}

/* The context and the stream of the first array, on whose device the others must be. */
static bool settle(merge_parts *parts, const array_view *view)
{
    const dl_device device = view->device, first = parts->slots[0].view.device;
    if (device.type != first.type || device.id != first.id) {
        PyErr_SetString(PyExc_ValueError, "the arrays are not on one device");
        return false;
    }
    return parts->slot_count > 1 || (context_choose(parts->state, device, &parts->context) &&
                                     view_stream(parts->state, view, &parts->stream));
}

static merge_slot *take(merge_parts *parts, PyObject *array, axes kind, const char *name)
{
    merge_slot *slot = &parts->slots[parts->slot_count++];
    slot->axes = kind;
    if (!view_take(parts->state, array, name, &slot->view))
        return NULL;
    return settle(parts, &slot->view) &&
                   axes_map(&slot->view, kind, parts->heads_first, name, &slot->tensor)
               ? slot
               : NULL;
}

static merge_slot *give(merge_parts *parts, const merge_slot *like)
{
    merge_slot *slot = &parts->slots[parts->slot_count];
    const array_view *view = &like->view;
    slot->axes = like->axes;
    slot->like = like;
    slot->result =
        allocate_like(parts->state, view, view->ndim, view->shape, view->dtype, NULL, &slot->view);
    if (!slot->result)
        return NULL;
    parts->slot_count++;
    return axes_map(&slot->view, slot->axes, parts->heads_first, "result", &slot->tensor) ? slot
                                                                                          : NULL;
}

static PyObject *finish(merge_parts *parts, merge_slot *slot)
{
    PyObject *result = slot->result;
    slot->result = NULL;
    return allocate_finish(parts->state, &slot->like->view, &slot->view, result);
}

/* The parts' arrays: slots 0, 1 of part 0, 2, 3 of part 1 ... */
static bool take_parts(merge_parts *parts, PyObject *outs, PyObject *lses)
{
    for (Py_ssize_t i = 0; i < parts->count; i++) {
        const merge_slot *out = take(parts, PyList_GetItem(outs, i), AXES_ROWS, "outs");
        const merge_slot *lse =
            out ? take(parts, PyList_GetItem(lses, i), AXES_STATS, "lses") : NULL;
        if (!lse)
            return false;
        parts->tensors[i] = out->tensor;
        parts->tensors[parts->count + i] = lse->tensor;
    }
    return true;
}

static attn_merge_args merge_args(const merge_parts *parts)
{
    return (attn_merge_args){.struct_size = sizeof(attn_merge_args),
                             .parts = parts->count,
                             .part_o = parts->tensors,
                             .part_lse = parts->tensors + parts->count,
                             .stream = parts->stream};
}

/* merge(outs, lses, heads_first) -> (out, lse); lists of arrays */
PyObject *core_merge(PyObject *module, PyObject *arguments)
{
    PyObject *outs, *lses, *results = NULL;
    int heads_first;
    if (!PyArg_ParseTuple(arguments, "OOp:merge", &outs, &lses, &heads_first))
        return NULL;
    merge_parts parts;
    bool ready = begin(&parts, module, outs, lses, heads_first) && take_parts(&parts, outs, lses);
    merge_slot *out = ready ? give(&parts, &parts.slots[0]) : NULL;
    merge_slot *lse = out ? give(&parts, &parts.slots[1]) : NULL;
    if (lse) {
        attn_merge_args args = merge_args(&parts);
        args.o = out->tensor, args.lse = lse->tensor;
        attn_context *context = context_of(parts.context);
        attn_status status;
        Py_BEGIN_ALLOW_THREADS status = attn_merge(context, &args);
        Py_END_ALLOW_THREADS if (status) core_raise_named(status, AXES_NOTE_ROWS, names);
        else results = Py_BuildValue("(NN)", finish(&parts, out), finish(&parts, lse));
    }
    end(&parts);
    return results;
}

/* The gradients of the parts, part by part: [(d_out, d_lse), ...]. */
static PyObject *gradients(merge_parts *parts, merge_slot *first)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < parts->count; i++) {
        PyObject *pair =
            Py_BuildValue("(NN)", finish(parts, first + 2 * i), finish(parts, first + 2 * i + 1));
        if (!pair || PyList_Append(list, pair))
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

/* merge_backward(outs, lses, d_out, d_lse or None, heads_first) -> [(d_out, d_lse) of each part] */
PyObject *core_merge_backward(PyObject *module, PyObject *arguments)
{
    PyObject *outs, *lses, *d_out, *d_lse, *results = NULL;
    int heads_first;
    if (!PyArg_ParseTuple(arguments, "OOOOp:merge_backward", &outs, &lses, &d_out, &d_lse,
                          &heads_first)) {
        return NULL;
    }
    merge_parts parts;
    bool ready = begin(&parts, module, outs, lses, heads_first) && take_parts(&parts, outs, lses);
    merge_slot *grad = ready ? take(&parts, d_out, AXES_ROWS, "d_out") : NULL;
    merge_slot *grad_lse = NULL;
    ready = grad && (d_lse == Py_None || (grad_lse = take(&parts, d_lse, AXES_STATS, "d_lse")));
    merge_slot *first = &parts.slots[parts.slot_count];
    for (Py_ssize_t i = 0; ready && i < 2 * parts.count; i++) {
        const merge_slot *made = give(&parts, &parts.slots[i]);
        if (made)
            parts.tensors[(2 + i % 2) * parts.count + i / 2] = made->tensor;
        ready = made;
    }
    if (ready) {
        attn_merge_args forward = merge_args(&parts);
        attn_merge_backward_args args = {.struct_size = sizeof args,
                                         .forward = &forward,
                                         .d_o = grad->tensor,
                                         .part_d_o = parts.tensors + 2 * parts.count,
                                         .part_d_lse = parts.tensors + 3 * parts.count,
                                         .stream = parts.stream};
        if (grad_lse)
            args.d_lse = grad_lse->tensor;
        attn_context *context = context_of(parts.context);
        attn_status status;
        Py_BEGIN_ALLOW_THREADS status = attn_merge_backward(context, &args);
        Py_END_ALLOW_THREADS results =
            status ? core_raise_named(status, AXES_NOTE_ROWS, names) : gradients(&parts, first);
    }
    end(&parts);
    return results;
}

/* dropout_mask(keep, p, seed, offset, q_origin, k_origin): fills keep, (batch, heads, q, k), bool;
 * origins are arrays of one number or of one for each sequence, on keep's device, or None. */
PyObject *core_dropout_mask(PyObject *module, PyObject *arguments)
{
    static const char *const array_names[] = {"out", "q_origin", "k_origin"};
    PyObject *arrays[3], *seed, *offset, *chosen = NULL;
    attn_dropout_mask_args args = {.struct_size = sizeof args};
    attn_tensor *const tensors[] = {&args.keep, &args.q_origin, &args.k_origin};
    if (!PyArg_ParseTuple(arguments, "OdOOOO:dropout_mask", &arrays[0], &args.dropout_p, &seed,
                          &offset, &arrays[1], &arrays[2]) ||
        !value_counter(seed, "seed", &args.dropout_seed) ||
        !value_counter(offset, "offset", &args.dropout_offset)) {
        return NULL;
    }
    core_state *state = PyModule_GetState(module);
    array_view views[3];
    memset(views, 0, sizeof views);
    attn_status status = ATTN_OK;
    bool ready = true;
    for (int i = 0; i < 3 && ready; i++) {
        ready = (i > 0 && arrays[i] == Py_None) ||
                (view_take(state, arrays[i], array_names[i], &views[i]) &&
                 axes_map(&views[i], i ? AXES_LENGTHS : AXES_SCORES, false, array_names[i],
                          tensors[i]));
        if (ready && views[i].array &&
            (views[i].device.type != views[0].device.type ||
             views[i].device.id != views[0].device.id)) {
            PyErr_SetString(PyExc_ValueError, "the arrays are not on one device");
            ready = false;
        }
    }
    ready = ready && context_choose(state, views[0].device, &chosen) &&
            view_stream(state, &views[0], &args.stream);
    if (ready) {
        attn_context *context = context_of(chosen);
        Py_BEGIN_ALLOW_THREADS status = attn_dropout_mask(context, &args);
        Py_END_ALLOW_THREADS if (status) core_raise_named(status, NULL, names);
    }
    Py_XDECREF(chosen);
    for (int i = 0; i < 3; i++)
        view_release(&views[i]);
    if (!ready || status)
        return NULL;
    Py_RETURN_NONE;
}
