/*
 * values.c: values of keywords: numbers, flags, arrays.
 */
#include "fields.h"

/* A conversion's error, with the argument's name. */
static bool refuse(const char *name, PyObject *value, const char *wanted)
{
    PyObject *kind = PyErr_ExceptionMatches(PyExc_TypeError)       ? PyExc_TypeError
                     : PyErr_ExceptionMatches(PyExc_OverflowError) ? PyExc_ValueError
                                                                   : NULL;
    if (kind) {
        PyErr_Clear();
        PyErr_Format(kind, "%s is %R; it must be %s", name, value, wanted);
    }
    return false;
}

bool value_whole(PyObject *value, const char *name, int64_t *number)
{
    *number = PyLong_AsLongLong(value);
    return *number != -1 || !PyErr_Occurred() || refuse(name, value, "a whole number of 64 bits");
}

bool value_whole32(PyObject *value, const char *name, int32_t *number)
{
    int64_t wide = 0;
    if (!value_whole(value, name, &wide))
        return false;
    *number = (int32_t)wide;
    if (*number == wide)
        return true;
    PyErr_Format(PyExc_ValueError, "%s is %R; it must be a whole number of 32 bits", name, value);
    return false;
}

bool value_counter(PyObject *value, const char *name, uint64_t *number)
{
    PyObject *whole = PyNumber_Index(value);
    *number = whole ? PyLong_AsUnsignedLongLong(whole) : 0;
    Py_XDECREF(whole);
    return !PyErr_Occurred() || refuse(name, value, "a whole number from 0 to 2^64 - 1");
}

static bool set_number(core_call *call, const field_spec *field, PyObject *value)
{
    double number = PyFloat_AsDouble(value);
    if (number == -1 && PyErr_Occurred())
        return refuse(field->name, value, "a number");
    *(double *)fields_member(call, field) = number;
    call->forward.flags |= field->flag;
    return true;
}

static bool set_flag(core_call *call, const field_spec *field, PyObject *value)
{
    int truth = PyObject_IsTrue(value);
    if (truth > 0)
        call->forward.flags |= field->flag;
    return truth >= 0;
}

static bool set_window(core_call *call, const field_spec *field, PyObject *value)
{
    int64_t *bound = fields_member(call, field);
    if (!value_whole(value, field->name, bound))
        return false;
    if (*bound >= 0)
        call->forward.flags |= field->flag;
    return true;
}

/* Finds the place of a word in a list. */
static bool choose(PyObject *value, const char *const words[], int count, int *place)
{
    for (*place = 0; *place < count; ++*place) {
        if (PyUnicode_Check(value) && !PyUnicode_CompareWithASCIIString(value, words[*place]))
            return true;
    }
    return false;
}

static bool set_layout(core_call *call, PyObject *value)
{
    static const char *const layouts[] = {"bshd", "bhsd"};
    int place;
    if (!choose(value, layouts, 2, &place)) {
        PyErr_Format(PyExc_ValueError, "layout is %R; it must be 'bshd' or 'bhsd'", value);
        return false;
    }
    call->heads_first = place;
    return true;
}

static bool set_memory(core_call *call, PyObject *value)
{
    static const char *const memories[] = {
        [MEMORY_ROWS] = "rows", [MEMORY_PYTORCH] = "pytorch", [MEMORY_CONTIGUOUS] = "contiguous"};
    int place;
    if (!choose(value, memories, 3, &place)) {
        PyErr_Format(PyExc_ValueError, "memory is %R; it must be 'rows', 'pytorch' or 'contiguous'",
                     value);
        return false;
    }
    call->memory = place;
    return true;
}

static bool set_array(core_call *call, int at, PyObject *value)
{
    const field_spec *field = &fields[at];
    PyObject *made = NULL;
    if (field->kind == FIELD_LENGTHS &&
        (PyLong_Check(value) || PyList_Check(value) || PyTuple_Check(value))) {
        PyObject *arrays = core_arrays(call->state);
        made = arrays ? PyObject_CallMethod(arrays, "lengths", "Os", value, field->name) : NULL;
        if (!made)
            return false;
        value = made;
    }
    array_view *view = &call->views[call->count];
    call->field_view[at] = call->count++;
    bool taken = view_take(call->state, value, field->name, view);
    if (made && taken)
        view->owner = made;
    else
        Py_XDECREF(made);
    return taken;
}

static bool set_result(core_call *call, int at, PyObject *value)
{
    if (value == Py_False)
        return true;
    if (value == Py_True) {
        call->wanted[at] = true;
        return true;
    }
    if (!set_array(call, at, value))
        return false;
    if (fields[at].kind == FIELD_RESULT && call->is_backward)
        return true;
    if (call->views[call->field_view[at]].readonly) {
        PyErr_Format(PyExc_ValueError, "%s is read-only", fields[at].name);
        return false;
    }
    call->results[at] = Py_NewRef(value);
    return true;
}

bool fields_set(core_call *call, int at, PyObject *value)
{
    const field_spec *field = &fields[at];
    switch (field->kind) {
    case FIELD_INPUT:
    case FIELD_LENGTHS:
        return set_array(call, at, value);
    case FIELD_RESULT:
    case FIELD_GRADIENT:
        return set_result(call, at, value);
    case FIELD_FLAG:
        return set_flag(call, field, value);
    case FIELD_SCALE:
    case FIELD_NUMBER:
        return set_number(call, field, value);
    case FIELD_WINDOW:
        return set_window(call, field, value);
    case FIELD_COUNTER:
        return value_counter(value, field->name, fields_member(call, field));
    case FIELD_LAYOUT:
        return set_layout(call, value);
    case FIELD_MEMORY:
        return set_memory(call, value);
    case FIELD_CONTEXT:
        call->context = value;
        return true;
    case FIELD_STREAM:
        call->stream = PyLong_AsVoidPtr(value);
        return !PyErr_Occurred() || refuse(field->name, value, "a stream's address, a number");
    }
    return false;
}
