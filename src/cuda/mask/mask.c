/*
 * mask.c: see mask.h.
 */
#include "cuda/mask/mask.h"
#include "core/error.h"
#include "core/overlap.h"
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

/* Makes *to, of another type, lie at `memory` in rows that begin at multiples of PIECE bytes. Axes
 * that *from repeats have one element. Returns its bytes; 0: more than 64 bits hold. */
static uint64_t place(attn_tensor *to, const attn_tensor *from, int32_t dtype, int64_t columns,
                      void *memory)
{
    const int64_t piece = ATTN_CUDA_MASK_PIECE / (int64_t)attn_dtype_size(dtype),
                  most = INT64_MAX / ATTN_CUDA_MASK_PIECE;
    attn_tensor placed = {.data = memory, .dtype = dtype};
    int64_t step = 1;
    bool wraps = columns > most;
    for (int a = 3; a >= 0 && !wraps; a--) {
        const int64_t n = a == 3 ? columns : from->shape[a];
        placed.shape[a] = attn_axis_step(from, a) == 0 && a < 3 ? 1 : n;
        placed.stride[a] = step;
        wraps |= __builtin_mul_overflow(step, a == 3 ? ceil_to(n, piece) : placed.shape[a], &step);
    }
    if (wraps || step > most) {
        return 0;
    }
    attn_stand_in(&placed);
    attn_normalise_tensor(&placed, true);
    *to = placed;
    return (uint64_t)ceil_to(step * (int64_t)attn_dtype_size(dtype), 64);
}

static bool is_of_bytes(const attn_tensor *mask)
{
    return ATTN_BYTE_MASK_TYPES >> mask->dtype & 1;
}

/* False if more than 64 bits hold the copy: *problem is as it was. */
static bool place_mask(attn_cuda_copies *copies, attn_problem *problem, void *memory)
{
    copies->mask.bytes =
        place(&problem->mask, &copies->mask.from, ATTN_U8, columns_of(problem), memory);
    return copies->mask.bytes > 0;
}

attn_status attn_cuda_mask_place(attn_cuda_copies *copies, attn_problem *problem, void *memory)
{
    *copies = (attn_cuda_copies){{.from = problem->mask}, {.from = problem->bias}};
    return !attn_tensor_present(&problem->mask) || is_of_bytes(&problem->mask) ||
                   place_mask(copies, problem, memory)
               ? ATTN_OK
               : attn_fail(ATTN_ERR_OVERFLOW, "the mask does not fit in 64 bits as bytes");
}

/* True if elements share memory by other strides than 0. */
static bool is_folded(const attn_tensor *rows)
{
    attn_tensor once = *rows;
    for (int a = 0; a < 4; a++) {
        once.shape[a] = attn_axis_step(rows, a) == 0 ? 1 : rows->shape[a];
    }
    return attn_elements_may_meet(&once);
}

static bool are_askew(const attn_tensor *rows)
{
    return attn_tensor_present(rows) && rows->shape[3] >= ATTN_CUDA_MASK_PIECE &&
           !attn_cuda_is_aligned(rows) && !is_folded(rows);
}

static bool is_mask_askew(const attn_problem *problem)
{
    return are_askew(&problem->mask) && is_of_bytes(&problem->mask);
}

static bool is_bias_askew(const attn_problem *problem)
{
    return are_askew(&problem->bias) && problem->bias.dtype != ATTN_F64;
}

bool attn_cuda_is_askew(const attn_problem *problem)
{
    return is_mask_askew(problem) || is_bias_askew(problem);
}

attn_status attn_cuda_align(attn_cuda_copies *copies, attn_problem *problem, void *memory)
{
    TRY(attn_cuda_mask_place(copies, problem, memory));
    if (copies->mask.bytes == 0 && is_mask_askew(problem)) {
        (void)place_mask(copies, problem, memory);
    }
    if (is_bias_askew(problem)) {
        const attn_tensor *from = &copies->bias.from;
        attn_tensor *to = &problem->bias;
        void *behind = memory == NULL ? NULL : (char *)memory + copies->mask.bytes;
        copies->bias.bytes = place(to, from, from->dtype, from->shape[3], behind);
        for (int a = 0; a < 3; a++) { /* gradients have the bias' shape */
            to->shape[a] = from->shape[a];
            to->stride[a] = attn_axis_step(from, a) == 0 ? 0 : to->stride[a];
        }
    }
    return ATTN_OK;
}

/* Enqueues the launch that writes *to. */
static attn_status write(const attn_cuda *cuda, int32_t what, const attn_tensor *from,
                         const attn_tensor *to, void *stream)
{
    const int64_t piece = ATTN_CUDA_MASK_PIECE / (int64_t)attn_dtype_size(to->dtype);
    attn_cuda_mask_params params = {
        .from = *from, .to = *to, .rows = 1, .pieces = ceil_to(to->shape[3], piece) / piece};
    for (int a = 0; a < 3; a++) {
        params.to.shape[a] = attn_axis_step(to, a) == 0 ? 1 : to->shape[a];
        params.rows *= params.to.shape[a];
    }
    const int kernel = attn_cuda_find(ATTN_CUDA_MASKS, what);
    const int64_t each = attn_cuda_kernels[kernel].threads,
                  ctas = (params.rows * params.pieces + each - 1) / each;
    return attn_cuda_launch_loop(cuda, kernel, ctas, &params, stream);
}

attn_status attn_cuda_copies_write(const attn_cuda *cuda, const attn_cuda_copies *copies,
                                   const attn_problem *problem, void *stream)
{
    const attn_cuda_copy *mask = &copies->mask, *bias = &copies->bias;
    if (mask->bytes > 0) {
        TRY(write(cuda, ATTN_CUDA_MASK_BYTES, &mask->from, &problem->mask, stream));
    }
    return bias->bytes == 0 ? ATTN_OK
                            : write(cuda, ATTN_CUDA_BIAS_ROWS, &bias->from, &problem->bias, stream);
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
