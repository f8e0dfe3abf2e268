/*
 * cache.c: the type Cache: attn_cache over pools of the caller's, which it keeps alive. Every call
 * leaves the GIL, since the thread that holds the cache's lock may have to wait for it (copy).
 */
#include "core.h"

#include <stdlib.h>
#include <string.h>

enum { POOLS = 6 };

typedef struct cache_object {
    PyObject_HEAD attn_cache *cache;
    attn_cache_config config;
    void *memory; /* of the bookkeeping */
    array_view pools[POOLS];
    PyObject *arrays[POOLS]; /* the pools, or NULL */
    PyObject *copy;          /* callable(to_page, from_page, rows), or NULL */
} cache_object;

static cache_object *of(PyObject *object)
{
    return (cache_object *)object;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static bool take_pool(core_state *state, cache_object *self, int at, PyObject *array,
                      bool heads_first)
{
    static const char *const names[POOLS] = {"k", "v", "k_scale", "k_shift", "v_scale", "v_shift"};
    attn_cache_config *config = &self->config;
    attn_tensor *const tensors[POOLS] = {&config->k,       &config->v,       &config->k_scale,
                                         &config->k_shift, &config->v_scale, &config->v_shift};
    array_view *view = &self->pools[at];
    if (array == Py_None)
        return true;
    self->arrays[at] = Py_NewRef(array);
    if (!view_take(state, array, names[at], view))
        return false;
    if (view->readonly) {
        PyErr_Format(PyExc_ValueError, "%s is read-only; rows are written to pools", names[at]);
        return false;
    }
    if (view->ndim != 4) {
        PyErr_Format(PyExc_ValueError, "%s has %d axes; a pool has 4: %s", names[at], view->ndim,
                     heads_first ? "(pages, heads, page size, dim)"
                                 : "(pages, page size, heads, dim)");
        return false;
    }
    const dl_device device = self->pools[0].device;
    if (view->device.type != device.type || view->device.id != device.id) {
        PyErr_Format(PyExc_ValueError, "%s and k are on different devices", names[at]);
        return false;
    }
    if (at < 2)
        view_as_codes(view);
    return axes_map(view, AXES_ROWS, heads_first, names[at], tensors[at]);
}

/* Copies rows of pages by the callable; its exception waits in this thread for the method's end. */
static attn_status copy_rows(void *user, int64_t to, int64_t from, int64_t rows)
{
    const cache_object *self = user;
    PyGILState_STATE held = PyGILState_Ensure();
    PyObject *done =
        PyObject_CallFunction(self->copy, "LLL", (long long)to, (long long)from, (long long)rows);
    const bool failed = !done;
    Py_XDECREF(done);
    PyGILState_Release(held);
    return failed ? ATTN_ERR_DEVICE : ATTN_OK;
}

static bool open_cache(cache_object *self)
{
    uint64_t bytes = 0;
    attn_status status = attn_cache_bytes(&self->config, &bytes);
    if (!status) {
        self->memory = bytes <= INT64_MAX ? malloc((size_t)bytes) : NULL;
        if (!self->memory) {
            PyErr_Format(PyExc_MemoryError, "no memory for tables of %llu bytes",
                         (unsigned long long)bytes);
            return false;
        }
        status = attn_cache_open(&self->config, self->memory, bytes, &self->cache);
    }
    return !status || (core_raise(status), false);
}

static PyObject *cache_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"k",       "v",       "sequences", "length",      "k_scale", "k_shift",
                            "v_scale", "v_shift", "copy",      "heads_first", NULL};
    PyObject *arrays[POOLS] = {Py_None, Py_None, Py_None, Py_None, Py_None, Py_None};
    PyObject *copy = Py_None, *most, *longest;
    int64_t sequences, length;
    int heads_first = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOOO|OOOOOp:Cache", names, &arrays[0],
                                     &arrays[1], &most, &longest, &arrays[2], &arrays[3],
                                     &arrays[4], &arrays[5], &copy, &heads_first) ||
        !value_whole(most, "sequences", &sequences) || !value_whole(longest, "length", &length)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    cache_object *self = of(allocate(type, 0));
    if (!self)
        return NULL;
    self->config = (attn_cache_config){
        .struct_size = sizeof self->config, .sequences = sequences, .length = length};
    core_state *state = PyType_GetModuleState(type);
    bool ready = true;
    for (int at = 0; at < POOLS && ready; at++)
        ready = take_pool(state, self, at, arrays[at], heads_first);
    if (copy != Py_None) {
        self->copy = Py_NewRef(copy);
        self->config.user = self, self->config.copy = copy_rows;
    } else if (ready && self->pools[0].device.type != DL_CPU) {
        PyErr_SetString(PyExc_ValueError, "pools of a GPU need copy");
        ready = false;
    }
    if (ready && open_cache(self))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void cache_dealloc(PyObject *object)
{
    cache_object *self = of(object);
    PyTypeObject *type = Py_TYPE(object);
    attn_cache_close(self->cache);
    free(self->memory);
    for (int at = 0; at < POOLS; at++) {
        view_release(&self->pools[at]);
        Py_XDECREF(self->arrays[at]);
    }
    Py_XDECREF(self->copy);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* ---- Methods --------------------------------------------------------------------------------- */

/* Reads a method's arguments: a sequence and, by its name, another number or NULL. */
static bool parse(PyObject *arguments, const char *format, int64_t *sequence, const char *name,
                  int64_t *number)
{
    PyObject *first, *second;
    return PyArg_ParseTuple(arguments, format, &first, &second) &&
           value_whole(first, "sequence", sequence) &&
           (!number || value_whole(second, name, number));
}

/* Ends a method: value, unless the status or the callable says otherwise. Steals it. */
static PyObject *finish(attn_status status, PyObject *value)
{
    if (!status && !PyErr_Occurred())
        return value;
    Py_XDECREF(value);
    return PyErr_Occurred() ? NULL : core_raise(status);
}

static PyObject *cache_alloc(PyObject *object, PyObject *unused)
{
    (void)unused;
    int64_t sequence = -1;
    attn_status status;
    Py_BEGIN_ALLOW_THREADS status = attn_cache_alloc(of(object)->cache, &sequence);
    Py_END_ALLOW_THREADS return finish(status, PyLong_FromLongLong(sequence));
}

static PyObject *cache_free(PyObject *object, PyObject *arguments)
{
    int64_t sequence;
    if (!parse(arguments, "O:free", &sequence, NULL, NULL))
        return NULL;
    attn_status status;
    Py_BEGIN_ALLOW_THREADS status = attn_cache_free(of(object)->cache, sequence);
    Py_END_ALLOW_THREADS return finish(status, Py_NewRef(Py_None));
}

static PyObject *cache_fork(PyObject *object, PyObject *arguments)
{
    int64_t sequence, length;
    if (!parse(arguments, "OO:fork", &sequence, "length", &length))
        return NULL;
    int64_t forked = -1;
    attn_status status;
    Py_BEGIN_ALLOW_THREADS status = attn_cache_fork(of(object)->cache, sequence, length, &forked);
    Py_END_ALLOW_THREADS return finish(status, PyLong_FromLongLong(forked));
}

static PyObject *cache_extend(PyObject *object, PyObject *arguments)
{
    int64_t sequence, rows;
    if (!parse(arguments, "OO:extend", &sequence, "rows", &rows))
        return NULL;
    attn_status status;
    Py_BEGIN_ALLOW_THREADS status = attn_cache_extend(of(object)->cache, sequence, rows);
    Py_END_ALLOW_THREADS return finish(status, Py_NewRef(Py_None));
}

static PyObject *cache_truncate(PyObject *object, PyObject *arguments)
{
    int64_t sequence, length;
    if (!parse(arguments, "OO:truncate", &sequence, "length", &length))
        return NULL;
    attn_status status;
    Py_BEGIN_ALLOW_THREADS status = attn_cache_truncate(of(object)->cache, sequence, length);
    Py_END_ALLOW_THREADS return finish(status, Py_NewRef(Py_None));
}

/* view(sequences, table, lengths): fills the last two; contiguous arrays of int64, int32, int64. */
static PyObject *cache_view(PyObject *object, PyObject *arguments)
{
    const attn_cache_config *config = &of(object)->config;
    Py_buffer sequences, table, lengths;
    if (!PyArg_ParseTuple(arguments, "y*w*w*:view", &sequences, &table, &lengths))
        return NULL;
    int64_t count = sequences.len / (Py_ssize_t)sizeof(int64_t), page = config->k.shape[1],
            columns = config->length / page + (config->length % page != 0);
    PyObject *result = NULL;
    if (lengths.len / (Py_ssize_t)sizeof(int64_t) != count ||
        table.len / (Py_ssize_t)sizeof(int32_t) != count * columns) {
        PyErr_SetString(PyExc_ValueError, "table and lengths do not fit the sequences");
    } else {
        attn_forward_args args = {.struct_size = sizeof args};
        attn_status status;
        Py_BEGIN_ALLOW_THREADS status =
            attn_cache_view(of(object)->cache, sequences.buf, count, table.buf, lengths.buf, &args);
        Py_END_ALLOW_THREADS result = finish(status, Py_NewRef(Py_None));
    }
    PyBuffer_Release(&sequences);
    PyBuffer_Release(&table);
    PyBuffer_Release(&lengths);
    return result;
}

static PyObject *cache_free_pages(PyObject *object, PyObject *unused)
{
    (void)unused;
    int64_t pages = 0;
    attn_status status;
    Py_BEGIN_ALLOW_THREADS status = attn_cache_free_pages(of(object)->cache, &pages);
    Py_END_ALLOW_THREADS return finish(status, PyLong_FromLongLong(pages));
}

PyObject *cache_make_type(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"alloc", cache_alloc, METH_NOARGS, NULL},
        {"free", cache_free, METH_VARARGS, NULL},
        {"fork", cache_fork, METH_VARARGS, NULL},
        {"extend", cache_extend, METH_VARARGS, NULL},
        {"truncate", cache_truncate, METH_VARARGS, NULL},
        {"view", cache_view, METH_VARARGS, NULL},
        {"free_pages", cache_free_pages, METH_NOARGS, NULL},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "attn_cache; libattn.Cache is the interface"},
        {Py_tp_new, cache_new},
        {Py_tp_dealloc, cache_dealloc},
        {Py_tp_methods, methods},
        {0, NULL},
    };
    static PyType_Spec spec = {"libattn._core.Cache", sizeof(cache_object), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    return PyType_FromModuleAndSpec(module, &spec, NULL);
}
