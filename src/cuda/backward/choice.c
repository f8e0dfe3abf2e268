/*
 * choice.c: the kernels of the backward pass for a problem, and the reasons where there are none.
 * Pure.
 */
#include "cuda/backward/backward.h"
#include "cuda/forward/forward.h"

/* The kernel of a type of operands, and of the problem's head dims. */
static int find_kernel(const attn_problem *problem, int32_t dtype, attn_cuda_family family,
                       int32_t part)
{
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *kernel = &attn_cuda_kernels[i];
        if (kernel->family == family && kernel->dtype == dtype && kernel->loads == part &&
            (kernel->d == 0 || (problem->d <= kernel->d && problem->dv <= kernel->dv))) {
            return i;
        }
    }
    return -1;
}

int attn_cuda_grad_kernel(const attn_problem *problem, attn_cuda_family family, int32_t part)
{
    const int32_t dtype = family != ATTN_CUDA_BACKWARD_GENERIC ? problem->q.dtype
                          : problem->q.dtype == ATTN_F64       ? ATTN_F64
                                                               : ATTN_F32;
    return find_kernel(problem, dtype, family, part);
}

bool attn_cuda_grad_is_stepped(const attn_problem *problem)
{
    return attn_cuda_has_steps(problem) || problem->dropout.on;
}

attn_cuda_steps attn_cuda_grad_steps(const attn_problem *problem)
{
    attn_cuda_steps steps = attn_cuda_steps_of(problem);
    steps.mask_copied &= !problem->bias.data || steps.bias == ATTN_CUDA_COPIED_2;
    return steps;
}

/* True beyond the head dims of kernels that copy tiles of masks and biases. */
static bool is_wide(const attn_problem *problem)
{
    return problem->d > 128 || problem->dv > 128;
}

/* True if a mask or a bias is there, and tiles of what is there can be copied. */
static bool has_tables(const attn_problem *problem)
{
    const attn_cuda_steps steps = attn_cuda_grad_steps(problem);
    return !is_wide(problem) && (problem->mask.data || problem->bias.data) &&
           (!problem->mask.data || steps.mask_copied) &&
           (!problem->bias.data || steps.bias == ATTN_CUDA_COPIED_2);
}

/* True if scores take more than a usual scale, ALiBi, a mask and a bias. */
static bool has_other_steps(const attn_problem *problem)
{
    attn_problem rest = *problem;
    rest.alibi.data = rest.mask.data = rest.bias.data = NULL;
    return attn_cuda_has_steps(&rest);
}

bool attn_cuda_grad_hides_keys(const attn_problem *problem)
{
    const attn_tensor *mask = &problem->mask;
    return (problem->q.dtype == ATTN_BF16 || problem->q.dtype == ATTN_F16) && mask->data &&
           !problem->bias.data && !has_other_steps(problem) && attn_axis_step(mask, 2) == 0 &&
           !(is_wide(problem) && (problem->alibi.data || problem->dropout.on)) &&
           (attn_axis_step(mask, 1) == 0 || problem->group == 1);
}

bool attn_cuda_grad_gathers(const attn_problem *problem)
{
    return !attn_cuda_grad_hides_keys(problem) && (problem->mask.data || problem->bias.data) &&
           !has_tables(problem);
}

bool attn_cuda_grad_table(const attn_problem *problem, attn_tensor *table)
{
    const bool mask = problem->mask.data != NULL;
    *table = mask ? problem->mask : problem->bias;
    for (int a = 0; a < 2; a++) {
        table->shape[a] = attn_axis_step(table, a) == 0 ? 1 : table->shape[a];
    }
    if (table->data == NULL || attn_axis_step(table, 2) == 0 || !attn_cuda_is_boxed(table)) {
        return false;
    }
    if (mask) { /* pairs of bytes, as the maps' elements have two */
        const bool pairs = table->shape[3] % 2 == 0;
        table->dtype = ATTN_BF16, table->shape[3] /= 2;
        for (int a = 0; a < 3; a++) {
            table->stride[a] /= 2;
        }
        return pairs;
    }
    return true;
}

/* The kernels of problems of bf16 with ALiBi, a mask or a bias alone; those of others, if they are
 * not for it. */
static attn_cuda_family lone_family(const attn_problem *problem, attn_cuda_family others)
{
    const bool alibi = problem->alibi.data != NULL, mask = problem->mask.data != NULL,
               bias = problem->bias.data != NULL;
    attn_tensor table;
    if (problem->q.dtype != ATTN_BF16 || problem->dropout.on || has_other_steps(problem) ||
        alibi + mask + bias != 1) {
        return others;
    }
    const attn_cuda_family family = alibi  ? ATTN_CUDA_BACKWARD_SM90_ALIBI
                                    : mask ? ATTN_CUDA_BACKWARD_SM90_MASK
                                           : ATTN_CUDA_BACKWARD_SM90_BIAS;
    const bool fits = alibi || (attn_cuda_grad_table(problem, &table) &&
                                (mask || problem->bias.dtype == ATTN_BF16));
    return fits && attn_cuda_grad_kernel(problem, family, ATTN_CUDA_GRAD_ORDERED) >= 0 ? family
                                                                                       : others;
}

/* True if a problem without masks, biases and other steps has dropout alone, and kernels for that:
 * up to d = 64 the one with a helper is for ALiBi, too. */
static bool is_dropout_alone(const attn_problem *problem)
{
    return problem->dropout.on && !problem->alibi.data &&
           !attn_tensor_present(&problem->q_origin) && !attn_tensor_present(&problem->k_origin) &&
           (problem->d > 64 || problem->dv > 64);
}

/* ALiBi and dropout, masks and biases of the inputs' type have faster ones. */
static attn_cuda_family ordered_family(const attn_problem *problem)
{
    const bool tabled = has_tables(problem),
               both = problem->q.dtype == ATTN_BF16 && problem->mask.data && problem->bias.data &&
                      problem->d <= 64 && problem->dv <= 64, /* no room for both */
        light = !is_wide(problem) && !has_other_steps(problem) && !both &&
                (tabled || (!problem->mask.data && !problem->bias.data)) &&
                (!problem->bias.data || problem->bias.dtype == problem->q.dtype);
    if (problem->q.dtype == ATTN_F32) {
        return ATTN_CUDA_BACKWARD_SM90_F32;
    }
    if (!attn_cuda_grad_is_stepped(problem)) {
        return ATTN_CUDA_BACKWARD_SM90;
    }
    if (attn_cuda_grad_hides_keys(problem)) {
        return problem->alibi.data || problem->dropout.on ? ATTN_CUDA_BACKWARD_SM90_LIGHT
                                                          : ATTN_CUDA_BACKWARD_SM90;
    }
    if (tabled) {
        return lone_family(problem, light ? ATTN_CUDA_BACKWARD_SM90_TABLES
                                          : ATTN_CUDA_BACKWARD_SM90_STEPS_TABLES);
    }
    if (light && is_dropout_alone(problem)) {
        return ATTN_CUDA_BACKWARD_SM90_DROPOUT;
    }
    return lone_family(problem,
                       light ? ATTN_CUDA_BACKWARD_SM90_LIGHT : ATTN_CUDA_BACKWARD_SM90_STEPS);
}

bool attn_cuda_grad_has_elements(const attn_gradients *grads)
{
    const attn_tensor *bias = &grads->problem.bias, *out = &grads->d_bias;
    attn_problem rest = grads->problem;
    rest.bias.data = NULL;
    return !is_wide(&rest) && !attn_cuda_has_steps(&rest) &&
           bias->dtype == grads->problem.q.dtype &&
           attn_cuda_grad_steps(&grads->problem).bias == ATTN_CUDA_COPIED_2 &&
           out->dtype != ATTN_F64 && attn_cuda_is_aligned(out) && out->shape[3] % 2 == 0 &&
           out->shape[0] == bias->shape[0] && out->shape[1] == bias->shape[1];
}

int attn_cuda_grad_ordered(const attn_problem *problem, int32_t part)
{
    return attn_cuda_grad_kernel(problem, ordered_family(problem), part);
}

static bool is_stored(const attn_tensor *tensor)
{
    return tensor->data == NULL || attn_cuda_is_aligned(tensor);
}

bool attn_cuda_grad_is_stored(const attn_gradients *grads)
{
    return is_stored(&grads->dq) && is_stored(&grads->dk) && is_stored(&grads->dv);
}

const char *attn_cuda_grad_wgmma_lacks(const attn_gradients *grads, const attn_cuda *cuda)
{
    const attn_problem *problem = &grads->problem;
    if (cuda->capability != 90 || problem->q.dtype == ATTN_F64) {
        return "gradients have kernels there for sm_90, and not for f64";
    }
    if (problem->q.dtype == ATTN_F32) {
        return attn_cuda_grad_ordered(problem, ATTN_CUDA_GRAD_ORDERED) < 0
                   ? "head dims of f32 end at 64"
                   : attn_cuda_split_lacks(grads);
    }
    if (attn_cuda_grad_kernel(problem, ATTN_CUDA_BACKWARD_SM90, ATTN_CUDA_GRAD_ORDERED) < 0 ||
        problem->d % 2 != 0 || problem->dv % 2 != 0 || problem->d == 0 || problem->dv == 0) {
        return "head dims end at 256, and are even";
    }
    if (problem->precise || grads->d_o.dtype != problem->q.dtype) {
        return "they take probabilities and dO in the type of q";
    }
    if (attn_cuda_steps_lack(problem)) {
        return attn_cuda_steps_lack(problem);
    }
    if (problem->q.shape[1] > INT32_MAX / 2 || problem->k.shape[1] > INT32_MAX / 2) {
        return "lengths end at 2^30";
    }
    return attn_cuda_is_boxed(&problem->q) && attn_cuda_is_boxed(&problem->k) &&
                   attn_cuda_is_boxed(&problem->v) && attn_cuda_is_boxed(&grads->d_o) &&
                   attn_cuda_grad_is_stored(grads)
               ? NULL
               : "strides or alignment are not for the TMA";
}

int attn_cuda_grad_mma(const attn_gradients *grads, int32_t part)
{
    const attn_problem *problem = &grads->problem;
    const bool parts =
        problem->q.dtype != ATTN_F64 && (problem->precise || grads->d_o.dtype != problem->q.dtype);
    return find_kernel(problem, parts ? ATTN_F32 : problem->q.dtype,
                       attn_cuda_grad_is_stepped(problem) ? ATTN_CUDA_BACKWARD_SM80_STEPS
                                                          : ATTN_CUDA_BACKWARD_SM80,
                       part);
}

const char *attn_cuda_grad_mma_lacks(const attn_gradients *grads, const attn_cuda *cuda)
{
    const attn_problem *problem = &grads->problem;
    const int kernel = attn_cuda_grad_mma(grads, ATTN_CUDA_GRAD_KEYS);
    if (problem->q.dtype == ATTN_F64) {
        return "gradients have no kernels there for f64";
    }
    if (kernel < 0 || problem->d == 0 || problem->dv == 0) {
        return "head dims end at 256, of f32 with score steps or dropout at 128";
    }
    if (attn_cuda_kernels[kernel].shared_bytes > cuda->shared_bytes) {
        return "the GPU's shared memory ends before this head dim's tiles";
    }
    return problem->q.shape[1] > INT32_MAX / 2 || problem->k.shape[1] > INT32_MAX / 2
               ? "lengths end at 2^30"
               : NULL;
}

/* True if rows are copied as they are: of a kernel's type. */
static bool is_copied(const attn_tensor *tensor, int32_t dtype)
{
    return tensor->dtype == dtype && attn_cuda_is_aligned(tensor);
}

int32_t attn_cuda_grad_aligned(const attn_gradients *grads)
{
    const int32_t dtype = attn_cuda_kernels[attn_cuda_grad_mma(grads, ATTN_CUDA_GRAD_KEYS)].dtype;
    return (is_copied(&grads->problem.q, dtype) ? ATTN_CUDA_ALIGNED_Q : 0) |
           (is_copied(&grads->problem.k, dtype) ? ATTN_CUDA_ALIGNED_K : 0) |
           (is_copied(&grads->problem.v, dtype) ? ATTN_CUDA_ALIGNED_V : 0) |
           (is_copied(&grads->d_o, dtype) ? ATTN_CUDA_ALIGNED_D_O : 0);
}

/* True if a result is there, has the inputs' type and all columns of a kernel's tiles. */
static bool leaves_in_boxes(const attn_tensor *tensor, const attn_cuda_kernel *kernel)
{
    return tensor->data != NULL && attn_cuda_is_boxed(tensor) && tensor->dtype == kernel->dtype &&
           tensor->shape[3] == kernel->d;
}

/* The block of the first keys, the last one to add, sees some row of each tile. It takes longer for
 * that than others, and comes last: few heads would leave most CTAs without work meanwhile. */
bool attn_cuda_grad_rounds(const attn_gradients *grads, const attn_band *band,
                           const attn_cuda *cuda)
{
    const attn_problem *problem = &grads->problem;
    const attn_cuda_kernel *kernel =
        &attn_cuda_kernels[attn_cuda_grad_ordered(problem, ATTN_CUDA_GRAD_ORDERED)];
    const int64_t rows = problem->q.shape[1],
                  keys = problem->k.shape[1] < kernel->keys ? problem->k.shape[1] : kernel->keys,
                  last_tile = (rows - 1) / kernel->rows * kernel->rows;
    return kernel->family == ATTN_CUDA_BACKWARD_SM90 && kernel->stays &&
           kernel->dtype == ATTN_BF16 && !attn_cuda_grad_is_stepped(problem) &&
           leaves_in_boxes(&grads->dq, kernel) && leaves_in_boxes(&grads->dk, kernel) &&
           leaves_in_boxes(&grads->dv, kernel) && keys > 0 && last_tile + band->from < keys &&
           band->to + kernel->rows - 1 > 0 && band->to + rows - 1 > 0 &&
           3 * problem->batch * problem->kv_heads >= cuda->multiprocessors;
}
