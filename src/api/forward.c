/*
 * forward.c: the front door of the forward pass: copy the arguments, validate, plan, hand over.
 */
#include "api/args.h"
#include "api/workspace.h"
#include "core/error.h"
#include "core/overlap.h"
#include "cpu/machine/host.h"
#include <stdio.h>
#include <string.h>

typedef struct forward_call {
    attn_context *context;
    attn_forward_args args;
    attn_problem problem;
    attn_machine machine;
    attn_cpu_plan plan;
} forward_call;

static attn_status check_and_plan(forward_call *c, int meaning)
{
    if (c->context->cuda) {
        return attn_problem_init(&c->problem, &c->args, meaning | ATTN_OF_DEVICE);
    }
    attn_status status = attn_problem_init(&c->problem, &c->args, meaning);
    if (status == ATTN_OK && c->args.stream != NULL) {
        status = attn_fail(ATTN_ERR_INVALID_ARGUMENT, "stream = %p, but the context is for the CPU",
                           c->args.stream);
    }
    return status == ATTN_OK ? attn_cpu_plan_forward(&c->plan, &c->problem, &c->machine) : status;
}

static attn_status prepare(forward_call *c, attn_context *context, const attn_forward_args *args,
                           int meaning)
{
    attn_status status = attn_copy_args(&c->args, sizeof c->args, args, "attn_forward_args");
    if (status == ATTN_OK) {
        status = attn_context_get(context, &c->context);
    }
    if (status == ATTN_OK) {
        status = attn_context_machine(c->context, &c->machine);
    }
    if (status == ATTN_OK) {
        attn_host host;
        /* scales are computed, and must not depend on the host's rounding mode */
        attn_host_leave(&host);
        status = check_and_plan(c, meaning);
        attn_host_return(&host);
    }
    return status;
}

/* A GPU's workspace is for speed only, and is never allocated here. */
static attn_status run_cuda(const forward_call *c)
{
    const attn_cuda_call call = {c->args.stream,
                                 c->args.workspace ? attn_align_up(c->args.workspace) : NULL,
                                 c->args.workspace_bytes};
    attn_status status = attn_problem_overlaps(&c->problem, call.workspace, call.workspace_bytes);
    if (status != ATTN_OK) {
        return status;
    }
    attn_host host;
    attn_host_leave(&host); /* as in prepare() */
    status = attn_cuda_forward(c->context->cuda, &c->problem, &call);
    attn_host_return(&host);
    return status;
}

/* What the call needs: nothing if nothing is to be written. */
static uint64_t workspace_bytes(const forward_call *c)
{
    return c->plan.schedule.items > 0 ? c->plan.workspace_bytes : 0;
}

attn_status attn_forward(attn_context *context, const attn_forward_args *args)
{
    forward_call c;
    attn_status status = prepare(&c, context, args, 0);
    if (status == ATTN_OK && c.context->cuda) {
        return run_cuda(&c);
    }
    if (status == ATTN_OK) {
        status = attn_problem_overlaps(&c.problem, c.args.workspace, workspace_bytes(&c));
    }
    if (status != ATTN_OK || c.plan.schedule.items == 0) {
        return status;
    }
    attn_workspace w;
    status = attn_workspace_open(&w, c.context, c.plan.workspace_bytes, c.args.workspace,
                                 c.args.workspace_bytes);
    if (status == ATTN_OK) {
        attn_cpu_forward(&c.plan, &c.problem, &c.context->executor, w.first);
        attn_workspace_close(&w, c.context);
    }
    return status;
}

attn_status attn_forward_workspace(attn_context *context, const attn_forward_args *args,
                                   uint64_t *bytes)
{
    forward_call c;
    if (bytes == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "bytes is NULL");
    }
    attn_status status = prepare(&c, context, args, ATTN_OF_SHAPES);
    *bytes = 0;
    if (status == ATTN_OK && c.context->cuda) {
        attn_plan plan;
        status = attn_cuda_plan_forward(c.context->cuda, &c.problem, &plan);
        *bytes = status == ATTN_OK ? plan.workspace_bytes : 0;
    } else if (status == ATTN_OK) {
        *bytes = workspace_bytes(&c);
    }
    return status;
}

/* ---- plan ------------------------------------------------------------------------------------ */

static void explain(const forward_call *c, char *why, size_t size)
{
    int count;
    const attn_isa *isas = attn_isas(&count), *best = attn_select(c->context->features, NULL);
    if (best != c->machine.isa) {
        (void)snprintf(why, size, "the context or ATTN_CPU asked for %s; the default here is %s",
                       c->machine.isa->name, best->name);
    } else if (best != &isas[count - 1]) {
        (void)snprintf(why, size, "%s is the best this CPU runs; it lacks what %s needs",
                       best->name, best[1].name);
    } else {
        (void)snprintf(why, size, "%s is the best table of this build", best->name);
    }
}

attn_status attn_forward_plan(attn_context *context, const attn_forward_args *args, attn_plan *plan)
{
    forward_call c;
    attn_status status = prepare(&c, context, args, ATTN_OF_SHAPES);
    if (status != ATTN_OK) {
        return status;
    }
    if (c.context->cuda) {
        attn_plan gpu = {.threads = 0};
        status = attn_cuda_plan_forward(c.context->cuda, &c.problem, &gpu);
        return status == ATTN_OK ? attn_copy_out(plan, &gpu, sizeof gpu, "attn_plan") : status;
    }
    attn_tile_count tiles = attn_cpu_count_tiles(&c.plan, &c.problem);
    attn_plan out = {
        .kernel = c.plan.uk->name,
        .threads = c.plan.threads,
        .strip = c.plan.uk->strip,
        .key_block = c.plan.uk->key_tile,
        .rows_per_item = c.plan.schedule.block_rows,
        .items = c.plan.schedule.items,
        .workspace_bytes = workspace_bytes(&c),
        .bits = c.plan.uk->bits,
        .sum_bits = 8 * c.plan.uk->real_size,
        .vector_bits = c.plan.uk->vector_bits,
        .tile_products = c.plan.uk->tile_products,
        .input_loss = c.plan.uk->losses.inputs,
        .weight_loss = c.plan.uk->losses.weights,
    };
    double blocks =
        (double)c.problem.group * (double)c.problem.q.shape[1] / (double)c.plan.schedule.block_rows;
    explain(&c, out.why, sizeof out.why);
    attn_count_costs(&tiles, &c.problem, blocks, c.plan.uk->real_size, &out);
    return attn_copy_out(plan, &out, sizeof out, "attn_plan");
}
