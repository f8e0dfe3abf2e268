/*
 * gpu.c: see gpu.h.
 */
#include "gpu.h"
#include "args.h"
#include "cuda/backward/params.h"
#include "cuda/mask/params.h"
#include "cuda/merge/params.h"
#include "cuda/starts/params.h"
#include "fake_driver.h"

#include <math.h>
#include <string.h>

/* ---- launches -------------------------------------------------------------------------------- */

/* The workspace of the call under way, rounded up to what it may be aligned by. */
static struct {
    uintptr_t from, to;
} scratch;

/* `bytes` bytes from an address, or none, lie in the workspace. Sizes go to 2^63 and beyond, and a
 * double would round them. */
static bool is_scratch(const void *address, long double bytes)
{
    const uintptr_t at = (uintptr_t)address;
    return address == NULL ||
           (at >= scratch.from && at <= scratch.to && bytes <= (long double)(scratch.to - at));
}

/* A tensor from its first element on, which is its lowest one. */
static long double bytes_of(const attn_tensor *t)
{
    long double last = 1;
    for (int a = 0; a < 4; a++) {
        last += ((long double)t->shape[a] - 1) * (long double)(t->shape[a] > 1 ? t->stride[a] : 0);
    }
    return last * (long double)attn_dtype_size(t->dtype);
}

/* Bits of a mask, whose rows are not beside each other (attn_cuda_mask_params). */
static long double bytes_of_lanes(const attn_tensor *t)
{
    return (long double)t->shape[0] * (long double)t->shape[1] * (long double)t->shape[2] *
           (long double)t->stride[2];
}

static bool are_finite(const float *x, size_t count)
{
    bool yes = true;
    for (size_t i = 0; i < count; i++) {
        yes = yes && isfinite(x[i]);
    }
    return yes;
}

/* The steps that a kernel takes; near_most may be infinite. */
static void check_steps(const attn_cuda_kernel *kernel, const attn_cuda_steps *s)
{
    const bool near = kernel->family != ATTN_CUDA_SM90_SOFTCAP;
    const float factors[] = {s->scale, s->bias_factor, s->alibi_factor, s->slope_factor},
                softcap[] = {s->near_scale, s->far_scale, s->far_cap},
                cap[] = {s->cap_most, s->cap_far};
    REQUIRE(are_finite(factors, 4));
    REQUIRE(!s->softcap || near || (are_finite(cap, 2) && are_finite(s->cap, 5)));
    REQUIRE(!s->softcap || !near ||
            (are_finite(softcap, 3) && are_finite(s->near, 5) && !isnan(s->near_most)));
}

static void check_forward(const attn_cuda_kernel *kernel, const attn_cuda_forward_params *p)
{
    const attn_cuda_schedule *s = &p->schedule;
    const long double rows = (long double)s->items * p->parts.rows;
    REQUIRE(isfinite(p->scale_log2));
    if (kernel->family < ATTN_CUDA_SM80) {
        check_steps(kernel, &p->steps_sm90);
    }
    REQUIRE(is_scratch(p->counter, sizeof *p->counter));
    REQUIRE(s->items > 0 && s->fold >= 1 && s->splits >= 1 && s->heads >= 1 && s->columns >= 1);
    if (s->splits > 1 && p->parts.sums != NULL) {
        REQUIRE(is_scratch(p->parts.states, rows * 4 * sizeof(float)));
        REQUIRE(is_scratch(p->parts.sums, rows * p->parts.columns * sizeof(float)));
    }
}

static void check_backward(const attn_cuda_kernel *kernel, const attn_cuda_backward_params *p)
{
    const long double rows = (long double)p->rows,
                      real = p->grads.problem.q.dtype == ATTN_F64 ? 8 : 4;
    const long double words = (long double)p->clear_words;
    REQUIRE(is_scratch(p->lse, rows * real) && is_scratch(p->delta, rows * real));
    REQUIRE(is_scratch(p->bad_keys, 0) && is_scratch(p->bad_rows, 0) && is_scratch(p->reach, 0));
    REQUIRE(is_scratch(p->ticket, 0) && is_scratch(p->sums, 0));
    REQUIRE(is_scratch(p->key_turns, 0) && is_scratch(p->key_sums, 0));
    REQUIRE(is_scratch(p->peaks, 0) && is_scratch(p->capped, 0));
    REQUIRE(is_scratch(p->q_parts, 0) && is_scratch(p->d_o_parts, 0));
    REQUIRE(is_scratch(p->sum.partial, 0) && is_scratch(p->clear, words * sizeof(uint32_t)));
    REQUIRE(isfinite(p->scale_log2) && isfinite(p->inverse_cap) && isfinite(p->kept));
    REQUIRE(is_scratch(p->next_chunk, p->ahead * sizeof(uint32_t)));
    /* where dQ is rounded maps are in the steps' place; delta's kernels read neither */
    const bool steps = kernel->loads != ATTN_CUDA_GRAD_ROUNDED &&
                       kernel->loads != ATTN_CUDA_GRAD_AHEAD &&
                       kernel->loads != ATTN_CUDA_GRAD_DELTA;
    if (kernel->family < ATTN_CUDA_SM80 && steps && kernel->dtype != ATTN_F32) {
        check_steps(kernel, &p->steps);
    }
}

static void check_append(const attn_cuda_append_params *p)
{
    REQUIRE(p->rows > 0 && is_scratch(p->rotated.q.data, bytes_of(&p->rotated.q)) &&
            is_scratch(p->rotated.k.data, bytes_of(&p->rotated.k)));
}

static void see(const attn_cuda_kernel *kernel, const cu_launch_config *config, const void *params)
{
    const attn_cuda_mask_params *mask = params;
    const attn_cuda_merge_params *merge = params;
    const attn_cuda_starts_params *starts = params;
    const attn_cuda_elements_params *elements = params;
    REQUIRE(config->grid[0] % (uint32_t)attn_cuda_grad_ctas(kernel) == 0); /* whole clusters */
    REQUIRE(fake.cleared_words == 0 ||
            is_scratch((const void *)(uintptr_t)fake.cleared, 4 * (long double)fake.cleared_words));
    switch (kernel->family) {
    case ATTN_CUDA_MERGES:
        REQUIRE(merge->rows > 0 && merge->parts > 0 && merge->parts <= kernel->keys);
        break;
    case ATTN_CUDA_APPENDS:
        check_append(params);
        break;
    case ATTN_CUDA_MASKS:
        REQUIRE(mask->rows > 0 && mask->pieces > 0);
        REQUIRE(is_scratch(mask->to.data, kernel->loads == ATTN_CUDA_MASK_LANES
                                              ? bytes_of_lanes(&mask->to)
                                              : bytes_of(&mask->to)));
        break;
    case ATTN_CUDA_STARTS:
        REQUIRE(starts->count > 0 && is_scratch(starts->to[0], (long double)starts->count * 8) &&
                is_scratch(starts->to[1], (long double)starts->count * 8));
        break;
    case ATTN_CUDA_ELEMENTWISE:
        REQUIRE(elements->count > 0);
        break;
    default:
        if (strncmp(kernel->name, "attn_forward_", 13) == 0) {
            check_forward(kernel, params);
        } else {
            check_backward(kernel, params);
        }
    }
}

/* ---- contexts and statuses ------------------------------------------------------------------- */

attn_context *gpu_context(input *in)
{
    static const int capability[] = {90, 80, 89, 100}, shared_kb[] = {227, 163, 99, 227};
    static attn_context *contexts[4];
    const int64_t gpu = below(in, 4);
    fake_reset();
    fake.capability = capability[gpu], fake.shared_bytes = shared_kb[gpu] << 10;
    if (contexts[gpu] == NULL) {
        REQUIRE(fake_create(0, &contexts[gpu]) == ATTN_OK);
    }
    fake.see = see;
    scratch.from = scratch.to = 0;
    return contexts[gpu];
}

static void check_ended(attn_status status)
{
    REQUIRE(fake.depth == 0);
    REQUIRE(status != ATTN_ERR_DEVICE && status != ATTN_ERR_OUT_OF_MEMORY);
    REQUIRE(status == ATTN_OK || attn_last_error()[0] != '\0');
}

/* Devices have sizes of their own, which may leave 64 bits. unread: there are lengths or tables, in
 * which a CPU may find faults. */
static bool are_alike(attn_status gpu, int cpu, bool unread)
{
    return (int)gpu == cpu || gpu == ATTN_ERR_UNSUPPORTED || cpu == ATTN_ERR_OUT_OF_MEMORY ||
           (gpu == ATTN_ERR_OVERFLOW && cpu == ATTN_OK) ||
           (gpu == ATTN_OK && cpu == ATTN_ERR_OVERFLOW) || (unread && cpu != ATTN_OK) || cpu < 0;
}

static bool has_unread(const attn_forward_args *args)
{
    bool yes = false;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        yes = yes || (args_tensors[i].kind == ARGS_LENGTHS && args_get(args, i)->data != NULL);
    }
    return yes;
}

void gpu_called(attn_status status, int run, bool unread)
{
    check_ended(status);
    REQUIRE(are_alike(status, run, unread));
}

/* A workspace of exactly so many bytes, of any alignment. */
static void *give(input *in, uint64_t bytes)
{
    enum { PLACE = 7000 }; /* beside those that fuzzers take */
    char *at = (char *)fake_memory(PLACE) + below(in, 64);
    scratch.from = (uintptr_t)at, scratch.to = scratch.from + bytes;
    return at;
}

/* A call that its workspace, of the size asked for, meets tensors in is refused. */
static bool meets_scratch(attn_status status)
{
    return status == ATTN_ERR_INVALID_ARGUMENT && strstr(attn_last_error(), "workspace") != NULL;
}

static void check_sized(attn_status plan, attn_status size, const attn_plan *made, uint64_t bytes)
{
    REQUIRE(plan == size && (size == ATTN_OK || bytes == 0));
    REQUIRE(size != ATTN_OK || (made->workspace_bytes == bytes && made->kernel != NULL &&
                                made->items >= 0 && made->flops >= 0 && isfinite(made->flops) &&
                                made->bytes_tiled >= 0 && isfinite(made->bytes_tiled)));
}

/* ---- the passes ------------------------------------------------------------------------------ */

void gpu_forward(input *in, const attn_forward_args *args, attn_status size, int run)
{
    const bool unread = has_unread(args),
               no_pages = args->block_table.data != NULL && args->k.shape[0] == 0; /* no keys */
    attn_forward_args own = *args;
    attn_plan plan = {.struct_size = sizeof plan};
    uint64_t bytes = 0;
    attn_context *context = gpu_context(in);
    const attn_status planned = attn_forward_plan(context, args, &plan),
                      sized = attn_forward_workspace(context, args, &bytes);
    check_sized(planned, sized, &plan, bytes);
    REQUIRE(no_pages || are_alike(sized, (int)size, unread));
    if (args->struct_size < offsetof(attn_forward_args, stream) || args->struct_size > sizeof own) {
        return; /* no place for a workspace, or none for a copy */
    }
    own.workspace = NULL, own.workspace_bytes = 0;
    const attn_status without = attn_forward(context, &own);
    check_ended(without);
    own.workspace = give(in, bytes), own.workspace_bytes = bytes;
    const attn_status with = attn_forward(context, &own);
    check_ended(with);
    REQUIRE(with != ATTN_ERR_WORKSPACE && (sized == ATTN_OK || with != ATTN_OK));
    REQUIRE(meets_scratch(with) || are_alike(with, run, unread));
    REQUIRE(without == with || meets_scratch(with) || (without == ATTN_ERR_WORKSPACE && bytes > 0));
    if (bytes > 0 && with == ATTN_OK) {
        own.workspace_bytes = bytes - 1, fake.launches = 0;
        REQUIRE(attn_forward(context, &own) == ATTN_ERR_WORKSPACE || fake.launches == 0);
    }
}

void gpu_backward(input *in, const attn_backward_args *args, attn_status size, int run)
{
    const bool unread = args->forward != NULL && has_unread(args->forward);
    attn_backward_args own = *args;
    attn_plan plan = {.struct_size = sizeof plan};
    uint64_t bytes = 0;
    attn_context *context = gpu_context(in);
    const attn_status planned = attn_backward_plan(context, args, &plan),
                      sized = attn_backward_workspace(context, args, &bytes);
    check_sized(planned, sized, &plan, bytes);
    REQUIRE(are_alike(sized, (int)size, unread));
    if (args->struct_size < offsetof(attn_backward_args, stream) ||
        args->struct_size > sizeof own) {
        return;
    }
    own.workspace = give(in, bytes), own.workspace_bytes = bytes;
    const attn_status with = attn_backward(context, &own);
    check_ended(with);
    REQUIRE(with != ATTN_ERR_WORKSPACE && (sized == ATTN_OK || with != ATTN_OK));
    REQUIRE(meets_scratch(with) || are_alike(with, run, unread));
    if (with == ATTN_OK && bytes > 0) {
        own.workspace_bytes = bytes - 1, fake.launches = 0;
        REQUIRE(attn_backward(context, &own) == ATTN_ERR_WORKSPACE || fake.launches == 0);
    }
}
