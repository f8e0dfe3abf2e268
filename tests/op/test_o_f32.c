/*
 * test_o_f32.c: O in f32 beside an o of 16 bits: `test_o_f32` on the CPU, `test_o_f32 gpu` on this
 * machine's GPU; it is skipped where there is none. All tables: test_grad_cases.c.
 */
#include "device.h"
#include "grad_trial.h"
#include "oracle.h"

#include <stdio.h>

static void run(op_trial *trial)
{
    device_call call;
    device_place_all(&call, trial);
    device_forward(call.forward);
    device_backward(call.backward);
    device_take_back(&call);
}

static void assert_rounded(const attn_tensor *o, const attn_tensor *o_f32)
{
    const int64_t *n = o->shape;
    for (int64_t at = 0; at < n[0] * n[1] * n[2] * n[3]; at++) {
        const int64_t c = at % n[3], h = at / n[3] % n[2], i = at / n[3] / n[2] % n[1],
                      b = at / n[3] / n[2] / n[1];
        unsigned char want[8];
        attn_tensor one = attn_tensor_bshd(want, (attn_dtype)o->dtype, 1, 1, 1, 1);
        inputs_store(&one, 0, 0, 0, 0, oracle_element(o_f32, b, i, h, c));
        assert_true(oracle_element(o, b, i, h, c) == oracle_element(&one, 0, 0, 0, 0));
    }
}

/* o_f32 has the bits of an o of f32, o is o_f32 rounded, and gradients read o_f32 in place of o. */
static void check(const char *line, const char *dtype)
{
    op_trial beside = trial_open("%s dtype=%s", line, dtype),
             alone = trial_open("%s dtype=%s o_dtype=f32", line, dtype),
             room = trial_open("%s dtype=%s o_dtype=f32", line, dtype);
    beside.args->o_f32 = room.args->o;
    run(&beside);
    run(&alone);
    assert_same_tensor(&beside.args->o_f32, &alone.args->o);
    assert_rounded(&beside.args->o, &beside.args->o_f32);
    assert_same_gradients(&beside.tensors.grad, &alone.tensors.grad);
    beside.args->o_f32.data = NULL; /* memory of room */
    trial_close(&beside);
    trial_close(&alone);
    trial_close(&room);
}

static void test_o_f32(void **state)
{
    static const char *const lines[] = {
        "hq=2 nq=40 nk=70 d=8", "b=2 hq=4 hkv=2 nq=150 nk=300 d=64 causal=1 layout=bhsd",
        "hq=2 nq=130 nk=200 d=128 used_q=100 used_k=90", "hq=8 hkv=1 nq=1 nk=700 d=64",
        "b=3 hq=2 nq=64 nk=80 d=64 causal=1 dropout=0.2"};
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        char line[200];
        snprintf(line, sizeof line, "%s lse=1 grad_dtype=f32 pass=backward", lines[n]);
        check(line, "f16");
        check(line, "bf16");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_o_f32)};
    const bool gpu = argc > 1 && strcmp(argv[1], "gpu") == 0;
    const int failed = device_open(gpu) ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
    device_close();
    return failed;
}
