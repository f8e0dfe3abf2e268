/*
 * axes.c: the axes of an array as the axes of an attn_tensor: (batch, sequence, head, dim), or
 * (batch, head, query, key).
 */
#include "core.h"

static const char *const wanted[] = {
    [AXES_ROWS] = "(batch, sequence, heads, dim), or (total, heads, dim)",
    [AXES_STATS] = "(batch, heads, sequence), or (heads, total)",
    [AXES_SCORES] = "as much of (batch, heads, queries, keys) as it needs, from the right",
    [AXES_HEADS] = "(heads) or (batch, heads)",
    [AXES_LENGTHS] = "(count)",
    [AXES_TABLE] = "of two axes",
};

static bool refuse(const array_view *view, axes kind, bool heads_first, const char *name)
{
    const char *text = wanted[kind];
    if (kind == AXES_ROWS && heads_first) {
        text = "(batch, heads, sequence, dim), or (heads, total, dim)";
    }
    PyErr_Format(PyExc_ValueError, "%s has %d %s; it must be %s", name, view->ndim,
                 view->ndim == 1 ? "axis" : "axes", text);
    return false;
}

/* Axis i of the tensor is axis from[i] of the view; -1: an axis of extent 1. */
static void place(const array_view *view, const int from[4], attn_tensor *out)
{
    out->data = view->data;
    out->dtype = view->dtype;
    for (int i = 0; i < 4; i++) {
        out->shape[i] = from[i] < 0 ? 1 : view->shape[from[i]];
        out->stride[i] = from[i] < 0 ? 0 : view->stride[from[i]];
    }
}

bool axes_map(const array_view *view, axes kind, bool heads_first, const char *name,
              attn_tensor *out)
{
    int n = view->ndim;
    int from[4] = {-1, -1, -1, -1};
    switch (kind) {
    case AXES_ROWS:
        if (n != 3 && n != 4)
            return refuse(view, kind, heads_first, name);
        from[0] = n - 4;
        from[1] = heads_first ? n - 2 : n - 3;
        from[2] = heads_first ? n - 3 : n - 2;
        from[3] = n - 1;
        break;
    case AXES_STATS:
        if (n != 2 && n != 3)
            return refuse(view, kind, heads_first, name);
        from[0] = n - 3, from[1] = n - 1, from[2] = n - 2;
        break;
    case AXES_SCORES:
        for (int i = 0; i < n; i++)
            from[4 - n + i] = i;
        break;
    case AXES_HEADS:
        if (n != 1 && n != 2)
            return refuse(view, kind, heads_first, name);
        from[0] = n - 2, from[1] = n - 1;
        break;
    case AXES_TABLE:
        if (n != 2)
            return refuse(view, kind, heads_first, name);
        from[0] = 0, from[1] = 1;
        break;
    case AXES_LENGTHS:
        if (n > 1)
            return refuse(view, kind, heads_first, name);
        from[0] = n - 1;
        break;
    }
    place(view, from, out);
    return true;
}
