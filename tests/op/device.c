/*
 * device.c: see device.h.
 */
#include "device.h"
#include "args.h"
#include "gpu.h"

static attn_context *context;
static bool on_gpu;

bool device_open(bool gpu)
{
    on_gpu = gpu;
    context = gpu ? trial_gpu() : NULL;
    return !gpu || context != NULL;
}

void device_close(void)
{
    attn_context_destroy(context);
}

attn_context *device_context(void)
{
    return context;
}

attn_tensor device_place(device_call *call, attn_tensor host)
{
    if (!on_gpu || host.data == NULL) {
        return host;
    }
    assert_true(call->count < DEVICE_PLACES);
    call->copies[call->count] = gpu_copy_tensor(&host);
    return call->copies[call->count++].there;
}

void device_place_all(device_call *call, const op_trial *trial)
{
    call->count = 0;
    call->forward = *trial->args, call->backward = trial->tensors.grad;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        attn_tensor *tensor = args_at(&call->forward, i);
        *tensor = device_place(call, *tensor);
    }
    for (int i = 0; i < ARGS_GRADIENTS; i++) {
        attn_tensor *tensor = args_gradient_at(&call->backward, i);
        *tensor = device_place(call, *tensor);
    }
    call->backward.forward = &call->forward;
}

void device_take_back(device_call *call)
{
    on_gpu ? gpu_wait() : (void)0;
    for (int i = 0; i < call->count; i++) {
        gpu_copy_back(&call->copies[i]);
        assert_true(gpu_margins_intact(&call->copies[i]));
        gpu_copy_free(&call->copies[i]);
    }
}

/* Workspace of a plan on a GPU; on the CPU the call takes its own. */
static void *take_workspace(const attn_plan *plan)
{
    return on_gpu ? gpu_alloc((size_t)plan->workspace_bytes) : NULL;
}

static void end_call(attn_status status, void *workspace)
{
    if (status != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    if (on_gpu) {
        gpu_wait();
        gpu_free(workspace);
    }
}

void device_forward(attn_forward_args args)
{
    attn_plan plan = {.struct_size = sizeof plan};
    attn_status status = attn_forward_plan(context, &args, &plan);
    void *workspace = take_workspace(&plan);
    args.workspace = workspace, args.workspace_bytes = workspace ? plan.workspace_bytes : 0;
    end_call(status == ATTN_OK ? attn_forward(context, &args) : status, workspace);
}

void device_backward(attn_backward_args args)
{
    attn_plan plan = {.struct_size = sizeof plan};
    attn_status status = attn_backward_plan(context, &args, &plan);
    void *workspace = take_workspace(&plan);
    args.workspace = workspace, args.workspace_bytes = workspace ? plan.workspace_bytes : 0;
    end_call(status == ATTN_OK ? attn_backward(context, &args) : status, workspace);
}
