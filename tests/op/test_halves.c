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
#include "device.h"
#include "errors.h"
#include "grad_errors.h"

#include <stdio.h>

enum { PARTS = 2, CALLS = 3 };

static int every = 1;

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
static attn_forward_args forward_of(device_call *call, const halves *parts, int n)
{
    attn_forward_args args = call->forward;
    args.k = tensor_slice(args.k, 1, parts->first[n], parts->keys[n]);
    args.v = tensor_slice(args.v, 1, parts->first[n], parts->keys[n]);
    args.k_origin = device_place(call, index_of(&parts->first[n]));
    return args;
}

/* O and LSE of the whole: two calls and a merge. */
static void run_forward(device_call *call, const halves *parts)
{
    attn_tensor o[PARTS], lse[PARTS];
    for (int n = 0; n < PARTS; n++) {
        attn_forward_args args = forward_of(call, parts, n);
        args.o = o[n] = device_place(call, parts->o[n]);
        args.lse = lse[n] = device_place(call, parts->lse[n]);
        device_forward(args);
    }
    const attn_merge_args merge = {.struct_size = sizeof merge,
                                   .parts = PARTS,
                                   .part_o = o,
                                   .part_lse = lse,
                                   .o = call->forward.o,
                                   .lse = call->forward.lse};
    assert_int_equal(attn_merge(device_context(), &merge), ATTN_OK);
}

/* The gradients of each half's keys, and its part of dQ. */
static void run_backward(device_call *call, const halves *parts)
{
    for (int n = 0; n < PARTS; n++) {
        attn_forward_args args = forward_of(call, parts, n);
        attn_backward_args back = call->backward;
        back.forward = &args;
        back.dk = tensor_slice(back.dk, 1, parts->first[n], parts->keys[n]);
        back.dv = tensor_slice(back.dv, 1, parts->first[n], parts->keys[n]);
        back.dq = device_place(call, parts->dq[n]);
        device_backward(back);
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
    assert_int_equal(attn_forward_plan(device_context(), whole->args, &forward), ATTN_OK);
    assert_int_equal(attn_backward_plan(device_context(), &whole->tensors.grad, &backward),
                     ATTN_OK);
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
    device_call call;
    halves parts;
    open_halves(&parts, &whole);
    device_place_all(&call, &whole);
    run_forward(&call, &parts);
    run_backward(&call, &parts);
    device_take_back(&call);
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
    const bool gpu = argc > 1 && strcmp(argv[1], "gpu") == 0;
    every = argc > 1 && strncmp(argv[1], "--every=", 8) == 0 ? atoi(argv[1] + 8) : 1;
    if (every < 1) {
        printf("FAIL usage: %s [gpu | --every=N]\n", argv[0]);
        return EXIT_FAILURE;
    }
    const int failed = device_open(gpu) ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
    device_close();
    return failed;
}
