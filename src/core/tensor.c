/*
 * tensor.c: validation of one tensor on its own, and its normal form.
 */
#include "core/error.h"
#include "core/problem.h"

/* The byte offsets that the view spans, in both directions, must fit in an int64. */
static attn_status check_span(const char *name, const attn_tensor *t)
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
    if (__builtin_sub_overflow(up, down, &bytes) || __builtin_mul_overflow(bytes, size, &bytes)) {
        return attn_fail(ATTN_ERR_OVERFLOW, "%s spans more bytes than fit in 64 bits", name);
    }
    return ATTN_OK;
}

const char *attn_type_name(int32_t dtype)
{
    static const char *const names[] = {"none", "f64", "f32", "f16", "bf16", "bool", "i32", "i64"};
    return dtype >= 0 && dtype <= ATTN_I64 ? names[dtype] : "unknown";
}

static attn_status check_type(const char *name, const attn_tensor *t, int types)
{
    if (t->dtype <= 0 || t->dtype > ATTN_I64 || !(types >> t->dtype & 1)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s.dtype = %d (%s) is not a type that %s can have", name, (int)t->dtype,
                         attn_type_name(t->dtype), name);
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

static attn_status check_output(const char *name, const attn_tensor *t)
{
    for (int a = 0; a < 4; a++) {
        if (t->shape[a] > 1 && t->stride[a] == 0) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                             "%s.stride[%d] = 0 would write %lld elements to one place", name, a,
                             (long long)t->shape[a]);
        }
    }
    return ATTN_OK;
}

attn_status attn_check_tensor(const char *name, const attn_tensor *t, int types, bool output)
{
    bool empty = false;
    attn_status status = check_type(name, t, types);
    status = status == ATTN_OK ? check_extents(name, t, &empty) : status;
    status = status == ATTN_OK && output && !empty ? check_output(name, t) : status;
    if (status != ATTN_OK || empty) {
        return status;
    }
    if (t->data == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.data is NULL", name);
    }
    if ((uintptr_t)t->data % attn_dtype_size(t->dtype) != 0) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s.data = %p is not aligned to its elements of %zu bytes", name, t->data,
                         attn_dtype_size(t->dtype));
    }
    return check_span(name, t);
}

void attn_normalise_tensor(attn_tensor *t, bool required)
{
    static const double nothing;
    bool empty = t->shape[0] == 0 || t->shape[1] == 0 || t->shape[2] == 0 || t->shape[3] == 0;
    for (int a = 0; a < 4; a++) {
        if (empty || t->shape[a] == 1) {
            t->stride[a] = 0;
        }
    }
    if (empty) {
        t->data = required ? (void *)(uintptr_t)&nothing : NULL;
    }
}
