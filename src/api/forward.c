/*
 * forward.c: entry point of the forward pass: copies and checks the arguments, and hands them to
 * the context's device.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/error.h"
#include "cpu/machine/host.h"

typedef struct forward_call {
    attn_context *context;
    attn_forward_args args;
    attn_problem problem;
} forward_call;

static attn_status prepare(forward_call *c, attn_context *context, const attn_forward_args *args,
                           int meaning)
{
    TRY(attn_copy_args(&c->args, sizeof c->args, args, "attn_forward_args"));
    TRY(attn_context_get(context, &c->context));
    TRY(attn_context_takes_stream(c->context, c->args.stream));
    attn_host host;
    attn_host_leave(&host); /* scales are rounded, whatever the host's rounding mode */
    attn_status status =
        attn_problem_init(&c->problem, &c->args, meaning | c->context->backend->meaning);
    attn_host_return(&host);
    return status;
}

attn_status attn_forward(attn_context *context, const attn_forward_args *args)
{
    forward_call c;
    TRY(prepare(&c, context, args, 0));
    const attn_call call = {c.args.workspace, c.args.workspace_bytes, c.args.stream};
    return c.context->backend->forward.run(c.context->device, &c.problem, &call);
}

attn_status attn_forward_workspace(attn_context *context, const attn_forward_args *args,
                                   uint64_t *bytes)
{
    forward_call c;
    if (bytes == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "bytes is NULL");
    }
    *bytes = 0;
    TRY(prepare(&c, context, args, ATTN_OF_SHAPES));
    return c.context->backend->forward.workspace(c.context->device, &c.problem, bytes);
}

attn_status attn_forward_plan(attn_context *context, const attn_forward_args *args, attn_plan *plan)
{
    forward_call c;
    attn_plan out = {.threads = 0};
    TRY(prepare(&c, context, args, ATTN_OF_SHAPES));
    TRY(c.context->backend->forward.plan(c.context->device, &c.problem, &out));
    return attn_copy_out(plan, &out, sizeof out, "attn_plan");
}
