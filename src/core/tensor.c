/*
 * tensor.c: validation of one tensor on its own, and its normal form.
 */
#include "core/error.h"
#include "core/problem.h"
#include <stdio.h>

/* The byte offsets that the view spans, in both directions, must fit in an int64, and so must the
 * bytes of *span: the elements from the lowest to the highest, both counted. */
static attn_status check_span(const char *name, const attn_tensor *tensor, int64_t *span)
{
    int64_t up = 0, down = 0, size = (int64_t)attn_dtype_size(tensor->dtype), bytes;
    for (int a = 0; a < 4; a++) {
        int64_t reach;
        if (__builtin_mul_overflow(tensor->shape[a] - 1, tensor->stride[a], &reach) ||
            __builtin_add_overflow(reach > 0 ? up : down, reach, reach > 0 ? &up : &down)) {
            return attn_fail(ATTN_ERR_OVERFLOW,
                             "%s.shape[%d] = %lld times %s.stride[%d] = %lld leaves 64 bits", name,
                             a, (long long)tensor->shape[a], name, a, (long long)tensor->stride[a]);
        }
    }
    if (__builtin_sub_overflow(up, down, span) || __builtin_add_overflow(*span, 1, span) ||
        __builtin_mul_overflow(*span, size, &bytes)) {
        return attn_fail(ATTN_ERR_OVERFLOW, "%s spans more bytes than fit in 64 bits", name);
    }
    return ATTN_OK;
}

const char *attn_type_name(int32_t dtype)
{
    static const char *const names[] = {"none", "f64", "f32", "f16",  "bf16", "bool", "i32",
                                        "i64",  "u8",  "i8",  "e4m3", "e5m2", "i4x2", "b1x8"};
    return dtype >= 0 && dtype <= ATTN_B1X8 ? names[dtype] : "unknown";
}

/* The names of a set of types: "f32, f16 or bf16". */
static void list_types(int types, char *list, size_t size)
{
    static const int32_t order[] = {ATTN_F64,  ATTN_F32,  ATTN_F16, ATTN_BF16, ATTN_BOOL,
                                    ATTN_U8,   ATTN_I8,   ATTN_I32, ATTN_I64,  ATTN_B1X8,
                                    ATTN_I4X2, ATTN_E4M3, ATTN_E5M2};
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

attn_status attn_refuse_shape(const char *name, const attn_tensor *tensor, const char *want)
{
    return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s has shape (%lld, %lld, %lld, %lld), wanted %s",
                     name, (long long)tensor->shape[0], (long long)tensor->shape[1],
                     (long long)tensor->shape[2], (long long)tensor->shape[3], want);
}

static attn_status check_type(const char *name, const attn_tensor *tensor, int types)
{
    if (tensor->dtype <= 0 || tensor->dtype > ATTN_B1X8 || !(types >> tensor->dtype & 1)) {
        char list[64];
        const bool added = types == ATTN_MASK_TYPES && tensor->dtype >= ATTN_F64 &&
                           tensor->dtype <= ATTN_BF16; /* as other systems call a bias */
        list_types(types, list, sizeof list);
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.dtype = %d (%s), must be %s%s", name,
                         (int)tensor->dtype, attn_type_name(tensor->dtype), list,
                         added ? "; a mask that is added to scores is a bias" : "");
    }
    if (tensor->reserved != 0) {
        return attn_fail(ATTN_ERR_UNKNOWN_FIELD, "%s.reserved = %d, must be 0", name,
                         (int)tensor->reserved);
    }
    return ATTN_OK;
}

static attn_status check_extents(const char *name, const attn_tensor *tensor, bool *empty)
{
    *empty = false;
    for (int a = 0; a < 4; a++) {
        if (tensor->shape[a] < 0) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.shape[%d] = %lld is negative", name, a,
                             (long long)tensor->shape[a]);
        }
        *empty |= tensor->shape[a] == 0;
    }
    const int64_t each = tensor->dtype == ATTN_I4X2 ? 2 : attn_mask_each(tensor->dtype);
    if (tensor->shape[3] > INT64_MAX / each) {
        return attn_fail(ATTN_ERR_OVERFLOW, "%s.shape[3] = %lld of %d columns each leaves 64 bits",
                         name, (long long)tensor->shape[3], (int)each);
    }
    return ATTN_OK;
}

static attn_status check_output(const char *name, const attn_tensor *tensor, int64_t span)
{
    int64_t count = 1;
    bool many = false;
    for (int a = 0; a < 4; a++) {
        if (tensor->shape[a] > 1 && tensor->stride[a] == 0) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                             "%s.stride[%d] = 0 would write %lld elements to one place", name, a,
                             (long long)tensor->shape[a]);
        }
        many |= __builtin_mul_overflow(count, tensor->shape[a], &count);
    }
    if (many || count > span) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s.stride reaches %lld places, fewer than %s has elements: those of an "
                         "output must not share memory",
                         name, (long long)span, name);
    }
    return ATTN_OK;
}

attn_status attn_check_tensor(const char *name, const attn_tensor *tensor, int types, bool output)
{
    bool empty = false;
    int64_t span = 0;
    TRY(check_type(name, tensor, types));
    TRY(check_extents(name, tensor, &empty));
    if (empty) {
        return ATTN_OK;
    }
    if (tensor->data == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.data is NULL", name);
    }
    if ((uintptr_t)tensor->data % attn_dtype_size(tensor->dtype) != 0) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s.data = %p is not aligned to its elements of %llu bytes", name,
                         tensor->data, (unsigned long long)attn_dtype_size(tensor->dtype));
    }
    TRY(check_span(name, tensor, &span));
    return output ? check_output(name, tensor, span) : ATTN_OK;
}

attn_status attn_check_extent(const char *name, const attn_tensor *tensor, int axis,
                              const char *like_name, const attn_tensor *like, int like_axis)
{
    const long long extent = tensor->shape[axis], want = like->shape[like_axis];
    return extent == want
               ? ATTN_OK
               : attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.shape[%d] = %lld but %s.shape[%d] = %lld",
                           name, axis, extent, like_name, like_axis, want);
}

attn_status attn_check_extents(const char *name, const attn_tensor *tensor, const char *like_name,
                               const attn_tensor *like, int axes)
{
    for (int a = 0; a < axes; a++) {
        TRY(attn_check_extent(name, tensor, a, like_name, like, a));
    }
    return ATTN_OK;
}

attn_status attn_count_rows(const char *name, const attn_tensor *tensor, int axes, int64_t *rows)
{
    *rows = 1;
    for (int a = 0; a < axes; a++) {
        if (__builtin_mul_overflow(*rows, tensor->shape[a], rows)) {
            return attn_fail(ATTN_ERR_OVERFLOW, "the rows of %s do not fit in 64 bits", name);
        }
    }
    return ATTN_OK;
}

/* Where tensors point that are not read. Aligned as memory is: plans of a GPU look at that. */
static const _Alignas(64) char nothing[64];

void attn_stand_in(attn_tensor *tensor)
{
    tensor->data = tensor->data ? tensor->data : (void *)(uintptr_t)nothing;
}

static bool has_no_elements(const attn_tensor *tensor)
{
    return tensor->shape[0] == 0 || tensor->shape[1] == 0 || tensor->shape[2] == 0 ||
           tensor->shape[3] == 0;
}

void attn_normalise_tensor(attn_tensor *tensor, bool required)
{
    const bool empty = has_no_elements(tensor);
    for (int a = 0; a < 4; a++) {
        if (empty || tensor->shape[a] == 1) {
            tensor->stride[a] = 0;
        }
    }
    if (empty) {
        tensor->data = required ? (void *)(uintptr_t)nothing : NULL;
    }
}

int64_t attn_axis_step(const attn_tensor *tensor, int axis)
{
    const int64_t size = (int64_t)attn_dtype_size(tensor->dtype);
    return tensor->shape[axis] == 1 || has_no_elements(tensor) ? 0 : tensor->stride[axis] * size;
}
