/*
 * allocate.c: results as arrays of the caller's kind: by the exchange table of its type, by NumPy,
 * or by libattn._arrays.
 */
#include "core.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of results whose memory is kept: a page fault of each 4 KiB takes longer than the call of
 * its framework's allocator. */
enum { KEPT_SMALLEST = 64 << 10, KEPT_LARGEST = 32 << 20 };

static dl_dtype dlpack_dtype(int32_t dtype)
{
    switch (dtype) {
    case ATTN_F64:
        return (dl_dtype){DL_FLOAT, 64, 1};
    case ATTN_F16:
        return (dl_dtype){DL_FLOAT, 16, 1};
    case ATTN_BF16:
        return (dl_dtype){DL_BFLOAT, 16, 1};
    case ATTN_U8:
        return (dl_dtype){DL_UINT, 8, 1};
    case ATTN_BOOL:
        return (dl_dtype){DL_BOOL, 8, 1};
    default:
        return (dl_dtype){DL_FLOAT, 32, 1};
    }
}

static void set_error(void *user, const char *kind, const char *message)
{
    (void)user, (void)kind;
    PyErr_SetString(PyExc_MemoryError, message);
}

/* An array whose axes stand in another order than in memory. */
typedef struct turned_array {
    dl_managed_versioned managed, *whole;
    int64_t shape[4], stride[4];
} turned_array;

static void turned_free(dl_managed_versioned *managed)
{
    turned_array *turned = managed->manager;
    if (turned->whole->deleter)
        turned->whole->deleter(turned->whole);
    free(turned);
}

/* Takes an array, and makes its axis i axis order[i]. NULL, and no exception: no memory. */
static dl_managed_versioned *turn(dl_managed_versioned *whole, const int *order)
{
    turned_array *turned = malloc(sizeof *turned);
    if (!turned) {
        if (whole->deleter)
            whole->deleter(whole);
        return NULL;
    }
    array_view view;
    view_from_dlpack(&whole->tensor, &view);
    for (int i = 0; i < 4; i++) {
        turned->shape[order[i]] = view.shape[i];
        turned->stride[order[i]] = view.stride[i];
    }
    turned->whole = whole;
    turned->managed = *whole;
    turned->managed.manager = turned;
    turned->managed.deleter = turned_free;
    turned->managed.tensor.shape = turned->shape;
    turned->managed.tensor.strides = turned->stride;
    return &turned->managed;
}

/* A result on the CPU, in memory that is kept from result to result. */
typedef struct kept_array {
    dl_managed_versioned managed;
    array_view view;
} kept_array;

static void kept_free(dl_managed_versioned *managed)
{
    scratch_free(managed->tensor.data);
    free(managed->manager);
}

/* Makes an array of the prototype's shape, contiguous. NULL, and no exception: no memory. */
static dl_managed_versioned *keep(const dl_tensor *prototype, uint64_t bytes, dl_version version)
{
    kept_array *made = malloc(sizeof *made);
    void *memory = made ? scratch_allocate(bytes) : NULL;
    if (!memory) {
        free(made);
        return NULL;
    }
    made->managed = (dl_managed_versioned){
        .version = version, .manager = made, .deleter = kept_free, .tensor = *prototype};
    view_from_dlpack(prototype, &made->view);
    made->managed.tensor.shape = made->view.shape;
    made->managed.tensor.strides = made->view.stride;
    made->managed.tensor.data = memory;
    return &made->managed;
}

/* Small arrays come from their framework, which has them at hand. */
static bool is_kept(const dl_tensor *prototype, uint64_t *bytes)
{
    uint64_t count = prototype->dtype.bits / 8;
    for (int i = 0; i < prototype->ndim; i++) {
        uint64_t extent = (uint64_t)prototype->shape[i];
        if (extent && count > KEPT_LARGEST / extent)
            return false;
        count *= extent;
    }
    *bytes = count;
    return prototype->device.type == DL_CPU && count >= KEPT_SMALLEST;
}

static PyObject *by_exchange(const array_view *like, int ndim, const int64_t *shape, int32_t dtype,
                             const int *order, array_view *out)
{
    int64_t extents[4];
    for (int i = 0; i < ndim; i++)
        extents[i] = shape[order ? order[i] : i];
    dl_tensor prototype = {
        .device = like->device, .ndim = ndim, .dtype = dlpack_dtype(dtype), .shape = extents};
    dl_managed_versioned *managed = NULL;
    uint64_t bytes;
    if (is_kept(&prototype, &bytes)) {
        if (!(managed = keep(&prototype, bytes, like->exchange->header.version)))
            return PyErr_NoMemory();
    } else if (like->exchange->allocate(&prototype, &managed, NULL, set_error)) {
        if (!PyErr_Occurred())
            PyErr_NoMemory();
        return NULL;
    }
    if (order && !(managed = turn(managed, order)))
        return PyErr_NoMemory();
    view_from_dlpack(&managed->tensor, out);
    out->dtype = dtype;
    out->exchange = like->exchange;
    void *object = NULL;
    if (like->exchange->managed_to_object(managed, &object))
        return NULL;
    return object;
}

static PyObject *shape_tuple(int ndim, const int64_t *shape)
{
    PyObject *tuple = PyTuple_New(ndim);
    for (int i = 0; tuple && i < ndim; i++) {
        PyObject *extent = PyLong_FromLongLong(shape[i]);
        if (!extent || PyTuple_SetItem(tuple, i, extent))
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* Makes an array of NumPy; bf16 as 16-bit numbers, to which allocate_finish gives their type. */
static PyObject *by_numpy(core_state *state, int ndim, const int64_t *shape, int32_t dtype,
                          array_view *out)
{
    PyObject *tuple = shape_tuple(ndim, shape);
    if (!tuple)
        return NULL;
    PyObject *array = PyObject_CallFunctionObjArgs(state->empty, tuple, state->dtypes[dtype], NULL);
    Py_DECREF(tuple);
    if (!array)
        return NULL;
    out->array = array;
    if (!view_take_buffer(array, "result", dtype, out)) {
        view_release(out);
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

static PyObject *by_arrays(core_state *state, const array_view *like, int ndim,
                           const int64_t *shape, int32_t dtype, array_view *out)
{
    PyObject *arrays = core_arrays(state);
    PyObject *tuple = arrays ? shape_tuple(ndim, shape) : NULL;
    if (!tuple)
        return NULL;
    PyObject *array = PyObject_CallMethod(arrays, "empty", "OOi", like->array, tuple, (int)dtype);
    Py_DECREF(tuple);
    if (!array)
        return NULL;
    if (!view_take(state, array, "result", out)) {
        view_release(out);
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

PyObject *allocate_like(core_state *state, const array_view *like, int ndim, const int64_t *shape,
                        int32_t dtype, const int *order, array_view *out)
{
    memset(out, 0, offsetof(array_view, buffer));
    if (like->exchange)
        return by_exchange(like, ndim, shape, dtype, order, out);
    if (like->device.type == DL_CPU)
        return by_numpy(state, ndim, shape, dtype, out);
    return by_arrays(state, like, ndim, shape, dtype, out);
}

/* True for results that are, and shall be, arrays of NumPy. */
static bool is_numpy(const core_state *state, const array_view *like, const array_view *result)
{
    return result->dtype != ATTN_BF16 && (PyObject *)Py_TYPE(like->array) == state->ndarray;
}

PyObject *allocate_finish(core_state *state, const array_view *like, const array_view *result,
                          PyObject *array)
{
    if (like->exchange || like->device.type != DL_CPU || is_numpy(state, like, result)) {
        return array;
    }
    PyObject *arrays = core_arrays(state);
    PyObject *finished = NULL;
    if (arrays) {
        finished =
            PyObject_CallMethod(arrays, "finish", "OOi", like->array, array, (int)result->dtype);
    }
    Py_DECREF(array);
    return finished;
}
