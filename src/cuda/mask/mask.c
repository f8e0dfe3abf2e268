/*
 * mask.c: see mask.h.
 */
#include "cuda/mask/mask.h"
#include "core/error.h"
#include "cuda/mask/params.h"

static int64_t ceil_to(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Elements of a row of bytes. In varlen and in pages a mask may be longer than any sequence. */
static int64_t columns_of(const attn_problem *problem)
{
    const attn_tensor *mask = &problem->mask;
    const int64_t each = attn_mask_each(mask->dtype);
    return each == 1                           ? mask->shape[3]
           : problem->varlen || problem->paged ? mask->shape[3] * each
                                               : problem->keys;
}

/* Puts bytes, rows of which begin at multiples of ATTN_CUDA_MASK_PIECE, in place of a mask. */
static attn_status place(attn_cuda_mask *mask, attn_problem *problem, void *memory)
{
    attn_tensor bytes = {.data = memory, .dtype = ATTN_U8};
    int64_t step = 1;
    bool wraps = false;
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

static bool is_of_bytes(const attn_tensor *mask)
{
    return ATTN_BYTE_MASK_TYPES >> mask->dtype & 1;
}

attn_status attn_cuda_mask_place(attn_cuda_mask *mask, attn_problem *problem, void *memory)
{
    *mask = (attn_cuda_mask){.from = problem->mask};
    return attn_tensor_present(&mask->from) && !is_of_bytes(&mask->from)
               ? place(mask, problem, memory)
               : ATTN_OK;
}

bool attn_cuda_mask_is_askew(const attn_tensor *mask)
{
    return attn_tensor_present(mask) && is_of_bytes(mask) &&
           mask->shape[3] >= ATTN_CUDA_MASK_PIECE && !attn_cuda_is_aligned(mask);
}

attn_status attn_cuda_mask_align(attn_cuda_mask *mask, attn_problem *problem, void *memory)
{
    *mask = (attn_cuda_mask){.from = problem->mask};
    return place(mask, problem, memory);
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
    const int kernel = attn_cuda_find(ATTN_CUDA_MASKS, ATTN_CUDA_MASK_BYTES);
    const int64_t each = attn_cuda_kernels[kernel].threads,
                  ctas = (params.rows * params.pieces + each - 1) / each;
    return attn_cuda_launch_loop(cuda, kernel, ctas, &params, stream);
}

attn_status attn_cuda_lanes_write(const attn_cuda *cuda, const attn_tensor *mask,
                                  const attn_tensor *lanes, void *stream)
{
    attn_cuda_mask_params params = {.from = *mask,
                                    .to = *lanes,
                                    .rows = lanes->shape[0] * lanes->shape[1] * lanes->shape[2] /
                                            ATTN_CUDA_LANES_ROWS,
                                    .pieces = lanes->shape[3] / ATTN_CUDA_LANES_BYTES};
    const int kernel = attn_cuda_find(ATTN_CUDA_MASKS, ATTN_CUDA_MASK_LANES);
    const int64_t each = attn_cuda_kernels[kernel].threads / 32,
                  ctas = (params.rows * params.pieces + each - 1) / each;
    return attn_cuda_launch_loop(cuda, kernel, ctas, &params, stream);
}

/* SHARE: heads that read an element of the mask, and FEW: scores of a multiprocessor, from which on
 * the launch pays. In varlen neither is known. */
uint64_t attn_cuda_lanes_of(const attn_cuda *cuda, const attn_problem *problem, attn_tensor *lanes)
{
    enum { SHARE = 4, FEW = 1 << 19, MOST = 1 << 28 };
    const attn_tensor *mask = &problem->mask;
    const int64_t batch = attn_axis_step(mask, 0) == 0 ? 1 : mask->shape[0],
                  heads = attn_axis_step(mask, 1) == 0 ? 1 : mask->shape[1];
    const double calls = (double)problem->batch * (double)problem->heads,
                 scores = calls * (double)problem->q.shape[1] * (double)problem->keys,
                 each = (double)batch * (double)heads;
    if (problem->varlen || attn_axis_step(mask, 2) == 0 || each > MOST || mask->shape[3] > MOST ||
        each * (double)mask->shape[2] * (double)mask->shape[3] > 0x1p60 ||
        scores < (double)FEW * cuda->multiprocessors || calls < SHARE * each) {
        return 0;
    }
    const int64_t rows = ceil_to(mask->shape[2], ATTN_CUDA_LANES_ROWS),
                  step = ceil_to(mask->shape[3], ATTN_CUDA_LANES_KEYS) / ATTN_CUDA_LANES_KEYS *
                         (ATTN_CUDA_LANES_BYTES / ATTN_CUDA_LANES_ROWS);
    *lanes = (attn_tensor){
        .dtype = ATTN_U8,
        .shape = {batch, heads, rows, step * ATTN_CUDA_LANES_ROWS},
        .stride = {batch > 1 ? heads * rows * step : 0, heads > 1 ? rows * step : 0, step, 1}};
    return (uint64_t)(batch * heads * rows * step);
}
