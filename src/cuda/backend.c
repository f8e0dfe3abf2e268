/*
 * backend.c: the operations of a GPU as the front door calls them.
 */
#include "cpu/machine/host.h"
#include "cuda/backward/backward.h"
#include "cuda/forward/forward.h"
#include "cuda/merge/merge.h"

static const char *name(const void *device)
{
    return attn_cuda_name(device);
}

static attn_status forward_plan(const void *device, const attn_problem *problem, attn_plan *plan)
{
    attn_host host;
    attn_host_leave(&host); /* scales are rounded in the default environment, here and below */
    attn_status status = attn_cuda_plan_forward(device, problem, plan);
    attn_host_return(&host);
    return status;
}

static attn_status forward_workspace(const void *device, const attn_problem *problem,
                                     uint64_t *bytes)
{
    attn_cuda_plan plan;
    attn_host host;
    attn_host_leave(&host);
    attn_status status = attn_cuda_plan_make(&plan, device, problem, NULL);
    attn_host_return(&host);
    *bytes = status == ATTN_OK ? plan.workspace_bytes : 0;
    return status;
}

/* A GPU's workspace is for speed only, and is never allocated here. */
static attn_status forward_run(const void *device, const attn_problem *problem,
                               const attn_call *call)
{
    attn_call aligned = *call;
    attn_host host;
    aligned.workspace = call->workspace ? attn_align_up(call->workspace) : NULL;
    attn_host_leave(&host);
    attn_status status = attn_cuda_forward(device, problem, &aligned);
    attn_host_return(&host);
    return status;
}

static attn_status backward_plan(const void *device, const attn_gradients *grads, attn_plan *plan)
{
    attn_host host;
    attn_host_leave(&host);
    attn_status status = attn_cuda_plan_backward(device, grads, plan);
    attn_host_return(&host);
    return status;
}

static attn_status backward_workspace(const void *device, const attn_gradients *grads,
                                      uint64_t *bytes)
{
    attn_cuda_grad_plan plan;
    attn_host host;
    attn_host_leave(&host);
    attn_status status = attn_cuda_grad_plan_make(&plan, device, grads);
    attn_host_return(&host);
    *bytes = status == ATTN_OK ? plan.workspace_bytes : 0;
    return status;
}

static attn_status backward_run(const void *device, const attn_gradients *grads,
                                const attn_call *call)
{
    attn_host host;
    attn_host_leave(&host);
    attn_status status = attn_cuda_backward(device, grads, call);
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
};
