/*
 * backend.c: the operations of a GPU as src/api calls them.
 */
#include "core/error.h"
#include "core/overlap.h"
#include "cpu/machine/host.h"
#include "cuda/backward/backward.h"
#include "cuda/elements/elements.h"
#include "cuda/forward/forward.h"
#include "cuda/mask/mask.h"
#include "cuda/merge/merge.h"
#include <stdio.h>
#include <string.h>

static const char *name(const void *device)
{
    return attn_cuda_name(device);
}

/* Room for aligning the workspace. */
enum { ALIGNED = 64 };

/* Bytes of a workspace that begins with copies. */
static uint64_t behind(const attn_cuda_copies *copies, uint64_t bytes)
{
    const uint64_t copied = copies->mask.bytes + copies->bias.bytes;
    return copied == 0 ? bytes : copied + ALIGNED + bytes;
}

static void tell_copies(const attn_cuda_copies *copies, attn_plan *plan)
{
    const size_t n = strlen(plan->why);
    plan->workspace_bytes = behind(copies, plan->workspace_bytes);
    (void)snprintf(plan->why + n, sizeof plan->why - n, "%s%s",
                   copies->mask.bytes > 0 ? "; a launch writes the mask as aligned bytes" : "",
                   copies->bias.bytes > 0 ? "; a launch aligns rows of the bias" : "");
}

/* Writes the copies of a call to the start of its workspace, `needed` bytes long, and leaves the
 * rest to *call. */
static attn_status write_copies(const attn_cuda *cuda, const attn_cuda_copies *copies,
                                const attn_problem *problem, uint64_t needed, attn_call *call)
{
    const uint64_t given = call->workspace ? call->workspace_bytes : 0,
                   copied = copies->mask.bytes + copies->bias.bytes;
    if (given < needed) {
        return attn_fail(ATTN_ERR_WORKSPACE,
                         "workspace_bytes = %llu, %llu are needed: a GPU's calls do not allocate",
                         (unsigned long long)given, (unsigned long long)needed);
    }
    call->workspace = (char *)attn_align_up(call->workspace) + copied;
    call->workspace_bytes -= copied + ALIGNED;
    return attn_cuda_copies_write(cuda, copies, problem, call->stream);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Places a mask of another type, and, where there is a workspace or may be, masks and biases whose
 * rows are askew, if kernels copy rows. */
static attn_status place(const attn_cuda *cuda, attn_cuda_copies *copies, attn_problem *own,
                         void *memory, bool room)
{
    attn_problem straight = *own;
    attn_cuda_copies rows;
    attn_cuda_plan plan;
    TRY(attn_cuda_mask_place(copies, own, memory));
    if (!room || !attn_cuda_is_askew(own)) {
        return ATTN_OK;
    }
    TRY(attn_cuda_align(&rows, &straight, memory));
    TRY(attn_cuda_plan_make(&plan, cuda, &straight, NULL));
    if (attn_cuda_copies_scores(&plan)) {
        *own = straight, *copies = rows;
    }
    return ATTN_OK;
}

static attn_status plan_forward(const attn_cuda *cuda, const attn_problem *problem, attn_plan *plan)
{
    attn_problem own = *problem;
    attn_cuda_copies copies;
    TRY(place(cuda, &copies, &own, NULL, true));
    TRY(attn_cuda_plan_forward(cuda, &own, plan));
    tell_copies(&copies, plan);
    return ATTN_OK;
}

static attn_status size_forward(const attn_cuda *cuda, const attn_problem *problem, uint64_t *bytes)
{
    attn_problem own = *problem;
    attn_cuda_copies copies;
    attn_cuda_plan plan;
    *bytes = 0;
    TRY(place(cuda, &copies, &own, NULL, true));
    TRY(attn_cuda_plan_make(&plan, cuda, &own, NULL));
    *bytes = behind(&copies, plan.workspace_bytes);
    return ATTN_OK;
}

/* A GPU's workspace is never allocated here; most calls need it for speed only. */
static attn_status run_forward(const attn_cuda *cuda, const attn_problem *problem,
                               const attn_call *call)
{
    attn_problem own = *problem;
    attn_call rest = *call;
    attn_cuda_copies copies;
    uint64_t needed;
    rest.workspace = call->workspace ? attn_align_up(call->workspace) : NULL;
    TRY(place(cuda, &copies, &own, rest.workspace, rest.workspace != NULL));
    if (copies.mask.bytes + copies.bias.bytes > 0) {
        TRY(size_forward(cuda, problem, &needed));
        TRY(attn_problem_overlaps(problem, call->workspace, attn_handed_in(call, needed)));
        TRY(write_copies(cuda, &copies, &own, needed, &rest));
    }
    return attn_cuda_forward(cuda, &own, &rest);
}

static attn_status forward_plan(const void *device, const attn_problem *problem, attn_plan *plan)
{
    attn_host host;
    attn_host_leave(&host); /* scales are rounded in the default environment, here and below */
    attn_status status = plan_forward(device, problem, plan);
    attn_host_return(&host);
    return status;
}

static attn_status forward_workspace(const void *device, const attn_problem *problem,
                                     uint64_t *bytes)
{
    attn_host host;
    attn_host_leave(&host);
    attn_status status = size_forward(device, problem, bytes);
    attn_host_return(&host);
    return status;
}

static attn_status forward_run(const void *device, const attn_problem *problem,
                               const attn_call *call)
{
    attn_host host;
    attn_host_leave(&host);
    attn_status status = run_forward(device, problem, call);
    attn_host_return(&host);
    return status;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Places a mask of another type, and masks and biases whose rows are askew, which would be read
 * element by element. */
static attn_status place_grad(const attn_cuda *cuda, attn_cuda_copies *copies, attn_gradients *own,
                              void *memory)
{
    attn_problem straight = own->problem;
    attn_cuda_copies rows;
    TRY(attn_cuda_mask_place(copies, &own->problem, memory));
    if (!attn_cuda_is_askew(&own->problem) || attn_cuda_grad_wgmma_lacks(own, cuda) ||
        !attn_cuda_grad_gathers(&own->problem)) {
        return ATTN_OK;
    }
    TRY(attn_cuda_align(&rows, &straight, memory));
    if (!attn_cuda_grad_gathers(&straight)) {
        own->problem = straight, *copies = rows;
    }
    return ATTN_OK;
}

static attn_status plan_backward(const attn_cuda *cuda, const attn_gradients *grads,
                                 attn_plan *plan)
{
    attn_gradients own = *grads;
    attn_cuda_copies copies;
    TRY(place_grad(cuda, &copies, &own, NULL));
    TRY(attn_cuda_plan_backward(cuda, &own, plan));
    tell_copies(&copies, plan);
    return ATTN_OK;
}

static attn_status size_backward(const attn_cuda *cuda, const attn_gradients *grads,
                                 uint64_t *bytes)
{
    attn_gradients own = *grads;
    attn_cuda_copies copies;
    attn_cuda_grad_plan plan;
    *bytes = 0;
    TRY(place_grad(cuda, &copies, &own, NULL));
    TRY(attn_cuda_grad_plan_make(&plan, cuda, &own));
    *bytes = behind(&copies, plan.workspace_bytes);
    return ATTN_OK;
}

static attn_status run_backward(const attn_cuda *cuda, const attn_gradients *grads,
                                const attn_call *call)
{
    attn_gradients own = *grads;
    attn_call rest = *call;
    attn_cuda_copies copies;
    uint64_t needed;
    void *const memory = call->workspace ? attn_align_up(call->workspace) : NULL;
    TRY(place_grad(cuda, &copies, &own, memory));
    if (copies.mask.bytes + copies.bias.bytes > 0) {
        TRY(size_backward(cuda, grads, &needed));
        TRY(attn_gradients_overlaps(grads, call->workspace, attn_handed_in(call, needed)));
        TRY(write_copies(cuda, &copies, &own.problem, needed, &rest));
    }
    return attn_cuda_backward(cuda, &own, &rest);
}

static attn_status backward_plan(const void *device, const attn_gradients *grads, attn_plan *plan)
{
    attn_host host;
    attn_host_leave(&host);
    attn_status status = plan_backward(device, grads, plan);
    attn_host_return(&host);
    return status;
}

static attn_status backward_workspace(const void *device, const attn_gradients *grads,
                                      uint64_t *bytes)
{
    attn_host host;
    attn_host_leave(&host);
    attn_status status = size_backward(device, grads, bytes);
    attn_host_return(&host);
    return status;
}

static attn_status backward_run(const void *device, const attn_gradients *grads,
                                const attn_call *call)
{
    attn_host host;
    attn_host_leave(&host);
    attn_status status = run_backward(device, grads, call);
    attn_host_return(&host);
    return status;
}

const attn_backend attn_cuda_backend = {
    .meaning = ATTN_OF_DEVICE,
    .streams = true,
    .name = name,
    .forward = {forward_plan, forward_workspace, forward_run},
    .backward = {backward_plan, backward_workspace, backward_run},
    .merge = attn_cuda_merge,
    .merge_backward = attn_cuda_merge_backward,
    .dropout_mask = attn_cuda_dropout_mask,
    .quantize = attn_cuda_quantize,
    .dequantize = attn_cuda_dequantize,
};
