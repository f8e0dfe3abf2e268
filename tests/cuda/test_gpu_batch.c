/*
 * test_gpu_batch.c: on this machine's GPU a sequence has the bits in a batch that it has alone.
 * Items of a batch follow each other on a multiprocessor, so what one leaves behind shows. Skipped
 * where there is no GPU.
 */
#include "args.h"
#include "gpu.h"
#include "gpu_copy.h"
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static attn_context *gpu;

/* Runs a call and brings O back. */
static void run(attn_forward_args *args, const gpu_copy *o)
{
    attn_plan plan = {.struct_size = sizeof plan};
    if (attn_forward_plan(gpu, args, &plan) != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    args->workspace_bytes = plan.workspace_bytes;
    args->workspace = gpu_alloc((size_t)plan.workspace_bytes + 1);
    memset(o->first, 0xFF, o->bytes);
    gpu_put(o->there.data, o->first, o->bytes);
    if (attn_forward(gpu, args) != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    gpu_wait();
    gpu_free(args->workspace);
    gpu_copy_back(o);
}

static void take_sequence(attn_tensor *t, int64_t number)
{
    if (t->data != NULL) {
        t->data = (char *)t->data + number * t->stride[0] * (int64_t)attn_dtype_size(t->dtype);
        t->shape[0] = 1;
    }
}

static void compare(const char *line)
{
    op_trial trial = trial_open("%s", line);
    attn_forward_args *host = &trial.tensors.args, args = *host;
    gpu_copy copies[ARGS_TENSORS];
    for (int i = 0; i < ARGS_TENSORS; i++) {
        copies[i] = i == ARGS_V ? gpu_copy_beside(args_at(host, i), &copies[ARGS_K])
                                : gpu_copy_tensor(args_at(host, i));
        *args_at(&args, i) = copies[i].there;
    }
    const gpu_copy *o = &copies[ARGS_O];
    const size_t each = o->bytes / (size_t)host->o.shape[0];
    run(&args, o);
    char *all = malloc(o->bytes);
    assert_non_null(all);
    memcpy(all, o->first, o->bytes);
    for (int64_t s = 0; s < host->o.shape[0]; s++) {
        attn_forward_args one = args;
        static const int of_all[] = {ARGS_Q, ARGS_O, ARGS_LSE, ARGS_USED_K, ARGS_TABLE};
        for (size_t i = 0; i < sizeof of_all / sizeof of_all[0]; i++) {
            take_sequence(args_at(&one, of_all[i]), s);
        }
        static const int of_keys[] = {ARGS_K,       ARGS_V,       ARGS_K_SCALE,
                                      ARGS_K_SHIFT, ARGS_V_SCALE, ARGS_V_SHIFT};
        for (size_t i = 0; i < sizeof of_keys / sizeof of_keys[0] && !host->block_table.data; i++) {
            take_sequence(args_at(&one, of_keys[i]), s);
        }
        run(&one, o);
        if (memcmp(all + (size_t)s * each, o->first + (size_t)s * each, each) != 0) {
            fail_msg("%s: sequence %lld has other bits alone", line, (long long)s);
        }
    }
    free(all);
    for (int i = 0; i < ARGS_TENSORS; i++) {
        gpu_copy_free(&copies[i]);
    }
    trial_close(&trial);
}

/* used_k makes odd and even numbers of blocks. */
static void test_batch(void **state)
{
    (void)state;
    compare("b=5 hq=2 hkv=1 nq=1 nk=300 used_k=300,1,64,65,200 d=576 dv=512 dtype=bf16 view=1");
    compare("b=3 hq=2 hkv=1 nq=2 nk=1200 used_k=1200,700,130 d=576 dv=512 dtype=f16 view=1 page=16 "
            "causal=1");
    compare("b=3 hq=4 hkv=1 nq=3 nk=900 used_k=900,290,64 d=64 dtype=bf16");
    compare("b=70 hq=4 hkv=1 nq=1 nk=300 d=64 dtype=bf16"); /* splits by the batch would be fewer */
    /* CTAs with all splits of their rows, which have merges alone */
    compare("b=140 hq=8 hkv=2 nq=1 nk=300 d=128 dtype=bf16");
    compare("b=140 hq=8 hkv=2 nq=2 nk=300 d=72 dv=40 dtype=f16 page=16 causal=1");
    /* with four of eight on the emulated GPU, where one sequence alone has one each */
    compare("b=2 hq=4 hkv=1 nq=1 nk=1000 d=128 dtype=bf16");
    compare("b=3 hq=4 hkv=1 nq=1 nk=1500 used_k=1500,1030,300 d=64 dtype=f16 page=16");
    /* codes: CTAs with several splits leave each of them */
    compare("b=3 hq=4 hkv=1 nq=1 nk=4000 used_k=4000,0,1030 d=64 dtype=bf16 kv_dtype=e4m3");
    compare("b=6 hq=8 hkv=2 nq=1 nk=1600 d=128 dtype=bf16 kv_dtype=i8");
    compare("b=6 hq=8 hkv=2 nq=1 nk=1100 d=128 dtype=bf16 kv_dtype=i8 kv_shift=1 page=16");
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Runs a backward pass and brings its results, side by side, back. free() them. */
static char *run_backward(attn_backward_args *args, const gpu_copy *results, size_t *bytes)
{
    if (attn_backward_workspace(gpu, args, &args->workspace_bytes) != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    args->workspace = gpu_alloc((size_t)args->workspace_bytes + 1);
    *bytes = 0;
    for (int i = 0; i < 3; i++) {
        memset(results[i].first, 0xFF, results[i].bytes);
        gpu_put(results[i].there.data, results[i].first, results[i].bytes);
        *bytes += results[i].bytes;
    }
    if (attn_backward(gpu, args) != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    gpu_wait();
    gpu_free(args->workspace);
    char *all = malloc(*bytes), *to = all;
    assert_non_null(all);
    for (int i = 0; i < 3; i++) {
        gpu_copy_back(&results[i]);
        memcpy(to, results[i].first, results[i].bytes);
        to += results[i].bytes;
    }
    return all;
}

/* A batch of sequences as one that holds them one after the other. */
static void pack(attn_tensor *t)
{
    if (t->data != NULL) {
        assert_int_equal(t->stride[0], t->shape[1] * t->stride[1]);
        t->shape[1] *= t->shape[0], t->shape[0] = 1;
    }
}

/* Places of sequences of n rows in the GPU's memory. */
static attn_tensor starts_of(int64_t batch, int64_t n)
{
    int32_t starts[16];
    assert_in_range(batch, 1, 15);
    for (int64_t i = 0; i <= batch; i++) {
        starts[i] = (int32_t)(i * n);
    }
    void *const there = gpu_alloc(sizeof starts);
    gpu_put(there, starts, sizeof starts);
    return attn_tensor_bshd(there, ATTN_I32, batch + 1, 1, 1, 1);
}

/* Gradients of sequences of one length have the bits that they have as packed ones, whose lengths
 * the GPU reads: other kernels, or other ways in them. */
static void compare_packed(const char *line)
{
    op_trial trial = trial_open("%s pass=backward", line);
    attn_forward_args *host = &trial.tensors.args, args = *host;
    attn_backward_args grads = trial.tensors.grad;
    gpu_copy copies[ARGS_TENSORS], gradients[ARGS_GRADIENTS];
    for (int i = 0; i < ARGS_TENSORS; i++) {
        copies[i] = gpu_copy_tensor(args_at(host, i));
        *args_at(&args, i) = copies[i].there;
    }
    for (int i = 0; i < ARGS_GRADIENTS; i++) {
        gradients[i] = gpu_copy_tensor(args_gradient_at(&trial.tensors.grad, i));
        *args_gradient_at(&grads, i) = gradients[i].there;
    }
    run(&args, &copies[ARGS_O]);
    grads.forward = &args;
    size_t bytes, packed_bytes;
    char *const all = run_backward(&grads, &gradients[ARGS_DQ], &bytes);
    args.cu_seqlens_q = starts_of(host->q.shape[0], host->q.shape[1]);
    args.cu_seqlens_k = starts_of(host->q.shape[0], host->k.shape[1]);
    for (int i = ARGS_Q; i <= ARGS_ROW_MAX; i++) {
        pack(args_at(&args, i));
    }
    for (int i = ARGS_D_O; i <= ARGS_DV; i++) {
        pack(args_gradient_at(&grads, i));
    }
    char *const packed = run_backward(&grads, &gradients[ARGS_DQ], &packed_bytes);
    if (memcmp(all, packed, bytes) != 0) {
        fail_msg("%s: packed sequences have gradients of other bits", line);
    }
    gpu_free(args.cu_seqlens_q.data);
    gpu_free(args.cu_seqlens_k.data);
    free(all);
    free(packed);
    for (int i = 0; i < ARGS_TENSORS; i++) {
        gpu_copy_free(&copies[i]);
    }
    for (int i = 0; i < ARGS_GRADIENTS; i++) {
        gpu_copy_free(&gradients[i]);
    }
    trial_close(&trial);
}

static void test_packed_gradients(void **state)
{
    (void)state;
    compare_packed("b=3 hq=2 nq=300 nk=400 d=64 dtype=bf16");
    compare_packed("b=3 hq=2 nq=300 nk=400 d=128 dtype=bf16 causal=1");
    compare_packed("b=2 hq=4 hkv=2 nq=200 nk=130 d=64 dtype=bf16 causal=1 top_left=1 sinks=h");
    compare_packed("b=2 hq=2 nq=130 nk=70 d=128 dtype=bf16 d_lse=1 inputs=outlier");
    compare_packed("b=2 hq=2 nq=200 nk=300 d=128 dtype=f16 causal=1");
    compare_packed("b=2 hq=2 nq=200 nk=300 d=256 dtype=bf16 causal=1");
    compare_packed("b=2 hq=2 nq=200 nk=300 d=72 dtype=bf16 window_left=90 window_right=0");
}

/* 132 multiprocessors have a few items each. */
static void test_many_items(void **state)
{
    (void)state;
    compare("b=40 hq=128 hkv=1 nq=1 nk=2100 d=576 dv=512 dtype=bf16 view=1");
    compare("b=24 hq=128 hkv=1 nq=2 nk=2100 d=576 dv=512 dtype=bf16 view=1 page=16");
    compare("b=150 hq=16 hkv=1 nq=1 nk=700 d=576 dv=512 dtype=bf16 view=1");
    compare("b=40 hq=16 hkv=1 nq=4 nk=3000 d=128 dtype=bf16");
    compare("b=8 hq=32 hkv=8 nq=1 nk=4096 d=128 dtype=bf16"); /* four splits of 16 a CTA */
    compare("b=16 hq=32 hkv=8 nq=1 nk=8192 d=128 dtype=bf16 kv_dtype=e4m3");
    compare("b=300 hq=8 hkv=2 nq=1 nk=2100 d=64 dtype=bf16 page=16");
    compare("b=64 hq=32 hkv=8 nq=1 nk=1024 d=128 dtype=f16 inputs=outlier");
}

/* test_gpu_batch few: small problems alone. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_batch),
                                       cmocka_unit_test(test_packed_gradients),
                                       cmocka_unit_test(test_many_items)};
    (void)argv;
    gpu = trial_gpu();
    const int failed = gpu == NULL ? 77
                       : argc > 1  ? _cmocka_run_group_tests("few", tests, 2, NULL, NULL)
                                   : cmocka_run_group_tests(tests, NULL, NULL);
    attn_context_destroy(gpu);
    return failed;
}
