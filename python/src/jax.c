/*
 * jax.c: the two passes as handlers of XLA's foreign function interface, for libattn.jax. The
 * attributes "operands" and "results" name the fields of the buffers, in order and separated by
 * commas; every other attribute is an option by its field's name.
 */
#include "fields.h"
#include "xla.h"

#include <string.h>

/* The state of the module that made the handlers: XLA hands them no pointer. */
static core_state *module_state;

static const int types[] = {
    [XLA_PRED] = ATTN_BOOL, [XLA_S8] = ATTN_I8,   [XLA_S32] = ATTN_I32,
    [XLA_S64] = ATTN_I64,   [XLA_U8] = ATTN_U8,   [XLA_F16] = ATTN_F16,
    [XLA_F32] = ATTN_F32,   [XLA_F64] = ATTN_F64, [XLA_BF16] = ATTN_BF16,
};

/* ---- Buffers --------------------------------------------------------------------------------- */

static bool view_of(const xla_buffer *buffer, const char *name, array_view *out)
{
    int known = sizeof types / sizeof *types;
    int dtype = buffer->dtype >= 0 && buffer->dtype < known ? types[buffer->dtype] : 0;
    if (!dtype || buffer->rank > 4) {
        PyErr_Format(PyExc_TypeError, "%s: an array of this type or number of axes is not taken",
                     name);
        return false;
    }
    *out = (array_view){.data = buffer->data, .ndim = (int)buffer->rank, .dtype = dtype};
    int64_t stride = 1;
    for (int i = out->ndim - 1; i >= 0; i--) {
        out->shape[i] = buffer->dims[i];
        out->stride[i] = stride;
        stride *= buffer->dims[i];
    }
    return true;
}

/* The seed of dropout is data in JAX: two numbers of 32 bits, the lower first. */
static bool set_seed(core_call *call, const xla_buffer *buffer)
{
    if (buffer->dtype != XLA_U32 || buffer->rank != 1 || buffer->dims[0] != 2) {
        PyErr_SetString(PyExc_TypeError, "dropout_seed must be two numbers of type uint32");
        return false;
    }
    if (call->on_gpu) {
        PyErr_SetString(PyExc_NotImplementedError,
                        "dropout of libattn.jax runs on CPUs only: on a GPU its seed lies in the "
                        "GPU's memory");
        return false;
    }
    const uint32_t *words = buffer->data;
    call->forward.dropout_seed = words[0] | (uint64_t)words[1] << 32;
    return true;
}

static bool set_buffer(core_call *call, const char *name, const xla_buffer *buffer)
{
    int at = fields_find(name);
    if (at < 0 || call->count == VIEWS_MAX) {
        PyErr_Format(PyExc_TypeError, "no field of arrays is named '%s'", name);
        return false;
    }
    if (at == F_SEED)
        return set_seed(call, buffer);
    array_view *view = &call->views[call->count];
    if (!view_of(buffer, name, view))
        return false;
    call->field_view[at] = call->count++;
    return true;
}

static bool set_buffers(core_call *call, xla_text names, const xla_buffers *list)
{
    const char *text = names.data, *end = names.data + names.length;
    for (int64_t i = 0; i < list->count; i++) {
        char name[32];
        size_t length = 0;
        for (; text < end && *text != ','; text++) {
            if (length < sizeof name - 1)
                name[length++] = *text;
        }
        name[length] = 0;
        text += text < end;
        if (!set_buffer(call, name, list->buffers[i]))
            return false;
    }
    return true;
}

/* ---- Attributes ------------------------------------------------------------------------------ */

static PyObject *scalar(const xla_scalar *number)
{
    switch (number->dtype) {
    case XLA_PRED:
        return PyBool_FromLong(*(const uint8_t *)number->value);
    case XLA_S64:
        return PyLong_FromLongLong(*(const int64_t *)number->value);
    case XLA_F64:
        return PyFloat_FromDouble(*(const double *)number->value);
    default:
        PyErr_Format(PyExc_TypeError, "an attribute of XLA's type %d is not taken", number->dtype);
        return NULL;
    }
}

static bool set_attribute(core_call *call, const xla_frame *frame, int64_t i)
{
    const xla_attributes *list = &frame->attributes;
    xla_text name = *list->names[i];
    if (list->types[i] == XLA_ATTR_STRING) {
        bool results = name.length == 7 && !memcmp(name.data, "results", 7);
        return set_buffers(call, *(const xla_text *)list->values[i],
                           results ? &frame->results : &frame->operands);
    }
    char text[32];
    size_t length = name.length < sizeof text ? name.length : sizeof text - 1;
    memcpy(text, name.data, length);
    text[length] = 0;
    int at = fields_find(text);
    PyObject *value = NULL;
    if (at >= 0 && list->types[i] == XLA_ATTR_SCALAR)
        value = scalar(list->values[i]);
    else
        PyErr_Format(PyExc_TypeError, "no option is named '%s'", text);
    bool done = value && fields_set(call, at, value);
    Py_XDECREF(value);
    return done;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static xla_error *fail(const xla_frame *frame, int code, const char *text)
{
    xla_error_args args = {.struct_size = sizeof args, .message = text, .code = code};
    return frame->api->error_create(&args);
}

static xla_error *fail_by_exception(const xla_frame *frame)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyObject *bytes = text ? PyUnicode_AsUTF8String(text) : NULL;
    const char *sentence = bytes ? PyBytes_AsString(bytes) : "the call cannot be read";
    xla_error *error = fail(frame, XLA_INVALID_ARGUMENT, sentence);
    PyErr_Clear();
    Py_XDECREF(bytes), Py_XDECREF(text), Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
    return error;
}

static bool read_frame(core_call *call, const xla_frame *frame, dl_device device)
{
    fields_begin(call);
    for (int64_t i = 0; i < frame->attributes.count; i++) {
        if (!set_attribute(call, frame, i))
            return false;
    }
    for (int i = 0; i < call->count; i++)
        call->views[i].device = device;
    return fields_end(call) && context_choose(call->state, device, &call->chosen);
}

/* XLA asks a handler for the version that it was made for before it takes it. */
static xla_error *tell_version(const xla_frame *frame)
{
    xla_metadata *out = ((xla_metadata_extension *)frame->extensions)->metadata;
    out->version.major = XLA_MAJOR;
    out->version.minor = XLA_MINOR;
    out->traits = 0;
    return NULL;
}

/* XLA's error for a status; NULL: none. */
static xla_error *answer(const xla_frame *frame, attn_status status)
{
    if (!status)
        return NULL;
    int code = status == ATTN_ERR_UNSUPPORTED     ? XLA_UNIMPLEMENTED
               : status == ATTN_ERR_OUT_OF_MEMORY ? XLA_RESOURCE_EXHAUSTED
               : status == ATTN_ERR_DEVICE        ? XLA_INTERNAL
                                                  : XLA_INVALID_ARGUMENT;
    return fail(frame, code, attn_last_error());
}

/* Asks XLA for the GPU of a call and its stream. */
static xla_error *find_gpu(const xla_frame *frame, dl_device *device, void **stream)
{
    const xla_api *api = frame->api;
    if (api->struct_size < sizeof *api)
        return fail(frame, XLA_UNIMPLEMENTED, "libattn.jax on a GPU needs a newer jaxlib");
    xla_ordinal_args ordinal = {.struct_size = sizeof ordinal, .context = frame->context};
    xla_stream_args found = {.struct_size = sizeof found, .context = frame->context};
    xla_error *error = api->ordinal_get(&ordinal);
    if (!error)
        error = api->stream_get(&found);
    *device = (dl_device){DL_CUDA, ordinal.ordinal};
    *stream = found.stream;
    return error;
}

/* Runs a pass in memory of XLA's, whose order on the stream makes it safe to free after the launch.
 */
static xla_error *run_on_gpu(const xla_frame *frame, core_call *call)
{
    uint64_t bytes = 0;
    attn_status status = scratch_ask(call, &bytes);
    if (status || !bytes)
        return answer(frame, status ? status : scratch_run(call));
    xla_allocate_args block = {.struct_size = sizeof block, .context = frame->context};
    block.size = bytes, block.alignment = 1;
    xla_error *error = frame->api->memory_allocate(&block);
    if (error)
        return error;
    scratch_give(call, block.data, bytes);
    error = answer(frame, scratch_run(call));
    xla_free_args done = {.struct_size = sizeof done, .context = frame->context};
    done.size = bytes, done.data = block.data;
    xla_error *other = frame->api->memory_free(&done);
    return error ? error : other;
}

static xla_error *handle(const xla_frame *frame, bool is_backward, bool on_gpu)
{
    if (frame->extensions && frame->extensions->type == XLA_METADATA)
        return tell_version(frame);
    if (frame->stage != XLA_EXECUTE)
        return NULL;
    core_call call;
    memset(&call, 0, offsetof(core_call, views));
    call.state = module_state;
    call.is_backward = is_backward;
    call.on_gpu = on_gpu;
    call.backward.struct_size = sizeof call.backward;
    call.backward.forward = &call.forward;
    dl_device device = {DL_CPU, 0};
    xla_error *error = on_gpu ? find_gpu(frame, &device, &call.stream) : NULL;
    if (error)
        return error;
    call.forward.stream = call.backward.stream = call.stream;
    PyGILState_STATE lock = PyGILState_Ensure();
    error = read_frame(&call, frame, device) ? NULL : fail_by_exception(frame);
    PyGILState_Release(lock);
    if (error)
        return error;
    call.context = call.chosen;
    error = on_gpu ? run_on_gpu(frame, &call) : answer(frame, scratch_run(&call));
    if (call.chosen) {
        lock = PyGILState_Ensure();
        Py_DECREF(call.chosen);
        PyGILState_Release(lock);
    }
    return error;
}

static xla_error *forward(xla_frame *frame)
{
    return handle(frame, false, false);
}

static xla_error *backward(xla_frame *frame)
{
    return handle(frame, true, false);
}

static xla_error *forward_gpu(xla_frame *frame)
{
    return handle(frame, false, true);
}

static xla_error *backward_gpu(xla_frame *frame)
{
    return handle(frame, true, true);
}

static PyObject *capsule(xla_error *(*handler)(xla_frame *))
{
    void *pointer;
    memcpy(&pointer, &handler, sizeof pointer);
    return PyCapsule_New(pointer, "xla._CUSTOM_CALL_TARGET", NULL);
}

PyObject *core_jax_handlers(PyObject *module, PyObject *unused)
{
    (void)unused;
    module_state = PyModule_GetState(module);
    return Py_BuildValue("(NNNN)", capsule(forward), capsule(backward), capsule(forward_gpu),
                         capsule(backward_gpu));
}
