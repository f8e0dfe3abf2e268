/*
 * tensor.c: validation of one tensor on its own, and its normal form.
 */
#include "core/error.h"
#include "core/problem.h"
#include <stdio.h>

/* The byte offsets that the view spans, in both directions, must fit in an int64. *span: elements
 * from the lowest to the highest. */
static attn_status check_span(const char *name, const attn_tensor *t, int64_t *span)
{
    int64_t up = 0, down = 0, size = (int64_t)attn_dtype_size(t->dtype), bytes;
    for (int a = 0; a < 4; a++) {
        int64_t reach;
        if (__builtin_mul_overflow(t->shape[a] - 1, t->stride[a], &reach) ||
            __builtin_add_overflow(reach > 0 ? up : down, reach, reach > 0 ? &up : &down)) {
            return attn_fail(ATTN_ERR_OVERFLOW,
                             "%s.shape[%d] = %lld times %s.stride[%d] = %lld leaves 64 bits", name,
                             a, (long long)t->shape[a], name, a, (long long)t->stride[a]);
        }
    }
    if (__builtin_sub_overflow(up, down, span) || __builtin_mul_overflow(*span, size, &bytes)) {
        return attn_fail(ATTN_ERR_OVERFLOW, "%s spans more bytes than fit in 64 bits", name);
    }
    *span += 1;
    return ATTN_OK;
}

const char *attn_type_name(int32_t dtype)
{
    static const char *const names[] = {"none", "f64", "f32", "f16", "bf16",
                                        "bool", "i32", "i64", "u8",  "i8"};
    return dtype >= 0 && dtype <= ATTN_I8 ? names[dtype] : "unknown";
}

/* The names of a set of types: "f32, f16 or bf16". */
static void list_types(int types, char *list, size_t size)
{
    static const int32_t order[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_BOOL,
                                    ATTN_U8,  ATTN_I8,  ATTN_I32, ATTN_I64};
    size_t used = 0;
    list[0] = '\0';
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        if (types >> order[i] & 1 && used < size) {
            types &= ~(1 << order[i]);
            const char *after = types == 0 ? "" : types & (types - 1) ? ", " : " or ";
            used +=
                (size_t)snprintf(list + used, size - used, "%s%s", attn_type_name(order[i]), after);
        }
    }
}

attn_status attn_refuse_shape(const char *name, const attn_tensor *t, const char *want)
{
    return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s has shape (%lld, %lld, %lld, %lld), wanted %s",
                     name, (long long)t->shape[0], (long long)t->shape[1], (long long)t->shape[2],
                     (long long)t->shape[3], want);
}

static attn_status check_type(const char *name, const attn_tensor *t, int types)
{
    if (t->dtype <= 0 || t->dtype > ATTN_I8 || !(types >> t->dtype & 1)) {
        char list[64];
        list_types(types, list, sizeof list);
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.dtype = %d (%s), must be %s", name,
                         (int)t->dtype, attn_type_name(t->dtype), list);
    }
    if (t->reserved != 0) {
        return attn_fail(ATTN_ERR_UNKNOWN_FIELD, "%s.reserved = %d, must be 0", name,
                         (int)t->reserved);
    }
    return ATTN_OK;
}

static attn_status check_extents(const char *name, const attn_tensor *t, bool *empty)
{
    *empty = false;
    for (int a = 0; a < 4; a++) {
        if (t->shape[a] < 0) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.shape[%d] = %lld is negative", name, a,
                             (long long)t->shape[a]);
        }
        *empty |= t->shape[a] == 0;
    }
    return ATTN_OK;
}

static attn_status check_output(const char *name, const attn_tensor *t, int64_t span)
{
    int64_t count = 1;
    bool many = false;
    for (int a = 0; a < 4; a++) {
        if (t->shape[a] > 1 && t->stride[a] == 0) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                             "%s.stride[%d] = 0 would write %lld elements to one place", name, a,
                             (long long)t->shape[a]);
        }
        many |= __builtin_mul_overflow(count, t->shape[a], &count);
    }
    if (many || count > span) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s has strides by which its elements share memory for %lld of them", name,
                         (long long)span);
    }
    return ATTN_OK;
}

attn_status attn_check_tensor(const char *name, const attn_tensor *t, int types, bool output)
{
    bool empty = false;
    int64_t span = 0;
    TRY(check_type(name, t, types));
    TRY(check_extents(name, t, &empty));
    if (empty) {
        return ATTN_OK;
    }
    if (t->data == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.data is NULL", name);
    }
    if ((uintptr_t)t->data % attn_dtype_size(t->dtype) != 0) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s.data = %p is not aligned to its elements of %zu bytes", name, t->data,
                         attn_dtype_size(t->dtype));
    }
    TRY(check_span(name, t, &span));
    return output ? check_output(name, t, span) : ATTN_OK;
}

/* Where tensors point that are not read. Aligned as memory is: plans of a GPU look at that. */
static const _Alignas(64) char nothing[64];

void attn_stand_in(attn_tensor *t)
{
    t->data = t->data ? t->data : (void *)(uintptr_t)nothing;
}

void attn_normalise_tensor(attn_tensor *t, bool required)
{
    bool empty = t->shape[0] == 0 || t->shape[1] == 0 || t->shape[2] == 0 || t->shape[3] == 0;
    for (int a = 0; a < 4; a++) {
        if (empty || t->shape[a] == 1) {
            t->stride[a] = 0;
        }
    }
    if (empty) {
        t->data = required ? (void *)(uintptr_t)nothing : NULL;
    }
}
