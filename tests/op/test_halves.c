/*
 * test_halves.c: two halves of the keys as calls of their own, merged, are the whole: contract, D4.
 * Causality, window, ALiBi and dropout follow from the origins. `test_halves` runs on the CPU,
 * `test_halves gpu` on this machine's GPU; it is skipped where there is none. With `--every=N` it
 * tries one problem in N.
 *
 * Both judged against the oracle of the whole. Each half is within A1 of its own part and the merge
 * weights the two by their LSEs, so O may be off by the errors of two calls and of the merge.
 * Gradients of a half are computed from the merged O and LSE; dQ is the sum of two.
 */
#include "args.h"
#include "errors.h"
#include "gpu.h"
#include "gpu_copy.h"
#include "grad_errors.h"
#include "trial.h"

#include <stdio.h>

enum { PLACES = 64, PARTS = 2, CALLS = 3 };

/* NULL: the CPU. */
static attn_context *context;
static bool on_gpu;
static int every = 1;

/* A call whose tensors lie where the context reads them. */
typedef struct placed {
    attn_forward_args forward;
    attn_backward_args backward;
    gpu_copy copies[PLACES];
    int count;
} placed;

static attn_tensor place(placed *call, attn_tensor host)
{
    if (!on_gpu || host.data == NULL) {
        return host;
    }
    assert_true(call->count < PLACES);
    call->copies[call->count] = gpu_copy_tensor(&host);
    return call->copies[call->count++].there;
}

static void place_all(placed *call, const op_trial *whole)
{
    call->count = 0;
    call->forward = *whole->args, call->backward = whole->tensors.grad;
    for (int i = 0; i < ARGS_TENSORS; i++) {
        attn_tensor *tensor = args_at(&call->forward, i);
        *tensor = place(call, *tensor);
    }
    for (int i = 0; i < ARGS_GRADIENTS; i++) {
        attn_tensor *tensor = args_gradient_at(&call->backward, i);
        *tensor = place(call, *tensor);
    }
    call->backward.forward = &call->forward;
}

/* Copies everything back to the host. */
static void take_back(placed *call)
{
    on_gpu ? gpu_wait() : (void)0;
    for (int i = 0; i < call->count; i++) {
        gpu_copy_back(&call->copies[i]);
        assert_true(gpu_margins_intact(&call->copies[i]));
        gpu_copy_free(&call->copies[i]);
    }
}

/* A dense tensor of a shape, filled with NaN. The caller frees its data. */
static attn_tensor room_like(const attn_tensor *like)
{
    const int64_t *n = like->shape;
    const size_t bytes = (size_t)(n[0] * n[1] * n[2] * n[3]) * attn_dtype_size(like->dtype);
    void *data = malloc(bytes);
    assert_non_null(data);
    memset(data, 0xFF, bytes);
    return attn_tensor_bshd(data, (attn_dtype)like->dtype, n[0], n[1], n[2], n[3]);
}

static attn_tensor index_of(const int64_t *value)
{
    return attn_tensor_bshd((void *)(uintptr_t)value, ATTN_I64, 1, 1, 1, 1);
}

/* What the halves have of their own, on the host: the two parts of O, LSE and dQ. */
typedef struct halves {
    attn_tensor o[PARTS], lse[PARTS], dq[PARTS];
    int64_t first[PARTS], keys[PARTS];
} halves;

static void open_halves(halves *parts, const op_trial *whole)
{
    const int64_t nk = whole->args->k.shape[1], cut = nk / 2 + 7;
    for (int n = 0; n < PARTS; n++) {
        parts->o[n] = room_like(&whole->args->o);
        parts->lse[n] = room_like(&whole->args->lse);
        parts->dq[n] = room_like(&whole->tensors.grad.dq);
        parts->first[n] = n ? cut : 0, parts->keys[n] = n ? nk - cut : cut;
    }
}

static void close_halves(halves *parts)
{
    for (int n = 0; n < PARTS; n++) {
        free(parts->o[n].data), free(parts->lse[n].data), free(parts->dq[n].data);
    }
}

/* The forward call over a half. */
static attn_forward_args forward_of(placed *call, const halves *parts, int n)
{
    attn_forward_args args = call->forward;
    args.k = tensor_slice(args.k, 1, parts->first[n], parts->keys[n]);
    args.v = tensor_slice(args.v, 1, parts->first[n], parts->keys[n]);
    args.k_origin = place(call, index_of(&parts->first[n]));
    return args;
}

/* Both calls with the workspace that they ask for. */
static void call_forward(attn_forward_args args)
{
    attn_plan plan = {.struct_size = sizeof plan};
    attn_status status = attn_forward_plan(context, &args, &plan);
    void *workspace = on_gpu ? gpu_alloc(plan.workspace_bytes) : NULL;
    args.workspace = workspace, args.workspace_bytes = workspace ? plan.workspace_bytes : 0;
    status = status == ATTN_OK ? attn_forward(context, &args) : status;
    if (status != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    on_gpu ? (gpu_wait(), gpu_free(workspace)) : (void)0;
}

static void call_backward(attn_backward_args args)
{
    attn_plan plan = {.struct_size = sizeof plan};
    attn_status status = attn_backward_plan(context, &args, &plan);
    void *workspace = on_gpu ? gpu_alloc(plan.workspace_bytes) : NULL;
    args.workspace = workspace, args.workspace_bytes = workspace ? plan.workspace_bytes : 0;
    status = status == ATTN_OK ? attn_backward(context, &args) : status;
    if (status != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    on_gpu ? (gpu_wait(), gpu_free(workspace)) : (void)0;
}

/* O and LSE of the whole: two calls and a merge. */
static void run_forward(placed *call, const halves *parts)
{
    attn_tensor o[PARTS], lse[PARTS];
    for (int n = 0; n < PARTS; n++) {
        attn_forward_args args = forward_of(call, parts, n);
        args.o = o[n] = place(call, parts->o[n]);
        args.lse = lse[n] = place(call, parts->lse[n]);
        call_forward(args);
    }
    const attn_merge_args merge = {.struct_size = sizeof merge,
                                   .parts = PARTS,
                                   .part_o = o,
                                   .part_lse = lse,
                                   .o = call->forward.o,
                                   .lse = call->forward.lse};
    assert_int_equal(attn_merge(context, &merge), ATTN_OK);
}

/* The gradients of each half's keys, and its part of dQ. */
static void run_backward(placed *call, const halves *parts)
{
    for (int n = 0; n < PARTS; n++) {
        attn_forward_args args = forward_of(call, parts, n);
        attn_backward_args back = call->backward;
        back.forward = &args;
        back.dk = tensor_slice(back.dk, 1, parts->first[n], parts->keys[n]);
        back.dv = tensor_slice(back.dv, 1, parts->first[n], parts->keys[n]);
        back.dq = place(call, parts->dq[n]);
        call_backward(back);
    }
}

static void add_dq(const attn_tensor *sum, const halves *parts)
{
    const int64_t *n = sum->shape, count = n[0] * n[1] * n[2] * n[3];
    for (int64_t at = 0; at < count; at++) {
        const int64_t c = at % n[3], h = at / n[3] % n[2], i = at / n[3] / n[2] % n[1],
                      b = at / n[3] / n[2] / n[1];
        inputs_store(sum, b, i, h, c,
                     oracle_element(&parts->dq[0], b, i, h, c) +
                         oracle_element(&parts->dq[1], b, i, h, c));
    }
}

static void judge(const op_trial *whole, const char *line)
{
    attn_plan forward = {.struct_size = sizeof forward}, backward = forward;
    error_stats outputs;
    grad_errors gradients;
    assert_int_equal(attn_forward_plan(context, whole->args, &forward), ATTN_OK);
    assert_int_equal(attn_backward_plan(context, &whole->tensors.grad, &backward), ATTN_OK);
    /* O and LSE, which the backward pass reads, have the losses of the forward pass */
    const errors_limits limits = errors_allowed(forward.input_loss, forward.weight_loss);
    const double c = CALLS * limits.c,
                 grad_c =
                     CALLS * fmax(limits.grad_c,
                                  errors_allowed(backward.input_loss, backward.weight_loss).grad_c);
    errors_measure(whole->args, 0, &outputs);
    if (!(outputs.c <= c && outputs.lse <= CALLS * 8)) {
        fail_msg("%s: O has c = %.3g, %.3g allowed; LSE %.3g", line, outputs.c, c, outputs.lse);
    }
    grad_errors_measure(&whole->tensors.grad, &gradients);
    for (int which = ORACLE_DQ; which <= ORACLE_DV; which++) {
        if (!(gradients.c[which] <= grad_c)) {
            fail_msg("%s: %s has c = %.3g, %.3g allowed", line,
                     grad_errors_name((enum oracle_gradient)which), gradients.c[which], grad_c);
        }
    }
}

static void check_line(const char *line)
{
    op_trial whole = trial_open("%s lse=1 o_dtype=f32 pass=backward grad_dtype=f32", line);
    placed call;
    halves parts;
    open_halves(&parts, &whole);
    place_all(&call, &whole);
    run_forward(&call, &parts);
    run_backward(&call, &parts);
    take_back(&call);
    add_dq(&whole.tensors.grad.dq, &parts);
    judge(&whole, line);
    close_halves(&parts);
    trial_close(&whole);
}

/* Every mask that follows from positions, each with every type: rows may see keys of one half or of
 * both. */
static void test_halves(void **state)
{
    static const char *const types[] = {"f32", "f16", "bf16"}, *const dims[] = {"32", "64", "128",
                                                                                "128 dv=64"};
    (void)state;
    if (every > 1) {
        printf("SKIPPED problems of halves: one in %d is tried here\n", every);
    }
    for (int n = 0; n < 16 * 3; n += every) {
        const int turn = n % 16;
        char line[256];
        snprintf(line, sizeof line,
                 "hq=4 hkv=2 nq=100 nk=400 q_origin=300 k_origin=0 dtype=%s d=%s causal=%d%s%s%s",
                 types[n / 16], dims[n % 4], turn & 1, turn & 2 ? " window_left=120" : "",
                 turn & 4 ? " alibi=h" : "", turn & 8 ? " dropout=0.25" : "");
        check_line(line);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_halves)};
    on_gpu = argc > 1 && strcmp(argv[1], "gpu") == 0;
    every = argc > 1 && strncmp(argv[1], "--every=", 8) == 0 ? atoi(argv[1] + 8) : 1;
    if (every < 1) {
        printf("FAIL usage: %s [gpu | --every=N]\n", argv[0]);
        return EXIT_FAILURE;
    }
    context = on_gpu ? trial_gpu() : NULL;
    const int failed = on_gpu && !context ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
    attn_context_destroy(context);
    return failed;
}
