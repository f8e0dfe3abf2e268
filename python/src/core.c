/*
 * core.c: the module _core: its functions and its state.
 */
#include "core.h"

static PyMethodDef methods[] = {
    {"forward", (PyCFunction)(void (*)(void))core_forward, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"backward", (PyCFunction)(void (*)(void))core_backward, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"forward_plan", (PyCFunction)(void (*)(void))core_forward_plan, METH_FASTCALL | METH_KEYWORDS,
     NULL},
    {"backward_plan", (PyCFunction)(void (*)(void))core_backward_plan,
     METH_FASTCALL | METH_KEYWORDS, NULL},
    {"merge", core_merge, METH_VARARGS, NULL},
    {"merge_backward", core_merge_backward, METH_VARARGS, NULL},
    {"quantize", core_quantize, METH_VARARGS, NULL},
    {"dequantize", core_dequantize, METH_VARARGS, NULL},
    {"dropout_mask", core_dropout_mask, METH_VARARGS, NULL},
    {"set_default", context_set_default, METH_O, NULL},
    {"info", core_info, METH_O, NULL},
    {"jax_handlers", core_jax_handlers, METH_NOARGS, NULL},
    {"layout", core_layout, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* NumPy's dtypes for results; bf16, which NumPy has not, as 16-bit numbers. */
static bool find_dtypes(core_state *state, PyObject *numpy)
{
    static const char *const types[] = {
        [ATTN_F64] = "float64", [ATTN_F32] = "float32", [ATTN_F16] = "float16",
        [ATTN_BF16] = "uint16", [ATTN_BOOL] = "bool",   [ATTN_U8] = "uint8"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i] && !(state->dtypes[i] = PyObject_CallMethod(numpy, "dtype", "s", types[i]))) {
            return false;
        }
    }
    return true;
}

static int execute(PyObject *module)
{
    core_state *state = PyModule_GetState(module);
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (!numpy)
        return -1;
    state->ndarray = PyObject_GetAttrString(numpy, "ndarray");
    state->empty = PyObject_GetAttrString(numpy, "empty");
    state->exchange_name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    state->is_neg_name = PyUnicode_InternFromString("is_neg");
    state->mask_name = PyUnicode_InternFromString("mask");
    state->context_type = context_make_type(module);
    bool done = state->ndarray && state->empty && state->exchange_name && state->is_neg_name &&
                state->mask_name && state->context_type && find_dtypes(state, numpy) &&
                fields_intern(state);
    Py_DECREF(numpy);
    PyObject *cache = done ? cache_make_type(module) : NULL;
    done = cache && !PyModule_AddObjectRef(module, "Context", state->context_type) &&
           !PyModule_AddObjectRef(module, "Cache", cache);
    Py_XDECREF(cache);
    return done ? 0 : -1;
}

/* The objects of the state live as long as the process: threads may still be inside a call when an
 * interpreter ends. */
static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_core",
    "attn.h as Python functions",
    sizeof(core_state),
    methods,
    slots,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
