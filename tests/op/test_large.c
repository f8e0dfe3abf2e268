/*
 * test_large.c: problems whose counts, sizes or addresses do not fit in 16, 31 or 32 bits:
 * contract, cases B59, B61, B62, B63 and promise M6. Each runs once or twice, on two threads, and
 * is judged on a sample of rows. Tensors wider than memory are sparse mappings of which few pages
 * are touched.
 */
#include "grad_trial.h"
#include "tables.h"

#include <sys/mman.h>

/* More than 65535 sequences, heads or rows; once, since it is large. */
static void b59_many(void **state)
{
    static const char *const lines[] = {"b=100000 hq=1 n=10 d=16", "b=1 hq=65537 n=4 d=8",
                                        "b=1 hq=1 nq=65537 nk=3 d=8",
                                        "b=1 hq=65537 hkv=1 n=4 d=8 causal=1"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial trial = trial_open("%s dtype=f32 lse=1", lines[n]);
        trial_check_once(&trial, 2, 5000);
        trial_close(&trial);
    }
}

static void b61_5776_tokens_of_dimension_72(void **state)
{
    op_trial trial = trial_open("n=5776 hq=16 d=72 dtype=f32 lse=1");
    (void)state;
    trial_check_once(&trial, 2, 300);
    trial_close(&trial);
}

/* A batch of 8300: the last sequence is where a 32-bit product of strides would have wrapped. */
static void b63_large_batch(void **state)
{
    op_trial trial = trial_open("b=8300 n=1 hq=16 d=128 dtype=f16 lse=1");
    (void)state;
    trial_check_once(&trial, 2, 500);
    for (int64_t b = 0; b < 8300; b += 8299) {
        op_trial one = trial_open("b=1 n=1 hq=16 d=128 dtype=f16 lse=1");
        one.args->q = tensor_slice(trial.args->q, 0, b, 1);
        one.args->k = tensor_slice(trial.args->k, 0, b, 1);
        one.args->v = tensor_slice(trial.args->v, 0, b, 1);
        trial_run_once(&one, 1); /* the table that ran the batch */
        attn_tensor o = tensor_slice(trial.args->o, 0, b, 1),
                    lse = tensor_slice(trial.args->lse, 0, b, 1);
        assert_memory_equal(one.args->o.data, o.data, 16 * 128 * 2);
        assert_memory_equal(one.args->lse.data, lse.data, 16 * 4);
        trial_close(&one);
    }
    trial_close(&trial);
}

/* ---- addresses beyond 2^31 and 2^32 elements ------------------------------------------------- */

/* Address space without memory until it is written; 0 bytes read as 0. */
static void *sparse(size_t bytes)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        print_message("SKIPPED: no address space of %zu bytes\n", bytes);
        skip();
    }
    return map;
}

/* The values of `from` in a sparse mapping with this stride along one axis. */
static attn_tensor spread(attn_tensor from, int axis, int64_t stride, size_t *bytes)
{
    attn_tensor t = from;
    t.stride[axis] = stride;
    *bytes = (size_t)((t.shape[axis] - 1) * stride + (1 << 20)) * attn_dtype_size(t.dtype);
    t.data = sparse(*bytes);
    tensor_copy(&t, &from);
    return t;
}

/* Spreads one tensor of the problem; the result must have the bits of the plain call. An output is
 * compared through its spread view. */
static void assert_spread_is_plain(const char *line, size_t member, int axis, int64_t stride)
{
    op_trial plain = trial_open("%s", line), trial = trial_open("%s", line);
    attn_tensor *which = (attn_tensor *)((char *)trial.args + member);
    size_t bytes;
    assert_non_null(which->data);
    *which = spread(*which, axis, stride, &bytes);
    trial_check(&plain);
    trial_run_once(&plain, 1); /* the table that t runs on */
    trial_run_once(&trial, 2);
    assert_same_outputs(&trial, &plain);
    munmap(which->data, bytes);
    trial_close(&plain);
    trial_close(&trial);
}

#define SPREAD(line, member, axis, stride) \
    assert_spread_is_plain(line, offsetof(attn_forward_args, member), axis, stride)

static const int64_t beyond_31 = (INT64_C(1) << 31) + 128, beyond_32 = (INT64_C(1) << 32) + 64;

/* Three rows of queries and of bias, each 2^31 + 128 elements from the last; a mask of more than
 * 2^31 elements. */
static void b62_rows_far_apart(void **state)
{
    static const char *const line = "nq=3 nk=40 hq=2 d=8 dtype=f16 bias=f16:qk mask=hqk lse=1";
    (void)state;
    SPREAD(line, q, 1, beyond_31);
    SPREAD(line, bias, 2, beyond_31);
    SPREAD(line, mask, 2, beyond_31);
    SPREAD(line, mask, 1, beyond_32);
}

/* M6: every tensor along every axis, beyond 2^32 elements. */
static void m6_every_tensor(void **state)
{
    static const char *const line =
        "b=2 nq=3 nk=5 hq=2 d=3 dtype=f16 bias=f16:bhqk alibi=bh sinks=bh lse=1 row_max=1";
    (void)state;
    for (int axis = 0; axis < 4; axis++) {
        SPREAD(line, q, axis, beyond_32);
        SPREAD(line, k, axis, beyond_32);
        SPREAD(line, v, axis, beyond_32);
        SPREAD(line, o, axis, beyond_32);
        SPREAD(line, bias, axis, beyond_32);
    }
    SPREAD(line, lse, 1, beyond_32);
    SPREAD(line, row_max, 0, beyond_32);
    SPREAD(line, alibi_slopes, 0, beyond_32);
    SPREAD(line, sinks, 1, beyond_32);
}

/* Backwards, too. */
static void m6_negative(void **state)
{
    static const char *const line = "nq=3 nk=5 hq=2 d=8 dtype=f32";
    op_trial plain = trial_open("%s", line), trial = trial_open("%s", line);
    size_t bytes;
    (void)state;
    attn_tensor far = spread(trial.args->k, 1, beyond_31, &bytes);
    for (int64_t j = 0; j < 5; j++) {
        attn_tensor to = tensor_slice(far, 1, j, 1),
                    from = tensor_slice(plain.args->k, 1, 4 - j, 1);
        tensor_copy(&to, &from);
    }
    trial.args->k = tensor_slice(far, 1, 4, 5);
    trial.args->k.stride[1] = -beyond_31;
    trial_check(&plain);
    trial_run_once(&plain, 1); /* the table that t runs on */
    trial_run_once(&trial, 2);
    assert_same_outputs(&trial, &plain);
    munmap(far.data, bytes);
    trial_close(&plain);
    trial_close(&trial);
}

/* ---- the backward pass ----------------------------------------------------------------------- */

/* Spreads a tensor of both passes' arguments; gradients have the bits of the plain call. */
static void assert_spread_gradients(op_trial *trial, const attn_backward_args *plain,
                                    attn_tensor *which, int axis)
{
    const attn_tensor before = *which;
    size_t bytes;
    int count;
    const char *const *names = tables_that_agree(trial->args->q.dtype, 0, &count);
    char sentence[512] = "";
    if (which->shape[axis] == 1) {
        return;
    }
    *which = spread(before, axis, beyond_32, &bytes);
    for (int i = 0; i < count; i++) {
        if (!grad_runs_once(&trial->tensors.grad, names[i], 2, RUNS_ONES, sentence,
                            sizeof sentence)) {
            fail_msg("%s", sentence);
        }
        assert_same_gradients(plain, &trial->tensors.grad);
    }
    munmap(which->data, bytes);
    *which = before;
}

static void m6_every_tensor_backward(void **state)
{
    static const char line[] = "b=2 nq=3 nk=5 hq=2 d=3 dtype=f32 pass=backward d_lse=1 mask=bhqk "
                               "bias=bhqk alibi=bh sinks=bh d_bias=f32 d_alibi=1 d_sinks=1";
    op_trial plain = trial_open("%s", line), trial = trial_open("%s", line);
    attn_forward_args *f = trial.args;
    attn_backward_args *b = &trial.tensors.grad;
    attn_tensor *const tensors[] = {&f->q,  &f->k,      &f->v,      &f->mask,           &f->bias,
                                    &f->o,  &f->lse,    &f->sinks,  &f->alibi_slopes,   &b->d_o,
                                    &b->dq, &b->d_lse,  &b->d_bias, &b->d_alibi_slopes, &b->dk,
                                    &b->dv, &b->d_sinks};
    (void)state;
    grad_trial_check(&plain);
    grad_trial_forward(&trial);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        assert_non_null(tensors[i]->data);
        for (int axis = 0; axis < 4; axis++) {
            assert_spread_gradients(&trial, &plain.tensors.grad, tensors[i], axis);
        }
    }
    trial_close(&plain);
    trial_close(&trial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b59_many),
        cmocka_unit_test(b61_5776_tokens_of_dimension_72),
        cmocka_unit_test(b62_rows_far_apart),
        cmocka_unit_test(b63_large_batch),
        cmocka_unit_test(m6_every_tensor),
        cmocka_unit_test(m6_negative),
        cmocka_unit_test(m6_every_tensor_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
