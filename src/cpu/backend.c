/*
 * backend.c: see backend.h. Plans and runs of both passes, each with a workspace of the caller's or
 * of the context's allocator.
 */
#include "cpu/backend.h"
#include "cpu/append.h"
#include "core/error.h"
#include "core/overlap.h"
#include "cpu/backward/backward.h"
#include "cpu/forward/forward.h"
#include "cpu/machine/host.h"
#include "cpu/machine/workspace.h"
#include <stdio.h>
#include <string.h>

attn_status attn_cpu_machine(const attn_cpu_device *device, attn_machine *machine)
{
    *machine = device->machine;
    if (!device->own_pool) {
        machine->threads = device->executor.num_threads(device->executor.user);
        if (machine->threads < 1) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "executor.num_threads returned %d",
                             machine->threads);
        }
    }
    return ATTN_OK;
}

static const char *name(const void *device)
{
    (void)device;
    return "the CPU";
}

/* Writes names of instruction sets: "avx512, avx512bf16 or amx". */
static void list_sets(const attn_isa *first, const attn_isa *last, char *list, size_t size)
{
    size_t used = 0;
    for (const attn_isa *isa = first; isa <= last && used < size; isa++) {
        const char *before = isa == first ? "" : isa < last ? ", " : " or ";
        used += (size_t)snprintf(list + used, size - used, "%s%s", before, isa->name);
    }
}

/* Why these kernels and not better ones. An instruction set may run a call on another one's
 * table: for its type, or for the bits that it asks for. */
static void explain(const attn_cpu_device *device, const attn_ukernel *table, char *why,
                    size_t size)
{
    int count;
    const attn_isa *isas = attn_isas(&count), *isa = device->machine.isa,
                   *best = attn_select(device->machine.features, NULL);
    const size_t own = strlen(isa->name);
    if (strncmp(table->name, isa->name, own) != 0 || table->name[own] != '_') {
        const int used = snprintf(why, size, "%s runs such calls on %s; ", isa->name, table->name);
        const size_t there = used > 0 && (size_t)used < size ? (size_t)used : 0;
        why += there, size -= there;
    }
    if (best != isa) {
        (void)snprintf(why, size, "the context or ATTN_CPU asked for %s; the default here is %s",
                       isa->name, best->name);
    } else if (best != &isas[count - 1] && (best[1].needs & ~device->machine.features) == 0) {
        (void)snprintf(why, size, "%s is the default here: this CPU is slower with %s", best->name,
                       best[1].name);
    } else if (best != &isas[count - 1]) {
        char better[64];
        list_sets(best + 1, &isas[count - 1], better, sizeof better);
        (void)snprintf(why, size, "%s is the best table here: this CPU lacks what %s needs",
                       best->name, better);
    } else {
        (void)snprintf(why, size, "%s is the best table of this build", best->name);
    }
}

/* The members of a plan that follow from the table. */
static void describe_kernel(const attn_cpu_device *device, const attn_ukernel *table,
                            attn_plan *plan)
{
    plan->kernel = table->name;
    plan->strip = table->strip;
    plan->bits = table->bits;
    plan->sum_bits = 8 * table->real_size;
    plan->vector_bits = table->vector_bits;
    plan->tile_products = table->tile_products;
    plan->pair_products = table->pair_products;
    plan->input_loss = table->losses.inputs;
    plan->weight_loss = table->losses.weights;
    explain(device, table, plan->why, sizeof plan->why);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Makes the plan, which rounds scales, in the default floating-point environment. The caller's
 * executor, which says how many threads there are, is asked before that, in the caller's own. */
static attn_status make_forward(const attn_cpu_device *device, const attn_problem *problem,
                                attn_cpu_plan *plan)
{
    attn_machine machine;
    attn_host host;
    TRY(attn_cpu_machine(device, &machine));
    attn_host_leave(&host);
    attn_status status = attn_cpu_plan_forward(plan, problem, &machine);
    attn_host_return(&host);
    return status;
}

/* The workspace of a call: none where a call has nothing to write, and so no items. */
static uint64_t forward_bytes(const attn_cpu_plan *plan)
{
    return plan->schedule.items > 0 ? plan->workspace_bytes : 0;
}

static attn_status forward_plan(const void *device, const attn_problem *problem, attn_plan *out)
{
    attn_cpu_plan plan;
    TRY(make_forward(device, problem, &plan));
    describe_kernel(device, plan.table, out);
    out->threads = plan.threads;
    out->key_block = plan.table->key_tile;
    out->rows_per_item = plan.schedule.block_rows;
    out->items = plan.schedule.items * plan.pieces.count;
    out->workspace_bytes = forward_bytes(&plan);
    attn_cpu_forward_costs(&plan, problem, out);
    return ATTN_OK;
}

static attn_status forward_workspace(const void *device, const attn_problem *problem,
                                     uint64_t *bytes)
{
    attn_cpu_plan plan;
    TRY(make_forward(device, problem, &plan));
    *bytes = forward_bytes(&plan);
    return ATTN_OK;
}

static attn_status forward_run(const void *device, const attn_problem *problem,
                               const attn_call *call)
{
    const attn_cpu_device *cpu = device;
    attn_cpu_plan plan;
    attn_workspace workspace;
    TRY(make_forward(cpu, problem, &plan));
    uint64_t bytes = attn_handed_in(call, forward_bytes(&plan));
    TRY(attn_problem_overlaps(problem, call->workspace, bytes));
    if (plan.schedule.items > 0) {
        TRY(attn_workspace_open(&workspace, &cpu->allocator, plan.workspace_bytes, call));
        attn_problem step;
        if (attn_cpu_appends(problem)) { /* else a copy would be a tenth of a short call */
            step = attn_cpu_append(problem, &cpu->executor, (char *)workspace.first + plan.rotated);
            problem = &step;
        }
        attn_cpu_forward(&plan, problem, &cpu->executor, workspace.first);
        attn_workspace_close(&workspace, &cpu->allocator);
    }
    return ATTN_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

static attn_status make_backward(const attn_cpu_device *device, const attn_gradients *grads,
                                 attn_grad_plan *plan)
{
    attn_machine machine;
    attn_host host;
    TRY(attn_cpu_machine(device, &machine));
    attn_host_leave(&host);
    attn_status status = attn_cpu_plan_backward(plan, grads, &machine);
    attn_host_return(&host);
    return status;
}

static attn_status backward_plan(const void *device, const attn_gradients *grads, attn_plan *out)
{
    attn_grad_plan plan;
    TRY(make_backward(device, grads, &plan));
    describe_kernel(device, plan.table, out);
    out->threads = plan.threads;
    out->key_block = plan.table->grad->key_tile;
    out->workspace_bytes = plan.workspace_bytes;
    attn_cpu_backward_costs(&plan, grads, out);
    return ATTN_OK;
}

static attn_status backward_workspace(const void *device, const attn_gradients *grads,
                                      uint64_t *bytes)
{
    attn_grad_plan plan;
    TRY(make_backward(device, grads, &plan));
    *bytes = plan.workspace_bytes;
    return ATTN_OK;
}

static attn_status backward_run(const void *device, const attn_gradients *grads,
                                const attn_call *call)
{
    const attn_cpu_device *cpu = device;
    attn_grad_plan plan;
    attn_workspace workspace;
    TRY(make_backward(cpu, grads, &plan));
    uint64_t bytes = attn_handed_in(call, plan.workspace_bytes);
    TRY(attn_gradients_overlaps(grads, call->workspace, bytes));
    if (plan.workspace_bytes > 0) {
        TRY(attn_workspace_open(&workspace, &cpu->allocator, plan.workspace_bytes, call));
        attn_cpu_backward(&plan, grads, &cpu->executor, workspace.first);
        attn_workspace_close(&workspace, &cpu->allocator);
    }
    return ATTN_OK;
}

const attn_backend attn_cpu_backend = {
    .name = name,
    .forward = {forward_plan, forward_workspace, forward_run},
    .backward = {backward_plan, backward_workspace, backward_run},
    .merge = attn_cpu_merge,
    .merge_backward = attn_cpu_merge_backward,
    .dropout_mask = attn_cpu_dropout_mask,
    .quantize = attn_cpu_quantize,
    .dequantize = attn_cpu_dequantize,
};
