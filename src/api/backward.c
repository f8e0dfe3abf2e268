/*
 * backward.c: the front door of the backward pass: copy the arguments, validate, plan, hand over.
 */
#include "api/args.h"
#include "api/workspace.h"
#include "core/error.h"
#include "core/overlap.h"
#include "cpu/backward/backward.h"
#include "cpu/machine/host.h"

typedef struct backward_call {
    attn_context *context;
    attn_backward_args args;
    attn_forward_args forward; /* what args.forward points to */
    attn_gradients gradients;
    attn_backward_plan plan;
} backward_call;

static attn_status check_context(const backward_call *c)
{
    if (c->context->cuda) {
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "attn_backward runs on the CPU only; the context is for %s",
                         attn_cuda_name(c->context->cuda));
    }
    return c->args.stream == NULL
               ? ATTN_OK
               : attn_fail(ATTN_ERR_INVALID_ARGUMENT, "stream = %p, but the context is for the CPU",
                           c->args.stream);
}

static attn_status check_and_plan(backward_call *c, const attn_machine *machine, int meaning)
{
    attn_status status = attn_gradients_init(&c->gradients, &c->args, meaning);
    return status == ATTN_OK ? attn_cpu_plan_backward(&c->plan, &c->gradients, machine) : status;
}

/* Both structs, whatever versions of the header they come from. */
static attn_status copy_args(backward_call *c, const attn_backward_args *args)
{
    attn_status status = attn_copy_args(&c->args, sizeof c->args, args, "attn_backward_args");
    if (status == ATTN_OK && c->args.forward == NULL) {
        status = attn_fail(ATTN_ERR_INVALID_ARGUMENT, "attn_backward_args.forward is NULL");
    }
    if (status == ATTN_OK) {
        status =
            attn_copy_args(&c->forward, sizeof c->forward, c->args.forward, "attn_forward_args");
    }
    c->args.forward = &c->forward;
    return status;
}

static attn_status prepare(backward_call *c, attn_context *context, const attn_backward_args *args,
                           int meaning)
{
    attn_machine machine;
    attn_status status = copy_args(c, args);
    if (status == ATTN_OK) {
        status = attn_context_get(context, &c->context);
    }
    if (status == ATTN_OK) {
        status = check_context(c);
    }
    if (status == ATTN_OK) {
        status = attn_context_machine(c->context, &machine);
    }
    if (status == ATTN_OK) {
        attn_host host;
        attn_host_leave(&host); /* as in forward.c */
        status = check_and_plan(c, &machine, meaning);
        attn_host_return(&host);
    }
    return status;
}

attn_status attn_backward(attn_context *context, const attn_backward_args *args)
{
    backward_call c;
    attn_workspace w;
    attn_status status = prepare(&c, context, args, 0);
    if (status == ATTN_OK) {
        status = attn_gradients_overlaps(&c.gradients, c.args.workspace, c.plan.workspace_bytes);
    }
    if (status != ATTN_OK || c.plan.workspace_bytes == 0) {
        return status;
    }
    status = attn_workspace_open(&w, c.context, c.plan.workspace_bytes, c.args.workspace,
                                 c.args.workspace_bytes);
    if (status == ATTN_OK) {
        attn_cpu_backward(&c.plan, &c.gradients, &c.context->executor, w.first);
        attn_workspace_close(&w, c.context);
    }
    return status;
}

attn_status attn_backward_workspace(attn_context *context, const attn_backward_args *args,
                                    uint64_t *bytes)
{
    backward_call c;
    if (bytes == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "bytes is NULL");
    }
    attn_status status = prepare(&c, context, args, ATTN_OF_SHAPES);
    *bytes = status == ATTN_OK ? c.plan.workspace_bytes : 0;
    return status;
}
