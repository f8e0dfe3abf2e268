/*
 * context.c: the type Context, which calls hold while they run; the default one, and one per GPU.
 */
#include "core.h"

#include <stdatomic.h>
#include <string.h>

typedef struct context_object {
    PyObject_HEAD attn_context *context;
    dl_device device;
} context_object;

static PyObject *create(PyTypeObject *type, const attn_context_config *config)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    context_object *self = (context_object *)allocate(type, 0);
    if (!self)
        return NULL;
    bool gpu = config->device == ATTN_DEVICE_CUDA;
    self->device = (dl_device){gpu ? DL_CUDA : DL_CPU, gpu ? config->device_ordinal : 0};
    attn_status status = attn_context_create(config, &self->context);
    if (!status)
        return (PyObject *)self;
    core_raise(status);
    Py_DECREF(self);
    return NULL;
}

static PyObject *context_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"device", "ordinal", "threads", "cpu", NULL};
    const char *device = "cpu";
    PyObject *ordinal = NULL, *threads = NULL;
    attn_context_config config = {.struct_size = sizeof config};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|sOOz:Context", names, &device, &ordinal,
                                     &threads, &config.cpu) ||
        (ordinal && !value_whole32(ordinal, "ordinal", &config.device_ordinal)) ||
        (threads && !value_whole32(threads, "threads", &config.threads))) {
        return NULL;
    }
    if (!strcmp(device, "cuda")) {
        config.device = ATTN_DEVICE_CUDA;
    } else if (strcmp(device, "cpu")) {
        PyErr_Format(PyExc_ValueError, "device is '%s'; it must be 'cpu' or 'cuda'", device);
        return NULL;
    }
    return create(type, &config);
}

static void context_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    attn_context *context = ((context_object *)object)->context;
    Py_BEGIN_ALLOW_THREADS attn_context_destroy(context);
    Py_END_ALLOW_THREADS freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

PyObject *context_make_type(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         "Context(device='cpu', ordinal=0, threads=0, cpu=None)\n--\n\n"
         "Threads and instruction set that calls run on.\n\n"
         "threads: size of the pool; 0 = one per core that this process may use.\n"
         "cpu: cap on the instruction set: 'scalar', 'avx2', 'avx512', 'avx512bf16', 'amx', "
         "'neon', 'neonbf16'."},
        {Py_tp_new, context_new},
        {Py_tp_dealloc, context_dealloc},
        {0, NULL},
    };
    static PyType_Spec spec = {"libattn.Context", sizeof(context_object), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    return PyType_FromModuleAndSpec(module, &spec, NULL);
}

attn_context *context_of(PyObject *object)
{
    return object ? ((context_object *)object)->context : NULL;
}

/* Guards the module's contexts where there is no global lock; held for a few instructions. */
static atomic_flag guard = ATOMIC_FLAG_INIT;

static PyObject *take(PyObject **place)
{
    while (atomic_flag_test_and_set(&guard))
        continue;
    PyObject *object = *place;
    Py_XINCREF(object);
    atomic_flag_clear(&guard);
    return object;
}

/* Puts an object, which it takes, in place of another. Returns that one. */
static PyObject *put(PyObject **place, PyObject *object)
{
    while (atomic_flag_test_and_set(&guard))
        continue;
    PyObject *before = *place;
    *place = object;
    atomic_flag_clear(&guard);
    return before;
}

bool context_choose(core_state *state, dl_device device, PyObject **object)
{
    *object = NULL;
    if (device.type == DL_CPU) {
        *object = take(&state->default_context);
        return true;
    }
    if (device.id < 0 || device.id >= GPUS_MAX) {
        PyErr_Format(PyExc_ValueError, "GPU %d: libattn's package knows the first %d", device.id,
                     GPUS_MAX);
        return false;
    }
    *object = take(&state->gpus[device.id]);
    if (!*object) {
        attn_context_config config = {
            .struct_size = sizeof config, .device = ATTN_DEVICE_CUDA, .device_ordinal = device.id};
        *object = create((PyTypeObject *)state->context_type, &config);
        if (*object)
            Py_XDECREF(put(&state->gpus[device.id], Py_NewRef(*object)));
    }
    return *object;
}

bool context_fits(core_state *state, PyObject *object, dl_device device)
{
    if ((PyObject *)Py_TYPE(object) != state->context_type) {
        PyErr_Format(PyExc_TypeError, "context is %R; it must be a libattn.Context", object);
        return false;
    }
    dl_device own = ((context_object *)object)->device;
    if (own.type == device.type && own.id == device.id)
        return true;
    PyErr_SetString(PyExc_ValueError, "the arrays are not on the context's device");
    return false;
}

PyObject *context_set_default(PyObject *module, PyObject *context)
{
    core_state *state = PyModule_GetState(module);
    if (context != Py_None && !context_fits(state, context, (dl_device){DL_CPU, 0}))
        return NULL;
    PyObject *next = context == Py_None ? NULL : Py_NewRef(context);
    Py_XDECREF(put(&state->default_context, next));
    Py_RETURN_NONE;
}

PyObject *core_info(PyObject *module, PyObject *context)
{
    core_state *state = PyModule_GetState(module);
    if (context == Py_None)
        context = take(&state->default_context);
    else if (PyObject_TypeCheck(context, (PyTypeObject *)state->context_type))
        Py_INCREF(context);
    else {
        PyErr_SetString(PyExc_TypeError, "context must be a libattn.Context");
        return NULL;
    }
    attn_info info = {.struct_size = sizeof info};
    attn_status status = attn_get_info(context_of(context), &info);
    PyObject *result = status ? core_raise(status)
                              : Py_BuildValue("(sssssiLLL)", info.version, info.build,
                                              info.cpu_features, info.cpu_table, info.cpu_tables,
                                              info.threads, (long long)info.l1d_bytes,
                                              (long long)info.l2_bytes, (long long)info.l3_bytes);
    Py_XDECREF(context);
    return result;
}
