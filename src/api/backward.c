/*
 * backward.c: entry point of the backward pass: copies and checks the arguments, and hands them
 * to the context's device.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/error.h"
#include "cpu/machine/host.h"

typedef struct backward_call {
    attn_context *context;
    attn_backward_args args;
    attn_forward_args forward; /* args.forward points here */
    attn_gradients gradients;
} backward_call;

/* Both structs, whatever versions of the header they come from. */
static attn_status copy_args(backward_call *c, const attn_backward_args *args)
{
    TRY(attn_copy_args(&c->args, sizeof c->args, args, "attn_backward_args"));
    if (c->args.forward == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "attn_backward_args.forward is NULL");
    }
    TRY(attn_copy_args(&c->forward, sizeof c->forward, c->args.forward, "attn_forward_args"));
    c->args.forward = &c->forward;
    return ATTN_OK;
}

static attn_status prepare(backward_call *c, attn_context *context, const attn_backward_args *args,
                           int meaning)
{
    TRY(copy_args(c, args));
    TRY(attn_context_get(context, &c->context));
    TRY(attn_context_takes_stream(c->context, c->args.stream));
    attn_host host;
    attn_host_leave(&host); /* as in forward.c */
    attn_status status =
        attn_gradients_init(&c->gradients, &c->args, meaning | c->context->backend->meaning);
    attn_host_return(&host);
    return status;
}

attn_status attn_backward(attn_context *context, const attn_backward_args *args)
{
    backward_call c;
    TRY(prepare(&c, context, args, 0));
    const attn_call call = {c.args.workspace, c.args.workspace_bytes, c.args.stream};
    return c.context->backend->backward.run(c.context->device, &c.gradients, &call);
}

attn_status attn_backward_workspace(attn_context *context, const attn_backward_args *args,
                                    uint64_t *bytes)
{
    backward_call c;
    if (bytes == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "bytes is NULL");
    }
    *bytes = 0;
    TRY(prepare(&c, context, args, ATTN_OF_SHAPES));
    return c.context->backend->backward.workspace(c.context->device, &c.gradients, bytes);
}

attn_status attn_backward_plan(attn_context *context, const attn_backward_args *args,
                               attn_plan *plan)
{
    backward_call c;
    attn_plan out = {.threads = 0};
    TRY(prepare(&c, context, args, ATTN_OF_SHAPES));
    TRY(c.context->backend->backward.plan(c.context->device, &c.gradients, &out));
    return attn_copy_out(plan, &out, sizeof out, "attn_plan");
}
