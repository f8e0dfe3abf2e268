/*
 * errors.c: a status as an exception, with the library's sentence in the names of Python's
 * keywords.
 */
#include "fields.h"

#include <stdio.h>
#include <string.h>

static const char SHAPE[] = ".shape[";

static bool in_word(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Finds what Python calls a word of a sentence. */
static const char *name_of(const char *word, size_t length, const core_name *names)
{
    for (; names && names->member; names++) {
        if (strlen(names->member) == length && !memcmp(names->member, word, length))
            return names->name;
    }
    return NULL;
}

static void rename_words(const char *text, const core_name *names, char *out, size_t size)
{
    size_t end = 0;
    *out = 0;
    while (*text && end < size) {
        size_t length = 0;
        while (in_word(text[length]))
            length++;
        const char *name = length ? name_of(text, length, names) : NULL;
        length += !length;
        int added = name ? snprintf(out + end, size - end, "%s", name)
                         : snprintf(out + end, size - end, "%.*s", (int)length, text);
        end += (size_t)added;
        text += length;
    }
}

PyObject *core_raise_named(attn_status status, const char *axes_note, const core_name *names)
{
    PyObject *kind = PyExc_ValueError;
    if (status == ATTN_ERR_UNSUPPORTED)
        kind = PyExc_NotImplementedError;
    if (status == ATTN_ERR_OUT_OF_MEMORY)
        kind = PyExc_MemoryError;
    if (status == ATTN_ERR_DEVICE)
        kind = PyExc_RuntimeError;
    char text[1024];
    rename_words(attn_last_error(), names, text, sizeof text);
    PyErr_Format(kind, "%s%s", text, axes_note && strstr(text, SHAPE) ? axes_note : "");
    return NULL;
}

PyObject *core_raise(attn_status status)
{
    return core_raise_named(status, NULL, NULL);
}

/* Finds the field whose extents a sentence of the library is about; or -1. */
static int field_of_shape(const char *text, const core_call *call)
{
    const char *end = strstr(text, SHAPE), *begin = end;
    while (end && begin > text && in_word(begin[-1]))
        begin--;
    for (int at = 0; end && at < F_COUNT; at++) {
        const size_t length = strlen(fields[at].member);
        if (call->field_view[at] >= 0 && length == (size_t)(end - begin) &&
            !memcmp(fields[at].member, begin, length)) {
            return at;
        }
    }
    return -1;
}

/* Names the axes of attn.h, where those of the array in the sentence are others; or NULL. */
static const char *note_axes(const core_call *call)
{
    const int at = field_of_shape(attn_last_error(), call);
    if (at < 0)
        return NULL;
    const int axes_given = call->views[call->field_view[at]].ndim;
    switch (fields[at].axes) {
    case AXES_ROWS:
        return call->heads_first || axes_given < 4 ? AXES_NOTE_ROWS : NULL;
    case AXES_STATS:
        return AXES_NOTE_ROWS;
    case AXES_SCORES:
        return axes_given < 4 ? " (axes counted as batch, head, query, key)" : NULL;
    case AXES_HEADS:
        return axes_given < 2 ? " (axes counted as batch, head)" : NULL;
    default:
        return NULL;
    }
}

PyObject *core_raise_call(attn_status status, const core_call *call)
{
    core_name names[F_COUNT + 1];
    int count = 0;
    for (int at = 0; at < F_COUNT; at++) {
        const field_spec *field = &fields[at];
        if (at == F_MASK_BITS && call->field_view[at] < 0)
            continue; /* a mask of the caller's is `mask` */
        if (strcmp(field->member, field->name) != 0)
            names[count++] = (core_name){field->member, field->name};
    }
    names[count] = (core_name){NULL, NULL};
    return core_raise_named(status, note_axes(call), names);
}
