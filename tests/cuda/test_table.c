/*
 * test_table.c: a GPU's operations through the table of its device: what is refused, masks
 * of bits, plans.
 */
#include "fake_driver.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

/* What kernels do not read, and what the host sees without reading. */
static void test_refusals(void **state)
{
    attn_context *context;
    attn_forward_args plain = fake_args(ATTN_BF16, 300, 300, 64), args = plain;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.mask = attn_tensor_bshd(fake_memory(4), ATTN_F32, 1, 1, 300, 300);
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_INVALID_ARGUMENT);
    args.mask.dtype = ATTN_U8;
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    args = plain, args.o = args.q;
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "o and q overlap"));
    attn_context_destroy(context);
}

/* Masks of bits and of integers become bytes in the workspace, by a launch before the pass's. */
static void test_masks(void **state)
{
    static const attn_dtype types[] = {ATTN_B1X8, ATTN_I32, ATTN_I64};
    const uint64_t room = 300 * 304 + 63; /* rows of whole pieces of 16 bytes */
    attn_context *context;
    (void)state;
    for (int n = 0; n < 3; n++) {
        attn_forward_args args = fake_args(ATTN_BF16, 300, 300, 64);
        const int64_t columns = types[n] == ATTN_B1X8 ? 38 : 300;
        uint64_t bytes;
        fake_reset();
        assert_int_equal(fake_create(0, &context), ATTN_OK);
        /* heads share it by a stride of 0 */
        args.mask = attn_tensor_bshd(fake_memory(4), types[n], 1, 4, 300, columns);
        args.mask.stride[1] = 0;
        assert_int_equal(attn_forward(context, &args), ATTN_ERR_WORKSPACE);
        assert_int_equal(attn_forward_workspace(context, &args, &bytes), ATTN_OK);
        assert_in_range(bytes, room, room + 4096);
        args.workspace = fake_memory(5), args.workspace_bytes = bytes - 1;
        assert_int_equal(attn_forward(context, &args), ATTN_ERR_WORKSPACE);
        assert_int_equal(fake.launches, 0);
        args.workspace_bytes = bytes;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        assert_string_equal(fake.kernels[0], "attn_mask_bytes");
        assert_int_equal(fake.launches, 2);
        assert_int_equal(fake.last.params.problem.mask.dtype, ATTN_U8);
        assert_int_equal(fake.last.params.problem.mask.shape[1], 1);
        assert_int_equal(fake.last.params.problem.mask.shape[3], 300);
        attn_context_destroy(context);
    }
}

/* GPUs other than sm_90 load the images of all other families, which cmake/cuda.cmake compiles for
 * every GPU by their names. */
static void test_families(void **state)
{
    (void)state;
    for (int i = 0; i < ATTN_CUDA_KERNELS; i++) {
        const attn_cuda_kernel *kernel = &attn_cuda_kernels[i];
        const bool alone = strstr(kernel->name, "sm90") || strstr(kernel->name, "shared") ||
                           kernel->family == ATTN_CUDA_FEW_SHARED ||
                           kernel->family == ATTN_CUDA_FEW_LINE;
        assert_int_equal(alone, kernel->family < ATTN_CUDA_SM80);
    }
}

/* A plan is that of the call, whose tensors may have no memory yet. */
static void test_plan_of_shapes(void **state)
{
    attn_context *context;
    attn_forward_args args = fake_args(ATTN_BF16, 300, 300, 64);
    attn_plan with = {.struct_size = sizeof with}, without = with;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    assert_int_equal(attn_forward_plan(context, &args, &with), ATTN_OK);
    args.q.data = args.k.data = args.v.data = args.o.data = NULL;
    assert_int_equal(attn_forward_plan(context, &args, &without), ATTN_OK);
    assert_string_equal(without.kernel, with.kernel);
    assert_string_equal(without.why, with.why);
    attn_context_destroy(context);
}

/* Extents of 0 and 1 of a problem, of columns 0 and 64, which kernels on tensor cores take: batch,
 * rows, keys, heads of Q and of K, columns of K and of V by the bits of n. */
static attn_forward_args tiny_args(unsigned n, attn_dtype dtype, attn_dtype key_dtype)
{
    const int64_t b = n & 1, rows = n >> 1 & 1, keys = n >> 2 & 1, heads = n >> 3 & 1,
                  kv_heads = n >> 4 & 1, d = (n >> 5 & 1) * 64, dv = (n >> 6 & 1) * 64;
    attn_forward_args args = {.struct_size = sizeof args};
    args.q = attn_tensor_bshd(fake_memory(0), dtype, b, rows, heads, d);
    args.k = attn_tensor_bshd(fake_memory(1), key_dtype, b, keys, kv_heads, d);
    args.v = attn_tensor_bshd(fake_memory(2), key_dtype, b, keys, kv_heads, dv);
    args.o = attn_tensor_bshd(fake_memory(3), dtype, b, rows, heads, dv);
    args.lse = attn_tensor_bshd(fake_memory(4), ATTN_F32, b, rows, heads, 1);
    if (key_dtype != dtype) {
        args.k_scale = args.v_scale = attn_tensor_bshd(fake_memory(5), ATTN_F32, 1, 1, 1, 1);
    }
    return args;
}

/* What has no elements is planned and sized with the statuses of a CPU, in both passes. */
static void test_empty_extents(void **state)
{
    static const attn_dtype types[][2] = {{ATTN_F64, ATTN_F64},   {ATTN_F32, ATTN_F32},
                                          {ATTN_BF16, ATTN_BF16}, {ATTN_F16, ATTN_F16},
                                          {ATTN_BF16, ATTN_I8},   {ATTN_F16, ATTN_E4M3}};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (unsigned n = 0; n < 6 * 128; n++) {
        attn_forward_args args = tiny_args(n, types[n / 128][0], types[n / 128][1]);
        attn_backward_args grads = {
            .struct_size = sizeof grads, .forward = &args, .d_o = args.o, .dq = args.q};
        attn_plan plan = {.struct_size = sizeof plan};
        uint64_t bytes;
        const attn_status forward = attn_forward_plan(NULL, &args, &plan),
                          backward = attn_backward_plan(NULL, &grads, &plan);
        assert_int_equal(attn_forward_plan(context, &args, &plan), forward);
        assert_int_equal(attn_forward_workspace(context, &args, &bytes), forward);
        assert_int_equal(attn_forward(context, &args), forward);
        assert_int_equal(attn_backward_plan(context, &grads, &plan), backward);
        assert_int_equal(attn_backward_workspace(context, &grads, &bytes), backward);
    }
    attn_context_destroy(context);
}

/* Kernels for whole sequences run where a score step is alone, unless heads are narrow and all of
 * many keys visible, rows share their mask, or sequences have lengths. */
static void test_whole_sequences(void **state)
{
    static const struct {
        int64_t n, d, mask_rows; /* 0: no mask, but softcap */
        bool causal, lengths;
        const char *kernel;
    } cases[] = {{4096, 128, 4096, false, false, "attn_forward_sm90_mask_bf16_d128"},
                 {512, 64, 512, false, false, "attn_forward_sm90_mask_bf16_d64"},
                 {4096, 64, 4096, false, false, "attn_forward_sm90_mask_bf16_d64_ragged"},
                 {4096, 64, 4096, true, false, "attn_forward_sm90_mask_bf16_d64"},
                 {4096, 128, 1, false, false, "attn_forward_sm90_mask_bf16_d128_ragged"},
                 {4096, 128, 0, false, false, "attn_forward_sm90_softcap_bf16_d128"},
                 {1024, 64, 0, false, false, "attn_forward_sm90_softcap_bf16_d64_ragged"},
                 {1023, 64, 0, false, false, "attn_forward_sm90_softcap_bf16_d64"},
                 {4096, 128, 0, false, true, "attn_forward_sm90_softcap_bf16_d128_ragged"}};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t n = cases[i].n, rows = cases[i].mask_rows;
        attn_forward_args args = fake_args(ATTN_BF16, n, n, cases[i].d);
        args.flags = cases[i].causal ? ATTN_CAUSAL : 0;
        args.softcap = rows > 0 ? 0 : 30;
        if (rows > 0) {
            args.mask = attn_tensor_bshd(fake_memory(4), ATTN_BOOL, 1, 1, rows, n);
        }
        if (cases[i].lengths) {
            args.seqused_k = attn_tensor_bshd(fake_memory(4), ATTN_I32, 2, 1, 1, 1);
        }
        (void)fake_params(context, &args);
        assert_string_equal(fake.last.kernel, cases[i].kernel);
    }
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_masks),
        cmocka_unit_test(test_plan_of_shapes), cmocka_unit_test(test_families),
        cmocka_unit_test(test_empty_extents),  cmocka_unit_test(test_whole_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
