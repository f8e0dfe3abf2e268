/*
 * core.h: the extension _core: attn.h as Python functions, whose keywords are the fields of its
 * structs. Not here: a friendly interface, which is the package around it.
 */
#ifndef LIBATTN_CORE_H
#define LIBATTN_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <attn/attn.h>
#include <stdbool.h>
#include "dlpack.h"

enum { GPUS_MAX = 16, VIEWS_MAX = 40, FIELDS_MAX = 64 };

/* The state of the module; one per interpreter. */
typedef struct core_state {
    PyObject *ndarray, *empty;      /* of NumPy */
    PyObject *dtypes[16];           /* NumPy's dtypes by attn_dtype; NULL: it has none */
    PyObject *exchange_name;        /* "__dlpack_c_exchange_api__" */
    PyObject *is_neg_name;          /* "is_neg" */
    PyObject *mask_name;            /* "mask" */
    _Atomic(const void *) negating; /* the exchange table of a package that negates late, or NULL */
    PyObject *names[FIELDS_MAX];    /* the fields' names, interned */
    PyObject *context_type;
    PyObject *default_context;  /* a Context, or NULL: the library's own */
    PyObject *gpus[GPUS_MAX];   /* a Context for each GPU in use, or NULL */
    _Atomic(PyObject *) arrays; /* the Python module libattn._arrays; NULL until it is needed */
} core_state;

/* An array of the caller's, without a copy. */
typedef struct array_view {
    void *data;
    int64_t shape[4], stride[4]; /* in elements */
    int ndim;
    int32_t dtype;
    dl_device device;
    bool readonly, has_buffer;
    const dl_exchange *exchange; /* of the array's type, or NULL */
    PyObject *array;             /* the caller's object */
    PyObject *owner;             /* another object that keeps the memory alive, or NULL */
    Py_buffer buffer;
} array_view;

/* How an array's axes become the four axes of an attn_tensor. */
typedef enum axes { AXES_ROWS, AXES_STATS, AXES_SCORES, AXES_HEADS, AXES_LENGTHS, AXES_TABLE } axes;

/* How results of rows lie in memory where heads come first: sequences before heads, as a model
 * reads them next; as those of PyTorch's own attention lie; or as their axes stand. */
typedef enum row_memory { MEMORY_ROWS, MEMORY_PYTORCH, MEMORY_CONTIGUOUS } row_memory;

/* A call under way: its arguments, and the objects to release after it. */
typedef struct core_call {
    core_state *state;
    attn_forward_args forward;
    attn_backward_args backward;
    bool is_backward, is_plan;
    bool on_gpu;                /* of XLA */
    bool heads_first;           /* layout "bhsd" */
    row_memory memory;          /* of the forward pass's results */
    bool varlen_rows;           /* some array of rows has 3 axes */
    PyObject *context, *chosen; /* chosen: the one of context_choose, to release */
    void *stream;
    int count;
    array_view views[VIEWS_MAX];
    int field_view[FIELDS_MAX];    /* the view of a field, or -1 */
    PyObject *results[FIELDS_MAX]; /* outputs by field; NULL: not asked for */
    bool wanted[FIELDS_MAX];       /* outputs to allocate */
    array_view workspace;          /* on a GPU */
} core_call;

/* ---- view.c ---------------------------------------------------------------------------------- */

bool view_take(core_state *state, PyObject *array, const char *name, array_view *out);
/* Views a buffer whose elements are read as dtype; 0: as the buffer says. */
bool view_take_buffer(PyObject *array, const char *name, int32_t dtype, array_view *out);
void view_from_dlpack(const dl_tensor *tensor, array_view *out);
bool view_dtype_from_dlpack(dl_dtype type, int32_t *dtype);
/* Reads bytes as two codes of 4 bits each, for which Python's arrays have no type. */
void view_as_codes(array_view *view);
/* Reads bytes as eight booleans each; refuses other types. */
bool view_as_bits(array_view *view, const char *name);
void view_release(array_view *view);
/* The stream on which an array's framework works; NULL where there is none. */
bool view_stream(core_state *state, const array_view *view, void **stream);
PyObject *core_arrays(core_state *state);

/* ---- axes.c ---------------------------------------------------------------------------------- */

bool axes_map(const array_view *view, axes kind, bool heads_first, const char *name,
              attn_tensor *out);

/* ---- allocate.c ------------------------------------------------------------------------------ */

/* Makes an array of the kind of like's; *out views it. A new reference, or NULL. order: its four
 * axes as they shall lie in memory, the fastest last, if its kind can; NULL: as they stand. */
PyObject *allocate_like(core_state *state, const array_view *like, int ndim, const int64_t *shape,
                        int32_t dtype, const int *order, array_view *out);
/* Turns an array of allocate_like into the array that the caller gets. Steals it. */
PyObject *allocate_finish(core_state *state, const array_view *like, const array_view *result,
                          PyObject *array);

/* ---- fields.c -------------------------------------------------------------------------------- */

bool fields_intern(core_state *state);
bool fields_parse(core_call *call, const char *function, PyObject *const *values, Py_ssize_t count,
                  PyObject *names);

/* ---- values.c -------------------------------------------------------------------------------- */

/* A whole number, by `name` in messages. False, with an exception: it is none, or too large. */
bool value_whole(PyObject *value, const char *name, int64_t *number);
bool value_whole32(PyObject *value, const char *name, int32_t *number);
bool value_counter(PyObject *value, const char *name, uint64_t *number); /* from 0 on */

/* ---- results.c ------------------------------------------------------------------------------- */

bool results_allocate(core_call *call); /* results that are wanted and that the caller did not
                                         * give */
/* Returns the results of a list of fields, None for each that was not asked for. */
PyObject *results_give(core_call *call, const int *list, int count);

/* ---- scratch.c ------------------------------------------------------------------------------- */

/* Runs a call's pass, on CPUs with memory kept from earlier calls, on GPUs with the workspace that
 * scratch_give named. Needs no GIL. */
attn_status scratch_run(core_call *call);
void scratch_give(core_call *call, void *memory, uint64_t bytes);
/* Asks for the workspace of a call's pass. */
attn_status scratch_ask(core_call *call, uint64_t *bytes);
/* Memory of a result, on 64 bytes, from results that have died; NULL: there is none. */
void *scratch_allocate(uint64_t bytes);
void scratch_free(void *memory);

/* ---- context.c ------------------------------------------------------------------------------- */

PyObject *context_make_type(PyObject *module);
attn_context *context_of(PyObject *object);
/* True if the object is a Context of that device; else false with an exception. */
bool context_fits(core_state *state, PyObject *object, dl_device device);
/* Finds the context for arrays on a device: in *object a new reference, which keeps it from being
 * replaced and destroyed during a call, or NULL. */
bool context_choose(core_state *state, dl_device device, PyObject **object);
PyObject *context_set_default(PyObject *module, PyObject *context);
PyObject *core_info(PyObject *module, PyObject *context);

/* ---- cache.c --------------------------------------------------------------------------------- */

PyObject *cache_make_type(PyObject *module);

/* ---- operations -------------------------------------------------------------------------------*/

PyObject *core_forward(PyObject *module, PyObject *const *values, Py_ssize_t count,
                       PyObject *names);
PyObject *core_backward(PyObject *module, PyObject *const *values, Py_ssize_t count,
                        PyObject *names);
PyObject *core_forward_plan(PyObject *module, PyObject *const *values, Py_ssize_t count,
                            PyObject *names);
PyObject *core_backward_plan(PyObject *module, PyObject *const *values, Py_ssize_t count,
                             PyObject *names);
PyObject *core_merge(PyObject *module, PyObject *arguments);
PyObject *core_merge_backward(PyObject *module, PyObject *arguments);
PyObject *core_quantize(PyObject *module, PyObject *arguments);
PyObject *core_dequantize(PyObject *module, PyObject *arguments);
PyObject *core_dropout_mask(PyObject *module, PyObject *arguments);
PyObject *core_jax_handlers(PyObject *module, PyObject *unused);
PyObject *core_layout(PyObject *module, PyObject *unused);

/* ---- errors.c -------------------------------------------------------------------------------- */

/* A field of attn.h and its name in Python. */
typedef struct core_name {
    const char *member, *name;
} core_name;

/* Sets the exception of a status, with the library's sentence. Returns NULL. */
PyObject *core_raise(attn_status status);
/* The same, with names that end with {NULL, NULL} put into the sentence. axes_note: follows a
 * sentence about extents, whose axes are not those of the caller's arrays; or NULL. */
PyObject *core_raise_named(attn_status status, const char *axes_note, const core_name *names);
#define AXES_NOTE_ROWS " (axes counted as batch, sequence, head, dim)"
/* The same, with the names and axes of a call's keywords. */
PyObject *core_raise_call(attn_status status, const core_call *call);

#endif
