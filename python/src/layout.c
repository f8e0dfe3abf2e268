/*
 * layout.c: offsets of fields and values of constants in this build of attn.h. A test compares them
 * with the header's text, and so finds fields that the binding does not know.
 */
#include "core.h"

typedef struct place {
    const char *type, *name;
    size_t offset;
} place;

#define SIZE(type)                    \
    {                                 \
#type, "sizeof", sizeof(type) \
    }
#define AT(type, name)                     \
    {                                      \
#type, #name, offsetof(type, name) \
    }
#define CONFIG(name) AT(attn_context_config, name)
#define FORWARD(name) AT(attn_forward_args, name)
#define BACKWARD(name) AT(attn_backward_args, name)
#define PLAN(name) AT(attn_plan, name)
#define MERGE(name) AT(attn_merge_args, name)
#define MERGE_BACKWARD(name) AT(attn_merge_backward_args, name)
#define DROPOUT(name) AT(attn_dropout_mask_args, name)
#define INFO(name) AT(attn_info, name)

static const place places[] = {
    SIZE(attn_tensor),
    AT(attn_tensor, data),
    AT(attn_tensor, shape),
    AT(attn_tensor, stride),
    AT(attn_tensor, dtype),
    AT(attn_tensor, reserved),

    SIZE(attn_context_config),
    CONFIG(struct_size),
    CONFIG(device),
    CONFIG(device_ordinal),
    CONFIG(threads),
    CONFIG(reserved),
    CONFIG(cpu),
    CONFIG(allocator),
    CONFIG(executor),

    SIZE(attn_forward_args),
    FORWARD(struct_size),
    FORWARD(q),
    FORWARD(k),
    FORWARD(v),
    FORWARD(o),
    FORWARD(o_f32),
    FORWARD(lse),
    FORWARD(row_max),
    FORWARD(flags),
    FORWARD(softmax_scale),
    FORWARD(softcap),
    FORWARD(window_left),
    FORWARD(window_right),
    FORWARD(mask),
    FORWARD(bias),
    FORWARD(alibi_slopes),
    FORWARD(sinks),
    FORWARD(dropout_p),
    FORWARD(dropout_seed),
    FORWARD(dropout_offset),
    FORWARD(cu_seqlens_q),
    FORWARD(cu_seqlens_k),
    FORWARD(seqused_q),
    FORWARD(seqused_k),
    FORWARD(q_origin),
    FORWARD(k_origin),
    FORWARD(workspace),
    FORWARD(workspace_bytes),
    FORWARD(stream),
    FORWARD(block_table),
    FORWARD(leftpad_k),
    FORWARD(k_new),
    FORWARD(v_new),
    FORWARD(rope_cos),
    FORWARD(rope_sin),
    FORWARD(rope_base),
    FORWARD(rope_dims),
    FORWARD(k_scale),
    FORWARD(k_shift),
    FORWARD(v_scale),
    FORWARD(v_shift),

    SIZE(attn_backward_args),
    BACKWARD(struct_size),
    BACKWARD(forward),
    BACKWARD(d_o),
    BACKWARD(d_lse),
    BACKWARD(dq),
    BACKWARD(dk),
    BACKWARD(dv),
    BACKWARD(d_bias),
    BACKWARD(d_alibi_slopes),
    BACKWARD(d_sinks),
    BACKWARD(workspace),
    BACKWARD(workspace_bytes),
    BACKWARD(stream),

    SIZE(attn_plan),
    PLAN(struct_size),
    PLAN(kernel),
    PLAN(why),
    PLAN(threads),
    PLAN(strip),
    PLAN(key_block),
    PLAN(pair_products),
    PLAN(rows_per_item),
    PLAN(items),
    PLAN(tiles_full),
    PLAN(tiles_partial),
    PLAN(tiles_skipped),
    PLAN(flops),
    PLAN(bytes_tiled),
    PLAN(bytes_standard),
    PLAN(workspace_bytes),
    PLAN(bits),
    PLAN(sum_bits),
    PLAN(vector_bits),
    PLAN(tile_products),
    PLAN(input_loss),
    PLAN(weight_loss),

    SIZE(attn_merge_args),
    MERGE(struct_size),
    MERGE(parts),
    MERGE(part_o),
    MERGE(part_lse),
    MERGE(o),
    MERGE(lse),
    MERGE(stream),

    SIZE(attn_merge_backward_args),
    MERGE_BACKWARD(struct_size),
    MERGE_BACKWARD(forward),
    MERGE_BACKWARD(d_o),
    MERGE_BACKWARD(d_lse),
    MERGE_BACKWARD(part_d_o),
    MERGE_BACKWARD(part_d_lse),
    MERGE_BACKWARD(stream),

    SIZE(attn_dropout_mask_args),
    DROPOUT(struct_size),
    DROPOUT(keep),
    DROPOUT(q_origin),
    DROPOUT(k_origin),
    DROPOUT(dropout_p),
    DROPOUT(dropout_seed),
    DROPOUT(dropout_offset),
    DROPOUT(stream),

    SIZE(attn_info),
    INFO(struct_size),
    INFO(version),
    INFO(build),
    INFO(cpu_features),
    INFO(cpu_table),
    INFO(cpu_tables),
    INFO(threads),
    INFO(reserved),
    INFO(l1d_bytes),
    INFO(l2_bytes),
    INFO(l3_bytes),
};

#define VALUE(name)           \
    {                         \
        "values", #name, name \
    }

static const place values[] = {
    VALUE(ATTN_OK),
    VALUE(ATTN_ERR_INVALID_ARGUMENT),
    VALUE(ATTN_ERR_UNKNOWN_FIELD),
    VALUE(ATTN_ERR_UNSUPPORTED),
    VALUE(ATTN_ERR_OVERFLOW),
    VALUE(ATTN_ERR_OUT_OF_MEMORY),
    VALUE(ATTN_ERR_WORKSPACE),
    VALUE(ATTN_ERR_DEVICE),

    VALUE(ATTN_F64),
    VALUE(ATTN_F32),
    VALUE(ATTN_F16),
    VALUE(ATTN_BF16),
    VALUE(ATTN_BOOL),
    VALUE(ATTN_I32),
    VALUE(ATTN_I64),
    VALUE(ATTN_U8),
    VALUE(ATTN_I8),
    VALUE(ATTN_E4M3),
    VALUE(ATTN_E5M2),
    VALUE(ATTN_I4X2),
    VALUE(ATTN_B1X8),

    VALUE(ATTN_DEVICE_CPU),
    VALUE(ATTN_DEVICE_CUDA),

    VALUE(ATTN_CAUSAL),
    VALUE(ATTN_TOP_LEFT),
    VALUE(ATTN_WINDOW),
    VALUE(ATTN_SCALE),
    VALUE(ATTN_PRECISE),
    VALUE(ATTN_BF16X3),
    VALUE(ATTN_ROPE_INTERLEAVED),
    VALUE(ATTN_SHARES_PAGES),
};

static int add(PyObject *result, const place *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        PyObject *key = Py_BuildValue("(ss)", list[i].type, list[i].name);
        PyObject *value = PyLong_FromSize_t(list[i].offset);
        int failed = !key || !value || PyDict_SetItem(result, key, value);
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (failed)
            return -1;
    }
    return 0;
}

PyObject *core_layout(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *result = PyDict_New();
    if (!result || add(result, places, sizeof places / sizeof *places) ||
        add(result, values, sizeof values / sizeof *values)) {
        Py_XDECREF(result);
        return NULL;
    }
    return result;
}
