/*
 * test_far.c: keys whose probabilities are 0 in f32: their scores are far below others, or ALiBi
 * takes much off them. A NaN or an infinity there poisons its column of V in the rows that see
 * the key, whichever way sums over parts of the keys meet, and nothing else. `test_far` on the CPU,
 * `test_far gpu` on this machine's GPU; it is skipped where there is none.
 */
#include "device.h"
#include "oracle.h"

enum { COLUMN = 5 };

/* All values are 1, but for one of key 0 of sequence 0. Scores are 0, and even heads have steep
 * slopes; without slopes scores of the later half of the keys are 8 d. */
static void check_value(const char *line, double value)
{
    op_trial trial = trial_open("%s causal=1 scale=2 lse=1", line);
    const attn_forward_args *args = trial.args;
    const attn_tensor *table = &args->block_table, *o = &args->o, *k = &args->k;
    const int64_t *n = o->shape,
                  page = table->data ? (int64_t)oracle_element(table, 0, 0, 0, 0) : 0;
    device_call call;
    tensor_fill(&args->q, 1);
    tensor_fill(k, 0);
    tensor_fill(&args->v, 1);
    for (int64_t h = 0; args->alibi_slopes.data && h < n[2]; h++) {
        inputs_store(&args->alibi_slopes, 0, 0, h, 0, h % 2 ? 0x1p-12 : 8);
    }
    if (!args->alibi_slopes.data) {
        const attn_tensor later = tensor_slice(*k, 1, k->shape[1] / 2, k->shape[1] / 2);
        tensor_fill(&later, 4);
    }
    for (int64_t h = 0; h < args->v.shape[2]; h++) {
        inputs_store(&args->v, page, 0, h, COLUMN, value);
    }
    for (int64_t b = 1; table->data && b < n[0]; b++) { /* all sequences begin alike */
        const attn_tensor to = tensor_slice(*table, 0, b, 1), from = tensor_slice(*table, 0, 0, 1);
        tensor_copy(&to, &from);
    }
    device_place_all(&call, &trial);
    device_forward(call.forward);
    device_take_back(&call);
    for (int64_t at = 0; at < n[0] * n[1] * n[2] * n[3]; at++) {
        const int64_t c = at % n[3], h = at / n[3] % n[2], i = at / n[3] / n[2] % n[1],
                      b = at / n[3] / n[2] / n[1];
        const bool poisoned = c == COLUMN && (b == 0 || table->data);
        if (isfinite(trial_o(&trial, b, i, h, c)) == poisoned) {
            fail_msg("%s: V is %g, and O[%lld][%lld][%lld][%lld] %g", line, value, (long long)b,
                     (long long)i, (long long)h, (long long)c, trial_o(&trial, b, i, h, c));
        }
    }
    trial_close(&trial);
}

static void check(const char *line)
{
    check_value(line, NAN);
    check_value(line, INFINITY);
}

static void test_far_keys(void **state)
{
    (void)state;
    check("hq=2 nq=150 nk=2000 d=64 dtype=bf16 alibi=h");
    check("hq=2 nq=130 nk=2000 d=128 dtype=f16");
    check("hq=2 nq=1 nk=9000 d=64 dtype=bf16");
    check("hq=8 hkv=2 nq=4 nk=9000 d=128 dtype=f16 alibi=h");
    check("hq=8 hkv=2 nq=1 nk=9000 d=128 dtype=bf16 page=16 alibi=h");
    check("b=8 hq=8 hkv=2 nq=1 nk=9000 d=64 dtype=bf16 page=16 alibi=h"); /* one prefix of all */
    check("hq=2 nq=20 nk=3000 d=576 dv=512 dtype=bf16");
    check("hq=2 nq=5 nk=9000 d=40 dtype=f32");
    check_value("hq=8 hkv=2 nq=1 nk=9000 d=64 dtype=bf16 kv_dtype=e5m2", NAN);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_far_keys)};
    const bool gpu = argc > 1 && strcmp(argv[1], "gpu") == 0;
    const int failed = device_open(gpu) ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
    device_close();
    return failed;
}
