/*
 * test_strides.c: heads, strides and aliasing: contract, cases D (B74 .. B88), and traces of one
 * call in the next (B110, B112, B113, B117).
 */
#include "runs.h"
#include "trial.h"

#include <stdio.h>

/* Replaces a tensor of `to` by the view; both then have the same values where `from` is a copy of
 * the view. */
static attn_tensor view(void *data, int32_t dtype, const int64_t shape[4], const int64_t stride[4])
{
    attn_tensor t = {.data = data, .dtype = dtype};
    memcpy(t.shape, shape, sizeof t.shape);
    memcpy(t.stride, stride, sizeof t.stride);
    return t;
}

static void fill_noise(float *values, int64_t count, int tensor)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = (float)inputs_value(INPUTS_NORMAL, 9, tensor, i);
    }
}

/* Runs t on views of q, k, v and packed on copies of them: the same bits. */
static void assert_views_are_copies(op_trial *trial, op_trial *packed)
{
    tensor_copy(&packed->args->q, &trial->args->q);
    tensor_copy(&packed->args->k, &trial->args->k);
    tensor_copy(&packed->args->v, &trial->args->v);
    if (trial->args->bias.data) {
        tensor_copy(&packed->args->bias, &trial->args->bias);
    }
    trial_check(packed);
    trial_run(trial);
    assert_same_outputs(trial, packed);
}

/* Ratio 7: the bits of MHA on repeated K and V. */
static void repeated_heads(const char *shape, bool once)
{
    op_trial gqa = trial_open("hq=28 hkv=4 d=16 causal=1 dtype=f16 lse=1 %s", shape);
    op_trial mha = trial_open("hq=28 d=16 causal=1 dtype=f16 lse=1 %s", shape);
    for (int64_t h = 0; h < 28; h++) {
        attn_tensor k = tensor_slice(mha.args->k, 2, h, 1), v = tensor_slice(mha.args->v, 2, h, 1);
        attn_tensor from_k = tensor_slice(gqa.args->k, 2, h / 7, 1),
                    from_v = tensor_slice(gqa.args->v, 2, h / 7, 1);
        tensor_copy(&k, &from_k);
        tensor_copy(&v, &from_v);
    }
    once ? trial_run_once(&gqa, 2) : trial_check(&gqa);
    once ? trial_run_once(&mha, 2) : trial_run(&mha);
    assert_same_outputs(&gqa, &mha);
    trial_close(&gqa);
    trial_close(&mha);
}

static void b74_seven_heads_per_kv_head(void **state)
{
    static const int nq[] = {37, 127, 577}, nk[] = {501, 2042};
    (void)state;
    repeated_heads("nq=37 nk=101", false);
    for (int n = 0; n < 6; n++) {
        char shape[64];
        snprintf(shape, sizeof shape, "nq=%d nk=%d", nq[n / 2], nk[n % 2]);
        repeated_heads(shape, true);
    }
}

static void b78_broadcast_views(void **state)
{
    static const int64_t q_shape[] = {3, 1, 16, 128}, q_stride[] = {2304, 2048, 128, 1};
    static const int64_t k_shape[] = {3, 14, 16, 128}, k_stride[] = {3584, 256, 0, 1};
    op_trial trial = trial_open("b=3 hq=16 nq=1 nk=14 d=128 dtype=f32 bias=bk"),
             packed = trial_open("b=3 hq=16 nq=1 nk=14 d=128 dtype=f32 bias=bk");
    float *q = calloc(3 * 2304, sizeof *q), *kv = calloc(3 * 3584, sizeof *kv);
    (void)state;
    fill_noise(q, 3 * 2304, INPUTS_Q);
    fill_noise(kv, 3 * 3584, INPUTS_K);
    trial.args->q = view(q, ATTN_F32, q_shape, q_stride);
    trial.args->k = view(kv, ATTN_F32, k_shape, k_stride);
    trial.args->v = view(kv + 128, ATTN_F32, k_shape, k_stride);
    assert_views_are_copies(&trial, &packed);
    free(q);
    free(kv);
    trial_close(&trial);
    trial_close(&packed);
}

/* [B][S][H][D] taken as (B, H, S, D). */
static void b80_swapped_axes(void **state)
{
    op_trial trial = trial_open("b=84 n=3 hq=3 d=64 dtype=f32"),
             packed = trial_open("b=84 n=3 hq=3 d=64 dtype=f32");
    (void)state;
    attn_tensor *tensors[] = {&trial.args->q, &trial.args->k, &trial.args->v, &trial.args->o};
    for (int n = 0; n < 4; n++) {
        *tensors[n] = attn_tensor_bhsd(tensors[n]->data, ATTN_F32, 84, 3, 3, 64);
    }
    assert_views_are_copies(&trial, &packed);
    trial_close(&trial);
    trial_close(&packed);
}

/* V is the first 32 rows of a buffer of 128, K is packed. */
static void b81_v_has_its_own_stride(void **state)
{
    op_trial trial = trial_open("b=2 nq=9 nk=32 hq=2 d=8 dtype=f32"),
             packed = trial_open("b=2 nq=9 nk=32 hq=2 d=8 dtype=f32");
    float *v = calloc(2 * 128 * 2 * 8, sizeof *v);
    (void)state;
    fill_noise(v, 2 * 128 * 2 * 8, INPUTS_V);
    trial.args->v = attn_tensor_bshd(v, ATTN_F32, 2, 128, 2, 8);
    trial.args->v.shape[1] = 32;
    assert_views_are_copies(&trial, &packed);
    free(v);
    trial_close(&trial);
    trial_close(&packed);
}

/* K and V backwards along the sequence. */
static void b85_negative_strides(void **state)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16", "f64"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        op_trial trial = trial_open("nq=20 nk=90 hq=2 d=24 dtype=%s lse=1", dtypes[n]);
        op_trial packed = trial_open("nq=20 nk=90 hq=2 d=24 dtype=%s lse=1", dtypes[n]);
        attn_tensor *tensors[] = {&trial.args->k, &trial.args->v};
        for (int i = 0; i < 2; i++) {
            *tensors[i] = tensor_slice(*tensors[i], 1, 89, 90);
            tensors[i]->stride[1] *= -1;
        }
        assert_views_are_copies(&trial, &packed);
        trial_close(&trial);
        trial_close(&packed);
    }
}

/* Every base pointer 1, 2 or 3 elements beyond an aligned address. */
static void b86_unaligned_bases(void **state)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16", "f64"};
    (void)state;
    for (int n = 0; n < 16; n++) {
        const char *line = "nq=30 nk=70 hq=3 d=40 dtype=%s mask=qk bias=f16:hk lse=1 offset=%d";
        op_trial trial = trial_open(line, dtypes[n / 4], n % 4),
                 aligned = trial_open(line, dtypes[n / 4], 0);
        trial_run(&trial);
        trial_run(&aligned);
        assert_same_outputs(&trial, &aligned);
        trial_close(&trial);
        trial_close(&aligned);
    }
}

/* V is the first 512 columns of K's 576, in one memory (multi-head latent attention). */
static void b88_v_is_part_of_k(void **state)
{
    op_trial trial = trial_open("nq=3 nk=70 hq=4 hkv=1 d=576 dv=512 dtype=f16 lse=1"),
             packed = trial_open("nq=3 nk=70 hq=4 hkv=1 d=576 dv=512 dtype=f16 lse=1");
    (void)state;
    trial.args->v = tensor_slice(trial.args->k, 3, 0, 512);
    assert_views_are_copies(&trial, &packed);
    trial_close(&trial);
    trial_close(&packed);
}

/* The same shape with another scale: no trace of the call before. */
static void b110_scale_of_the_call_before(void **state)
{
    op_trial first = trial_open("n=40 hq=2 d=128 dtype=f32 lse=1 scale=0.08838834764831845"),
             second = trial_open("n=40 hq=2 d=128 dtype=f32 lse=1 scale=0.26516504294495535");
    (void)state;
    trial_check(&first);
    trial_check(&second);
    trial_check(&first);
    trial_close(&first);
    trial_close(&second);
}

/* A thousand runs on three threads. */
static void b112_a_thousand_equal_runs(void **state)
{
    op_trial trial = trial_open("b=2 n=50 hq=2 d=8 dtype=f32 causal=1 lse=1");
    size_t bytes;
    (void)state;
    trial_check(&trial);
    trial_run_once(&trial, 3);
    unsigned char *first = trial_bits(&trial, &bytes);
    for (int n = 0; n < 1000; n++) {
        trial_run_once(&trial, 3);
        unsigned char *now = trial_bits(&trial, &bytes);
        assert_memory_equal(now, first, bytes);
        free(now);
    }
    free(first);
    trial_close(&trial);
}

/* Old contents of the workspace have no influence. */
static void b113_poisoned_workspace(void **state)
{
    op_trial trial = trial_open(
        "lens_q=30,0,9 lens_k=80,5,70 hq=4 hkv=2 d=8 dtype=f16 causal=1 mask=bk bias=qk lse=1");
    unsigned char *bits[RUNS_POISONS];
    size_t bytes;
    char sentence[256];
    (void)state;
    for (int poison = 0; poison < RUNS_POISONS; poison++) {
        assert_true(
            runs_once(trial.args, NULL, 2, (enum runs_poison)poison, sentence, sizeof sentence));
        bits[poison] = trial_bits(&trial, &bytes);
        assert_memory_equal(bits[poison], bits[0], bytes);
    }
    for (int poison = 0; poison < RUNS_POISONS; poison++) {
        free(bits[poison]);
    }
    trial_close(&trial);
}

/* 1024 bytes of canary around each output and in all its gaps; o.stride[3] = 2. */
static void b117_canaries(void **state)
{
    static const int64_t o_shape[] = {2, 9, 3, 8}, o_stride[] = {9 * 80 + 13, 80, 20, 2};
    static const int64_t l_shape[] = {2, 9, 3, 1}, l_stride[] = {50, 5, 1, 1};
    enum { SIZE = 1024 + 2 * (9 * 80 + 13) * 4 + 1024 };
    op_trial trial = trial_open("b=2 nq=9 nk=20 hq=3 d=8 dtype=f32 lse=1"),
             plain = trial_open("b=2 nq=9 nk=20 hq=3 d=8 dtype=f32 lse=1");
    unsigned char *o = malloc(SIZE), *lse = malloc(SIZE), *canary = malloc(SIZE);
    (void)state;
    memset(canary, 0xA5, SIZE);
    memcpy(o, canary, SIZE);
    memcpy(lse, canary, SIZE);
    trial.args->o = view(o + 1024, ATTN_F32, o_shape, o_stride);
    trial.args->lse = view(lse + 1024, ATTN_F32, l_shape, l_stride);
    trial_run(&trial);
    trial_run(&plain);
    assert_same_outputs(&trial, &plain);
    for (int64_t n = 0; n < 2 * 9 * 3 * 8; n++) { /* the elements become canaries as well */
        int64_t b = n / 216, i = n / 24 % 9, h = n / 8 % 3, c = n % 8;
        memset(o + 1024 +
                   4 * (b * o_stride[0] + i * o_stride[1] + h * o_stride[2] + c * o_stride[3]),
               0xA5, 4);
        memset(lse + 1024 + 4 * (b * l_stride[0] + i * l_stride[1] + h * l_stride[2]), 0xA5, 4);
    }
    assert_memory_equal(o, canary, SIZE);
    assert_memory_equal(lse, canary, SIZE);
    free(o);
    free(lse);
    free(canary);
    trial_close(&trial);
    trial_close(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b74_seven_heads_per_kv_head),
        cmocka_unit_test(b78_broadcast_views),
        cmocka_unit_test(b80_swapped_axes),
        cmocka_unit_test(b81_v_has_its_own_stride),
        cmocka_unit_test(b85_negative_strides),
        cmocka_unit_test(b86_unaligned_bases),
        cmocka_unit_test(b88_v_is_part_of_k),
        cmocka_unit_test(b110_scale_of_the_call_before),
        cmocka_unit_test(b112_a_thousand_equal_runs),
        cmocka_unit_test(b113_poisoned_workspace),
        cmocka_unit_test(b117_canaries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
