/*
 * operations.c: a call from its keywords to its results: the two passes, and their plans.
 */
#include "fields.h"

#include <string.h>

static void begin(core_call *call, PyObject *module)
{
    memset(call, 0, offsetof(core_call, views));
    call->state = PyModule_GetState(module);
    call->workspace.has_buffer = false, call->workspace.owner = NULL;
    call->forward.struct_size = sizeof call->forward;
    call->backward.struct_size = sizeof call->backward;
    call->backward.forward = &call->forward;
}

static void end(core_call *call)
{
    for (int i = 0; i < call->count; i++)
        view_release(&call->views[i]);
    for (int at = 0; at < F_COUNT; at++)
        Py_XDECREF(call->results[at]);
    view_release(&call->workspace);
    Py_XDECREF(call->chosen);
}

/* Finds the context of the arrays' device, and the stream of their framework. */
static bool settle(core_call *call)
{
    const array_view *q = &call->views[call->field_view[F_Q]];
    if (!call->context) {
        if (!context_choose(call->state, q->device, &call->chosen))
            return false;
        call->context = call->chosen;
    }
    if (call->context && !context_fits(call->state, call->context, q->device))
        return false;
    if (!call->stream && !view_stream(call->state, q, &call->stream))
        return false;
    call->forward.stream = call->backward.stream = call->stream;
    return true;
}

/* Takes memory of the GPU from the arrays' framework, whose order of streams makes it safe to free
 * when the call returns. */
static bool workspace(core_call *call)
{
    const array_view *q = &call->views[call->field_view[F_Q]];
    if (q->device.type != DL_CUDA)
        return true;
    uint64_t bytes = 0;
    attn_status status = scratch_ask(call, &bytes);
    if (status)
        return core_raise_call(status, call), false;
    if (!bytes)
        return true;
    int64_t shape[1] = {(int64_t)bytes};
    PyObject *memory = allocate_like(call->state, q, 1, shape, ATTN_U8, NULL, &call->workspace);
    if (!memory)
        return false;
    Py_XDECREF(call->workspace.owner);
    call->workspace.owner = memory;
    scratch_give(call, call->workspace.data, bytes);
    return true;
}

static bool prepare(core_call *call, const char *function, PyObject *const *values,
                    Py_ssize_t count, PyObject *names)
{
    return fields_parse(call, function, values, count, names) && settle(call) &&
           results_allocate(call);
}

PyObject *core_forward(PyObject *module, PyObject *const *values, Py_ssize_t count, PyObject *names)
{
    static const int list[] = {F_OUT, F_LSE, F_ROW_MAX, F_OUT_F32};
    core_call call;
    begin(&call, module);
    PyObject *results = NULL;
    if (prepare(&call, "forward", values, count, names) && workspace(&call)) {
        attn_status status;
        Py_BEGIN_ALLOW_THREADS status = scratch_run(&call);
        Py_END_ALLOW_THREADS results =
            status ? core_raise_call(status, &call) : results_give(&call, list, 4);
    }
    end(&call);
    return results;
}

PyObject *core_backward(PyObject *module, PyObject *const *values, Py_ssize_t count,
                        PyObject *names)
{
    static const int list[] = {F_DQ, F_DK, F_DV, F_D_BIAS, F_D_SLOPES, F_D_SINKS};
    core_call call;
    begin(&call, module);
    call.is_backward = true;
    PyObject *results = NULL;
    if (prepare(&call, "backward", values, count, names) && workspace(&call)) {
        attn_status status;
        Py_BEGIN_ALLOW_THREADS status = scratch_run(&call);
        Py_END_ALLOW_THREADS results =
            status ? core_raise_call(status, &call) : results_give(&call, list, 6);
    }
    end(&call);
    return results;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static PyObject *plan_values(const attn_plan *plan)
{
    return Py_BuildValue(
        "(ssiiiLLLLLdddKiiiiidd)", plan->kernel, plan->why, plan->threads, plan->strip,
        plan->key_block, (long long)plan->rows_per_item, (long long)plan->items,
        (long long)plan->tiles_full, (long long)plan->tiles_partial, (long long)plan->tiles_skipped,
        plan->flops, plan->bytes_tiled, plan->bytes_standard,
        (unsigned long long)plan->workspace_bytes, plan->bits, plan->sum_bits, plan->vector_bits,
        plan->tile_products, plan->pair_products, plan->input_loss, plan->weight_loss);
}

static PyObject *plan(PyObject *module, PyObject *const *values, Py_ssize_t count, PyObject *names,
                      bool is_backward)
{
    core_call call;
    begin(&call, module);
    call.is_plan = true;
    call.is_backward = is_backward;
    PyObject *results = NULL;
    if (prepare(&call, "plan", values, count, names)) {
        attn_plan filled = {.struct_size = sizeof filled};
        attn_context *context = context_of(call.context);
        call.backward.d_o = call.forward.o;
        attn_status status = is_backward ? attn_backward_plan(context, &call.backward, &filled)
                                         : attn_forward_plan(context, &call.forward, &filled);
        results = status ? core_raise_call(status, &call) : plan_values(&filled);
    }
    end(&call);
    return results;
}

PyObject *core_forward_plan(PyObject *module, PyObject *const *values, Py_ssize_t count,
                            PyObject *names)
{
    return plan(module, values, count, names, false);
}

PyObject *core_backward_plan(PyObject *module, PyObject *const *values, Py_ssize_t count,
                             PyObject *names)
{
    return plan(module, values, count, names, true);
}
