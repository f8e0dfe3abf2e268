/*
 * views.c: see views.h.
 */
#include "views.h"
#include <stdlib.h>
#include <string.h>

static void turn(attn_tensor *tensor, input *in)
{
    const uint64_t odd = take(in, 1);
    const int64_t size = (int64_t)attn_dtype_size(tensor->dtype);
    for (int a = 0; a < 4; a++) {
        if (odd >> a & 1 && tensor->shape[a] == 1) {
            tensor->stride[a] = wild(in);
        } else if (odd >> a & 1) {
            tensor->data = (char *)tensor->data + (tensor->shape[a] - 1) * tensor->stride[a] * size;
            tensor->stride[a] = -tensor->stride[a];
        }
    }
}

void views_create(views *all, input *in, attn_tensor *tensor, bool output, int32_t dtype,
                  const int64_t shape[4])
{
    const size_t bytes =
        (size_t)(shape[0] * shape[1] * shape[2] * shape[3]) * attn_dtype_size(dtype);
    char *buffer = malloc(bytes + 1), *before = malloc(bytes + 1);
    REQUIRE(buffer != NULL && before != NULL && all->count < VIEWS_MOST);
    all->list[all->count++] = (view){tensor, buffer, before, bytes, output};
    *tensor = attn_tensor_bshd(buffer, (attn_dtype)dtype, shape[0], shape[1], shape[2], shape[3]);
    if (bytes > 0) {
        turn(tensor, in);
    }
    const size_t have = (size_t)(in->end - in->at);
    for (size_t i = 0; i < bytes; i++) {
        buffer[i] = have > 0 ? (char)in->at[i % have] : 0;
    }
}

void views_set(const attn_tensor *tensor, int64_t i, int64_t j, int64_t value)
{
    const int64_t size = (int64_t)attn_dtype_size(tensor->dtype);
    const int32_t narrow = (int32_t)value;
    const int64_t at = (i > 0 ? i * tensor->stride[0] : 0) + (j > 0 ? j * tensor->stride[1] : 0);
    char *to = (char *)tensor->data + at * size;
    tensor->dtype == ATTN_I32 ? memcpy(to, &narrow, sizeof narrow)
                              : memcpy(to, &value, sizeof value);
}

void views_change(attn_tensor *t, input *in)
{
    const int64_t field = below(in, 12);
    if (field < 4) {
        t->shape[field] = wild(in);
    } else if (field < 8) {
        t->stride[field - 4] = wild(in);
    } else if (field == 8) {
        t->dtype = (int32_t)wild(in);
    } else if (field == 9) {
        t->reserved = (int32_t)wild(in);
    } else if (field == 10) {
        t->data = NULL;
    } else if (t->data != NULL) {
        t->data = (char *)t->data + 1;
    }
}

/* Views without elements and those of an unknown type touch nothing. */
static bool touches(const attn_tensor *t)
{
    return t->data != NULL && attn_dtype_size(t->dtype) > 0 && t->shape[0] > 0 && t->shape[1] > 0 &&
           t->shape[2] > 0 && t->shape[3] > 0;
}

/* The first and the last byte of a view, beside its data; exact as long as they are near it. */
static void find_reach(const attn_tensor *t, double *low, double *high)
{
    const double size = (double)attn_dtype_size(t->dtype);
    *low = 0, *high = size - 1;
    for (int a = 0; a < 4; a++) {
        const double reach = ((double)t->shape[a] - 1) * (double)t->stride[a] * size;
        *(reach < 0 ? low : high) += reach;
    }
}

static bool inside(const view *v)
{
    double low, high;
    find_reach(v->tensor, &low, &high);
    const double start = (double)((const char *)v->tensor->data - v->buffer);
    return !touches(v->tensor) || (start + low >= 0 && start + high < (double)v->bytes);
}

bool views_hold(const views *all, const attn_tensor *tensor)
{
    bool yes = tensor->data == NULL;
    for (int i = 0; i < all->count; i++) {
        yes = yes || (all->list[i].tensor == tensor && inside(&all->list[i]));
    }
    return yes;
}

bool views_inside(const views *all)
{
    bool yes = true;
    for (int i = 0; i < all->count; i++) {
        yes = yes && inside(&all->list[i]);
    }
    return yes;
}

bool views_have_addresses(const views *all)
{
    bool yes = true;
    for (int i = 0; i < all->count; i++) {
        double low, high;
        find_reach(all->list[i].tensor, &low, &high);
        const double start = (double)(uintptr_t)all->list[i].tensor->data;
        yes = yes && start + low >= 0 && start + high < 0x1p63;
    }
    return yes;
}

bool views_affordable(const views *all)
{
    double elements = 0;
    for (int i = 0; i < all->count; i++) {
        const attn_tensor *t = all->list[i].tensor;
        if (touches(t)) {
            elements += (double)t->shape[0] * (double)t->shape[1] * (double)t->shape[2] *
                        (double)t->shape[3];
        }
    }
    return elements < 1e5;
}

void views_remember(views *all)
{
    for (int i = 0; i < all->count; i++) {
        memcpy(all->list[i].before, all->list[i].buffer, all->list[i].bytes);
    }
}

bool views_unchanged(const views *all, bool outputs)
{
    bool same = true;
    for (int i = 0; i < all->count; i++) {
        const view *v = &all->list[i];
        same = same && ((v->output && !outputs) || memcmp(v->before, v->buffer, v->bytes) == 0);
    }
    return same;
}

void views_free(views *all)
{
    for (int i = 0; i < all->count; i++) {
        free(all->list[i].buffer);
        free(all->list[i].before);
    }
}
