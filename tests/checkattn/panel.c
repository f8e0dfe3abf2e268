/*
 * panel.c: see panel.h.
 */
#include "panel.h"
#include "inputs.h"
#include "oracle.h"

const int64_t panel_dims[] = {1,  2,  3,  7,  8,   15,  16,  17,  31,  32,  33, 40,
                              64, 72, 80, 96, 104, 128, 136, 203, 256, 264, 576};
const int panel_dims_count = sizeof panel_dims / sizeof panel_dims[0];

int64_t panel_stride(int64_t turn)
{
    static const int64_t strides[] = {1, 1, 2, -1, 3};
    return strides[turn % 5];
}

attn_tensor panel_matrix(kernel_kit *kit, enum slot slot, int64_t rows, int64_t cols,
                         enum values kind, int64_t col_stride)
{
    int64_t size = (int64_t)attn_dtype_size(kit->dtype),
            reach = (cols - 1) * (col_stride < 0 ? -col_stride : col_stride);
    int64_t row_stride = reach + 1 + (rows + cols) % 3;
    unsigned char *first =
        kit_slot(kit, slot, (size_t)(((rows - 1) * row_stride + reach + 1) * size));
    attn_tensor t = attn_tensor_bshd(first, (attn_dtype)kit->dtype, 1, rows, 1, cols);
    t.data = first + (col_stride < 0 ? reach * size : 0);
    t.stride[1] = row_stride, t.stride[3] = col_stride;
    for (int64_t i = 0; i < rows * cols; i++) {
        inputs_store(&t, 0, i / cols, 0, i % cols,
                     kit_value(kit, kind, 10 * (int)slot, i, rows * cols));
    }
    kit_lock(kit, slot);
    return t;
}

const void *panel_row(const attn_tensor *t, int64_t row)
{
    return (const char *)t->data + row * t->stride[1] * (int64_t)attn_dtype_size(t->dtype);
}

attn_rows panel_rows(const attn_tensor *t, int64_t first)
{
    return (attn_rows){panel_row(t, first), t->stride[1], t->stride[3], t->dtype, NULL, {0}};
}

double panel_element(const attn_tensor *t, int64_t row, int64_t col)
{
    return oracle_element(t, 0, row, 0, col);
}
