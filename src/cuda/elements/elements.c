/*
 * elements.c: see elements.h.
 */
#include "cuda/elements/elements.h"
#include "core/error.h"
#include "cuda/elements/params.h"

/* Elements of a group that a warp reads alone. */
enum { NARROW = 1024 };

static attn_status count_elements(const char *name, const attn_tensor *tensor, int64_t *count)
{
    bool wraps = false;
    *count = 1;
    for (int a = 0; a < 4; a++) {
        wraps |= __builtin_mul_overflow(*count, tensor->shape[a], count);
    }
    return wraps || *count > INT64_MAX / 2
               ? attn_fail(ATTN_ERR_OVERFLOW, "the elements of %s do not fit in 64 bits", name)
               : ATTN_OK;
}

/* Launches a kernel whose CTAs share params->count things, `each` at a time. */
static attn_status launch(const attn_cuda *cuda, int kind, int64_t each,
                          attn_cuda_elements_params *params, void *stream)
{
    const int64_t ctas = (params->count - 1) / each + 1, most = 16 * cuda->multiprocessors;
    return attn_cuda_launch_loop(cuda, attn_cuda_find(ATTN_CUDA_ELEMENTWISE, kind),
                                 ctas < most ? ctas : most, params, stream);
}

/* Threads of a CTA, one for each element. */
static int64_t threads(void)
{
    return attn_cuda_kernels[attn_cuda_find(ATTN_CUDA_ELEMENTWISE, ATTN_CUDA_WRITE_CODES)].threads;
}

static attn_status find_scales(const attn_cuda *cuda, attn_cuda_elements_params *params,
                               void *stream)
{
    int64_t elements;
    TRY(count_elements("x", &params->t.x, &elements));
    TRY(count_elements("scale", &params->t.scale, &params->count));
    params->wide = elements / params->count > NARROW;
    return launch(cuda, ATTN_CUDA_WRITE_SCALES, params->wide ? 1 : threads() / 32, params, stream);
}

attn_status attn_cuda_quantize(const void *device, const attn_quantized *t, void *stream)
{
    attn_cuda_elements_params params = {.t = *t};
    if (!t->given) {
        TRY(find_scales(device, &params, stream));
    }
    TRY(count_elements("codes", &t->codes, &params.count));
    return launch(device, ATTN_CUDA_WRITE_CODES, threads(), &params, stream);
}

attn_status attn_cuda_dequantize(const void *device, const attn_quantized *t, void *stream)
{
    attn_cuda_elements_params params = {.t = *t};
    TRY(count_elements("x", &t->x, &params.count));
    return launch(device, ATTN_CUDA_WRITE_VALUES, threads(), &params, stream);
}

attn_status attn_cuda_dropout_mask(const void *device, const attn_dropout_problem *problem,
                                   void *stream)
{
    attn_cuda_elements_params params = {.drop = *problem};
    TRY(count_elements("keep", &problem->keep, &params.count));
    return launch(device, ATTN_CUDA_WRITE_KEEP, threads(), &params, stream);
}
