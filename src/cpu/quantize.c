/*
 * quantize.c: tensors into codes and back.
 */
#include "core/codes.h"
#include "cpu/backend.h"
#include "cpu/encode.h"
#include "cpu/machine/tasks.h"

static int64_t extent(const attn_quantized *t, int axis)
{
    return attn_tensor_present(&t->scale) ? t->scale.shape[axis] : 1;
}

static void quantize_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_quantized *t = arg;
    const int64_t heads = extent(t, 2), rows = extent(t, 1);
    const int64_t s[3] = {index / heads / rows, index / heads % rows, index % heads};
    (void)thread;
    attn_encode(t, s);
}

attn_status attn_cpu_quantize(const void *device, const attn_quantized *t, void *stream)
{
    const attn_cpu_device *cpu = device;
    (void)stream;
    attn_tasks_run(&cpu->executor, extent(t, 0) * extent(t, 1) * extent(t, 2), quantize_task, t,
                   NULL);
    return ATTN_OK;
}

static void dequantize_task(const void *arg, int64_t index, int32_t thread)
{
    const attn_quantized *t = arg;
    const int64_t rows = t->x.shape[1], i = index / rows, j = index % rows;
    const int64_t columns = attn_code_columns(t->codes.dtype), group = t->x.shape[3] / extent(t, 3);
    (void)thread;
    for (int64_t h = 0; h < t->x.shape[2]; h++) {
        const int64_t s[3] = {i, j, h};
        for (int64_t c = 0; c < t->x.shape[3]; c++) {
            const float code =
                attn_code_at(attn_at(&t->codes, i, j, h, c / columns), t->codes.dtype, c % columns);
            const float scale = (float)attn_factor_at(&t->scale, s, c / group, 1),
                        shift = (float)attn_factor_at(&t->shift, s, c / group, 0);
            const float value =
                attn_code_value(code, scale, attn_tensor_present(&t->shift) ? &shift : NULL);
            attn_code_store(attn_at(&t->x, i, j, h, c), t->x.dtype, (double)value);
        }
    }
}

attn_status attn_cpu_dequantize(const void *device, const attn_quantized *t, void *stream)
{
    const attn_cpu_device *cpu = device;
    (void)stream;
    attn_tasks_run(&cpu->executor, t->x.shape[0] * t->x.shape[1], dequantize_task, t, NULL);
    return ATTN_OK;
}
