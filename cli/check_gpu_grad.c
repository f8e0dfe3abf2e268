/*
 * check_gpu_grad.c: see check_gpu_grad.h.
 */
#include "check_gpu_grad.h"
#include "alike.h"
#include "args.h"
#include "check_limit.h"
#include "gpu.h"
#include "gpu_copy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The tensors of a call in the GPU's memory. Two calls share the inputs of the forward pass. */
struct copies {
    gpu_copy forward[ARGS_TENSORS], gradients[2][ARGS_GRADIENTS];
};

static void put(struct copies *copies, problem_tensors *tensors)
{
    for (int i = 0; i < ARGS_TENSORS; i++) {
        copies->forward[i] = gpu_copy_tensor(args_at(&tensors->args, i));
    }
    for (int i = 0; i < 2 * ARGS_GRADIENTS; i++) {
        copies->gradients[i / ARGS_GRADIENTS][i % ARGS_GRADIENTS] =
            gpu_copy_tensor(args_gradient_at(&tensors->grad, i % ARGS_GRADIENTS));
    }
}

static void drop(struct copies *copies)
{
    for (int i = 0; i < ARGS_TENSORS; i++) {
        gpu_copy_free(&copies->forward[i]);
    }
    for (int i = 0; i < 2 * ARGS_GRADIENTS; i++) {
        gpu_copy_free(&copies->gradients[i / ARGS_GRADIENTS][i % ARGS_GRADIENTS]);
    }
}

/* A workspace with NaN everywhere, or with a finite number: what a kernel forgets to write is found
 * by one of them. A block with a NaN is done again by plain kernels, rightly, whatever it came
 * from; what is finite is not. */
static void *dirty_workspace(uint64_t bytes, bool finite)
{
    void *const workspace = gpu_alloc(bytes);
    gpu_fill(workspace, finite ? 0x47c35000 : 0xffffffff, bytes); /* 1e5 */
    gpu_wait();
    return workspace;
}

/* One call; its outputs come back. */
static attn_status call(attn_context *context, problem_tensors *tensors, struct copies *copies,
                        int number, void *stream, uint64_t workspace_bytes, bool *intact)
{
    attn_forward_args forward = tensors->args;
    attn_backward_args args = tensors->grad;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        *args_at(&forward, i) = copies->forward[i].there;
    }
    for (int i = 0; i < ARGS_GRADIENTS; i++) {
        *args_gradient_at(&args, i) = copies->gradients[number][i].there;
    }
    args.forward = &forward;
    args.stream = stream;
    args.workspace = dirty_workspace(workspace_bytes, number == 1);
    args.workspace_bytes = workspace_bytes;
    check_limit_start();
    attn_status status = attn_backward(context, &args);
    gpu_wait();
    check_limit_stop();
    gpu_free(args.workspace);
    for (int i = 0; i < ARGS_GRADIENTS; i++) {
        if (args_gradients[i].output) {
            gpu_copy_back(&copies->gradients[number][i]);
            *intact = *intact && gpu_margins_intact(&copies->gradients[number][i]);
        }
    }
    *intact = *intact && problem_tensors_intact(tensors);
    return status;
}

/* O and LSE on the CPU, as exact as a forward pass can be. */
static attn_status run_forward(const problem_tensors *tensors)
{
    attn_forward_args args = tensors->args;
    args.flags = (args.flags & ~(uint64_t)ATTN_BF16X3) | ATTN_PRECISE;
    return attn_forward(NULL, &args);
}

static attn_status run(attn_context *context, void *const streams[2], int64_t runs,
                       problem_tensors *tensors, double kappa, check_grad_outcome *out)
{
    attn_plan plan = {.struct_size = sizeof plan};
    struct copies copies;
    uint64_t first = 0;
    attn_status status = attn_backward_plan(context, &tensors->grad, &plan);
    status = status == ATTN_OK ? run_forward(tensors) : status;
    if (status != ATTN_OK) {
        return status;
    }
    snprintf(out->kernel, sizeof out->kernel, "%s", plan.kernel);
    out->allowed = errors_allowed(plan.input_loss, plan.weight_loss).grad_c + kappa;
    put(&copies, tensors);
    out->verdict.equal = true;
    for (int64_t i = 0; (i < 2 || i < runs) && status == ATTN_OK; i++) {
        status = call(context, tensors, &copies, (int)(i % 2), streams[i % 2], plan.workspace_bytes,
                      &out->verdict.intact);
        const uint64_t now = check_hash_gradients(&tensors->grad, 0);
        first = i == 0 ? now : first;
        out->verdict.equal = out->verdict.equal && now == first;
    }
    drop(&copies);
    return status;
}

void check_gpu_gradients(attn_context *context, void *const streams[2], int64_t runs,
                         const problem_spec *problem, check_grad_outcome *out)
{
    problem_tensors tensors;
    struct check_verdict *verdict = &out->verdict;
    if (!problem_tensors_create(problem, PLACE_PLAIN, &tensors)) {
        exit(cli_error(CLI_INTERNAL, "out of memory"));
    }
    *out = (check_grad_outcome){
        .verdict = {.backward = true, .intact = true, .exact = true, .exact_lse = true}};
    const double kappa =
        alike_possible(problem) ? alike_kappa(&tensors.args, true, ALIKE_RUNNING) : 0;
    out->status = run(context, streams, runs, &tensors, kappa, out);
    if (out->status != ATTN_OK) {
        snprintf(out->sentence, sizeof out->sentence, "%s", attn_last_error());
    } else {
        grad_errors_measure(&tensors.grad, &verdict->gradients);
        for (int n = 0; n < ORACLE_GRADIENTS; n++) {
            const double c = verdict->gradients.c[n];
            verdict->grad_c = isnan(c) ? (double)INFINITY : fmax(verdict->grad_c, c);
        }
        check_judge_gradients(verdict, problem, out->allowed);
        verdict->ok = verdict->intact && verdict->equal && verdict->exact_grad;
    }
    problem_tensors_free(&tensors);
}
