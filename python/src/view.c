/*
 * view.c: arrays of Python as views: a type's exchange table of DLPack, the buffer protocol, or
 * __dlpack__. Nothing is copied.
 */
#include "core.h"

#include <string.h>

/* Says which types there are: callers get here by integers of 16 bits and by other byte orders. */
static const char KNOWN[] =
    "float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, bool, uint8, int8, int32 and "
    "int64 in this machine's byte order";

bool view_dtype_from_dlpack(dl_dtype type, int32_t *dtype)
{
    static const struct {
        uint8_t code, bits;
        int32_t dtype;
    } known[] = {
        {DL_FLOAT, 32, ATTN_F32}, {DL_BFLOAT, 16, ATTN_BF16}, {DL_FLOAT, 16, ATTN_F16},
        {DL_FLOAT, 64, ATTN_F64}, {DL_BOOL, 8, ATTN_BOOL},    {DL_INT, 32, ATTN_I32},
        {DL_INT, 64, ATTN_I64},   {DL_UINT, 8, ATTN_U8},      {DL_INT, 8, ATTN_I8},
        {DL_E4M3, 8, ATTN_E4M3},  {DL_E5M2, 8, ATTN_E5M2},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (type.code == known[i].code && type.bits == known[i].bits && type.lanes == 1) {
            *dtype = known[i].dtype;
            return true;
        }
    }
    return false;
}

void view_from_dlpack(const dl_tensor *tensor, array_view *out)
{
    out->data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
    out->device = tensor->device;
    out->ndim = tensor->ndim;
    int64_t stride = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        out->shape[i] = tensor->shape[i];
        out->stride[i] = tensor->strides ? tensor->strides[i] : stride;
        stride *= tensor->shape[i] > 0 ? tensor->shape[i] : 1;
    }
}

static bool too_many_axes(const char *name, int ndim)
{
    PyErr_Format(PyExc_ValueError, "%s has %d axes; libattn's arrays have at most 4", name, ndim);
    return false;
}

static bool take_dlpack(const dl_tensor *tensor, const char *name, array_view *out)
{
    if (tensor->ndim > 4)
        return too_many_axes(name, tensor->ndim);
    if (!view_dtype_from_dlpack(tensor->dtype, &out->dtype)) {
        PyErr_Format(
            PyExc_TypeError,
            "%s has a type that libattn does not know (DLPack: code %d, %d bits); it knows %s",
            name, tensor->dtype.code, tensor->dtype.bits, KNOWN);
        return false;
    }
    int32_t device = tensor->device.type;
    if (device != DL_CPU && device != DL_CUDA && device != DL_CUDA_HOST &&
        device != DL_CUDA_MANAGED) {
        PyErr_Format(
            PyExc_ValueError,
            "%s is on a device of DLPack's type %d; libattn computes on CPUs and CUDA GPUs", name,
            device);
        return false;
    }
    view_from_dlpack(tensor, out);
    if (device == DL_CUDA_HOST)
        out->device = (dl_device){.type = DL_CPU};
    if (device == DL_CUDA_MANAGED)
        out->device.type = DL_CUDA;
    return true;
}

/* ---- Exchange tables ------------------------------------------------------------------------- */

/* The table of an object's type: 1, 0 (it has none) or -1 (exception). */
static int find_exchange(core_state *state, PyObject *array, const dl_exchange **exchange)
{
    PyObject *capsule = PyObject_GetAttr((PyObject *)Py_TYPE(array), state->exchange_name);
    if (!capsule) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    const dl_exchange_header *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule);
    if (!table)
        return -1;
    while (table && table->version.major != 1)
        table = table->previous;
    *exchange = (const dl_exchange *)table;
    return table && (*exchange)->tensor_from_object;
}

/* A tensor of PyTorch may stand for the negative of what its memory holds (conj().imag), of which
 * DLPack knows nothing: then *array is a copy, which the view owns. */
static bool negate(core_state *state, const dl_exchange *exchange, PyObject **array,
                   array_view *out)
{
    if (exchange != state->negating) {
        if (!PyObject_HasAttr(*array, state->is_neg_name))
            return true;
        state->negating = exchange;
    }
    PyObject *negative = PyObject_CallMethodObjArgs(*array, state->is_neg_name, NULL);
    Py_XDECREF(negative);
    if (negative != Py_True)
        return negative;
    out->readonly = true;
    *array = out->owner = PyObject_CallMethod(*array, "resolve_neg", NULL);
    return *array;
}

static bool take_exchange(core_state *state, const dl_exchange *exchange, PyObject *array,
                          const char *name, array_view *out)
{
    dl_tensor tensor;
    if (!negate(state, exchange, &array, out) || exchange->tensor_from_object(array, &tensor))
        return false;
    out->exchange = exchange;
    return take_dlpack(&tensor, name, out);
}

/* ---- Buffers --------------------------------------------------------------------------------- */

static bool format_dtype(const char *format, Py_ssize_t size, int32_t *dtype)
{
    char order = *format;
    if (order == '<' || order == '=' || order == '@' || order == '|')
        format++;
    if (!format[0] || format[1])
        return false;
    switch (*format) {
    case 'f':
        return *dtype = ATTN_F32, true;
    case 'd':
        return *dtype = ATTN_F64, true;
    case 'e':
        return *dtype = ATTN_F16, true;
    case '?':
        return *dtype = ATTN_BOOL, true;
    case 'B':
        return *dtype = ATTN_U8, true;
    case 'b':
        return *dtype = ATTN_I8, true;
    case 'i':
    case 'l':
    case 'q':
        return *dtype = size == 4 ? ATTN_I32 : ATTN_I64, size == 4 || size == 8;
    default:
        return false;
    }
}

bool view_take_buffer(PyObject *array, const char *name, int32_t dtype, array_view *out)
{
    Py_buffer *buffer = &out->buffer;
    if (PyObject_GetBuffer(array, buffer, PyBUF_RECORDS_RO))
        return false;
    out->has_buffer = true;
    out->dtype = dtype;
    if (buffer->ndim > 4)
        return too_many_axes(name, buffer->ndim);
    if (!dtype &&
        !format_dtype(buffer->format ? buffer->format : "B", buffer->itemsize, &out->dtype)) {
        PyErr_Format(PyExc_TypeError,
                     "%s has a type that libattn does not know (format '%s'); it knows %s", name,
                     buffer->format, KNOWN);
        return false;
    }
    out->data = buffer->buf;
    out->ndim = buffer->ndim;
    out->readonly = buffer->readonly;
    out->device = (dl_device){.type = DL_CPU};
    for (int i = 0; i < buffer->ndim; i++) {
        out->shape[i] = buffer->shape[i];
        out->stride[i] = buffer->strides[i] / buffer->itemsize;
        if (buffer->strides[i] % buffer->itemsize && buffer->shape[i] > 1) {
            PyErr_Format(PyExc_ValueError,
                         "%s: the stride of axis %d is no whole number of elements", name, i);
            return false;
        }
    }
    return true;
}

/* ---- __dlpack__ and the rest ----------------------------------------------------------------- */

/* Imports libattn._arrays, which handles kinds of arrays too rare for C. Borrowed. */
PyObject *core_arrays(core_state *state)
{
    if (!state->arrays)
        state->arrays = PyImport_ImportModule("libattn._arrays");
    return state->arrays;
}

/* The capsule stays with its owner, unconsumed, so that its own destructor frees the tensor. */
static bool take_capsule(PyObject *capsule, const char *name, array_view *out)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const dl_managed_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        out->readonly = managed->flags & DL_READ_ONLY;
        return take_dlpack(&managed->tensor, name, out);
    }
    const dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    return managed && take_dlpack(&managed->tensor, name, out);
}

/* _arrays.export(array, name) gives a capsule, or (array of its bits, dtype). */
static bool take_other(core_state *state, PyObject *array, const char *name, array_view *out)
{
    PyObject *arrays = core_arrays(state);
    if (!arrays)
        return false;
    PyObject *found = PyObject_CallMethod(arrays, "export", "Os", array, name);
    if (!found)
        return false;
    out->owner = found;
    if (PyCapsule_CheckExact(found))
        return take_capsule(found, name, out);
    int dtype;
    PyObject *bits;
    return PyArg_ParseTuple(found, "Oi", &bits, &dtype) && view_take_buffer(bits, name, dtype, out);
}

/* ---- The way in ------------------------------------------------------------------------------ */

/* An array with a mask of its own (numpy.ma), which its buffer does not show; a refusal then. */
static bool masked(core_state *state, PyObject *array, const char *name)
{
    if (!PyObject_HasAttr(array, state->mask_name))
        return false;
    PyErr_Format(PyExc_TypeError,
                 "%s has a mask of its own (numpy.ma), which would be lost: give its .data or "
                 ".filled(), and the keyword mask for keys that are hidden",
                 name);
    return true;
}

/* The caller releases the view even after a failure. */
bool view_take(core_state *state, PyObject *array, const char *name, array_view *out)
{
    memset(out, 0, offsetof(array_view, buffer));
    out->array = array;
    bool numpy = (PyObject *)Py_TYPE(array) == state->ndarray;
    if (!numpy) {
        const dl_exchange *exchange;
        int there = find_exchange(state, array, &exchange);
        if (there < 0)
            return false;
        if (there)
            return take_exchange(state, exchange, array, name, out);
    }
    if (PyObject_CheckBuffer(array)) {
        if (!numpy && masked(state, array, name))
            return false;
        if (view_take_buffer(array, name, 0, out))
            return true;
        /* NumPy makes no buffer of ml_dtypes' elements, JAX none of its bfloat16, CuPy none. */
        if (out->has_buffer)
            return false;
        PyErr_Clear();
    }
    return take_other(state, array, name, out);
}

void view_as_codes(array_view *view)
{
    if (view->dtype == ATTN_U8)
        view->dtype = ATTN_I4X2;
}

bool view_as_bits(array_view *view, const char *name)
{
    if (view->dtype != ATTN_U8) {
        PyErr_Format(PyExc_TypeError,
                     "%s must be an array of uint8, eight keys in a byte (numpy.packbits(mask, "
                     "axis=-1, bitorder='little'))",
                     name);
        return false;
    }
    view->dtype = ATTN_B1X8;
    return true;
}

void view_release(array_view *view)
{
    if (view->has_buffer)
        PyBuffer_Release(&view->buffer);
    view->has_buffer = false;
    Py_CLEAR(view->owner);
}

/* _arrays.stream(array) gives the address of a stream. */
static bool ask_stream(core_state *state, PyObject *array, void **stream)
{
    PyObject *arrays = core_arrays(state);
    PyObject *address = arrays ? PyObject_CallMethod(arrays, "stream", "O", array) : NULL;
    if (!address)
        return false;
    *stream = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return !PyErr_Occurred();
}

bool view_stream(core_state *state, const array_view *view, void **stream)
{
    const dl_device device = view->device;
    *stream = NULL;
    if (device.type != DL_CUDA)
        return true;
    if (!view->exchange || !view->exchange->current_stream)
        return ask_stream(state, view->array, stream);
    return view->exchange->current_stream(device.type, device.id, stream) == 0;
}
