/*
 * mask.c: see mask.h.
 */
#include "cuda/mask/mask.h"
#include "core/error.h"
#include "cuda/mask/params.h"

/* Elements of a row of bytes. In varlen and in pages a mask may be longer than any sequence. */
static int64_t columns_of(const attn_problem *problem)
{
    const attn_tensor *mask = &problem->mask;
    const int64_t each = attn_mask_each(mask->dtype);
    return each == 1                           ? mask->shape[3]
           : problem->varlen || problem->paged ? mask->shape[3] * each
                                               : problem->keys;
}

attn_status attn_cuda_mask_place(attn_cuda_mask *mask, attn_problem *problem, void *memory)
{
    attn_tensor bytes = {.data = memory, .dtype = ATTN_U8};
    int64_t step = 1;
    bool wraps = false;
    *mask = (attn_cuda_mask){.from = problem->mask};
    if (!attn_tensor_present(&mask->from) || ATTN_BYTE_MASK_TYPES >> mask->from.dtype & 1) {
        return ATTN_OK;
    }
    for (int a = 3; a >= 0; a--) {
        const int64_t n = a == 3 ? columns_of(problem) : mask->from.shape[a];
        bytes.shape[a] = attn_axis_step(&mask->from, a) == 0 && a < 3 ? 1 : n;
        bytes.stride[a] = step;
        const int64_t room =
            a == 3 ? (n + ATTN_CUDA_MASK_PIECE - 1) / ATTN_CUDA_MASK_PIECE * ATTN_CUDA_MASK_PIECE
                   : bytes.shape[a];
        wraps |= __builtin_mul_overflow(step, room, &step);
    }
    if (wraps || step > INT64_MAX / 2) {
        return attn_fail(ATTN_ERR_OVERFLOW, "the mask does not fit in 64 bits as bytes");
    }
    mask->bytes = ((uint64_t)step + 63) / 64 * 64;
    attn_stand_in(&bytes);
    attn_normalise_tensor(&bytes, true);
    problem->mask = bytes;
    return ATTN_OK;
}

attn_status attn_cuda_mask_write(const attn_cuda *cuda, const attn_cuda_mask *mask,
                                 const attn_problem *problem, void *stream)
{
    const attn_tensor *to = &problem->mask;
    attn_cuda_mask_params params = {.from = mask->from,
                                    .to = *to,
                                    .rows = to->shape[0] * to->shape[1] * to->shape[2],
                                    .pieces = (to->shape[3] + ATTN_CUDA_MASK_PIECE - 1) /
                                              ATTN_CUDA_MASK_PIECE};
    const int kernel = attn_cuda_find(ATTN_CUDA_MASKS, 0);
    const int64_t each = attn_cuda_kernels[kernel].threads,
                  ctas = (params.rows * params.pieces + each - 1) / each;
    return attn_cuda_launch_loop(cuda, kernel, ctas, &params, stream);
}
