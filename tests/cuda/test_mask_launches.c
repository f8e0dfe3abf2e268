/*
 * test_mask_launches.c: launches ahead of a forward pass on a GPU for its mask
 * (src/cuda/mask/mask.c), on a driver without a GPU (fake_driver.c).
 */
#include "fake_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

/* Bits of a mask that at least four heads read are made by a launch ahead, where there is memory
 * for them and work enough. */
static void test_mask_bits(void **state)
{
    static const struct {
        int64_t rows, batch, heads; /* of the mask */
        bool made;
    } cases[] = {{4096, 1, 1, true},  {4090, 2, 1, true},  {4096, 1, 4, false},
                 {4096, 2, 4, false}, {1024, 1, 1, false}, {1, 1, 1, false}};
    const int64_t n = 4096;
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t rows = cases[i].rows, heads = cases[i].heads;
        attn_forward_args args = fake_args(ATTN_BF16, rows == 1 ? n : rows, n, 64);
        args.mask = attn_tensor_bshd(fake_memory(4), ATTN_BOOL, cases[i].batch, heads, rows, n);
        int before = fake.launches;
        (void)fake_params(context, &args);
        assert_int_equal(fake.launches - before, 1);
        assert_string_equal(fake.last.kernel, "attn_forward_sm90_mask_bf16_d64_ragged");
        const uint64_t bytes = fake_workspace(context, &args);
        before = fake.launches;
        const attn_cuda_lanes lanes = fake_params(context, &args).lanes;
        assert_int_equal(fake.launches - before, cases[i].made ? 2 : 1);
        if (cases[i].made) {
            const int64_t blocks = (rows + 15) / 16;
            assert_string_equal(fake.last.kernel, "attn_forward_sm90_mask_bf16_d64_ragged_lanes");
            assert_int_equal(lanes.row, n / 128 * 16);
            assert_int_equal(lanes.last, (blocks - 1) * 16);
            assert_int_equal(lanes.batch, cases[i].batch > 1 ? blocks * 16 * lanes.row : 0);
            assert_true(bytes > (uint64_t)(cases[i].batch * blocks * 16 * n / 8));
            assert_int_equal((uintptr_t)lanes.bits % 64, 0);
        }
    }
    attn_context_destroy(context);
}

/* A mask whose rows are askew is copied ahead to where they are not, if there is memory for it and
 * kernels read rows of masks; without that scores are masked step by step. */
static void test_askew_masks(void **state)
{
    static const struct {
        int64_t rows, columns, step, batch, heads; /* of the mask; step: between its columns */
        bool copied;
        int launches;
    } cases[] = {{4096, 4095, 1, 1, 1, true, 3},  {4096, 4096, 2, 1, 1, true, 3},
                 {4096, 4095, 1, 1, 4, true, 2},  {1, 4095, 1, 2, 1, true, 2},
                 {4096, 4096, 1, 1, 1, false, 2}, {4096, 1, 1, 1, 1, false, 1}};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t rows = cases[i].rows, columns = cases[i].columns, step = cases[i].step;
        const int64_t keys = columns == 1 ? 4096 : columns;
        attn_forward_args args = fake_args(ATTN_BF16, 4096, keys, 64);
        args.mask = attn_tensor_bshd(fake_memory(4), ATTN_BOOL, cases[i].batch, cases[i].heads,
                                     rows, columns * step);
        args.mask.shape[3] = columns, args.mask.stride[3] = step;
        int before = fake.launches;
        attn_cuda_forward_params p = fake_params(context, &args);
        assert_int_equal(fake.launches - before, 1);
        assert_ptr_equal(p.problem.mask.data, args.mask.data);
        const uint64_t bytes = fake_workspace(context, &args);
        before = fake.launches;
        p = fake_params(context, &args);
        assert_int_equal(fake.launches - before, cases[i].launches);
        attn_plan plan = {.struct_size = sizeof plan};
        assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
        assert_int_equal(plan.workspace_bytes, bytes);
        assert_int_equal(strstr(plan.why, "aligned bytes") != NULL, cases[i].copied);
        assert_int_equal(p.problem.mask.data != args.mask.data, cases[i].copied);
        if (cases[i].copied) {
            const int64_t row = (columns + 15) / 16 * 16;
            assert_string_equal(plan.kernel, "attn_forward_sm90_mask_bf16_d64_ragged");
            assert_int_equal(p.problem.mask.stride[2], rows > 1 ? row : 0);
            assert_true(bytes >= (uint64_t)(cases[i].heads * rows * row));
            args.workspace_bytes = bytes - 1;
            assert_int_equal(attn_forward(context, &args), ATTN_ERR_WORKSPACE);
        }
    }
    attn_context_destroy(context);
}

/* So is a bias, behind the mask; its shape stays. Gradients, too, where kernels then copy rows. */
static void test_askew_biases(void **state)
{
    attn_context *context;
    attn_backward_args grads = {.struct_size = sizeof grads};
    attn_plan plan = {.struct_size = sizeof plan};
    uint64_t bytes;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    attn_forward_args args = fake_args(ATTN_BF16, 300, 257, 64);
    args.bias = attn_tensor_bshd(fake_memory(4), ATTN_BF16, 1, 4, 300, 257);
    args.bias.shape[0] = 2, args.bias.stride[0] = 0;
    attn_cuda_forward_params p = fake_params(context, &args);
    assert_ptr_equal(p.problem.bias.data, args.bias.data);
    assert_true(fake_workspace(context, &args) >= 4 * 300 * 264 * 2);
    int before = fake.launches;
    p = fake_params(context, &args);
    assert_int_equal(fake.launches - before, 2);
    assert_string_equal(fake.last.kernel, "attn_forward_sm90_bias_bf16_d64");
    assert_ptr_not_equal(p.problem.bias.data, args.bias.data);
    assert_int_equal(p.problem.bias.shape[0], 2);
    assert_int_equal(p.problem.bias.stride[0], 0);
    assert_int_equal(p.problem.bias.stride[2], 264);
    args.mask = attn_tensor_bshd(fake_memory(6), ATTN_BOOL, 1, 1, 300, 257);
    (void)fake_workspace(context, &args);
    before = fake.launches;
    p = fake_params(context, &args);
    assert_int_equal(fake.launches - before, 3);
    assert_int_equal((char *)p.problem.bias.data - (char *)p.problem.mask.data,
                     (300 * 272 + 63) / 64 * 64);
    args.bias.dtype = ATTN_F64; /* gathered in any case */
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_null(strstr(plan.why, "bias"));
    args.bias.dtype = ATTN_BF16, args.mask.data = NULL, args.workspace = NULL;
    grads.forward = &args;
    args.lse = attn_tensor_bshd(fake_memory(7), ATTN_F32, 2, 300, 4, 1);
    grads.d_o = args.o, grads.dq = args.q, grads.dk = args.k, grads.dv = args.v;
    grads.dq.data = fake_memory(8), grads.dk.data = fake_memory(9);
    grads.dv.data = fake_memory(10), grads.d_o.data = fake_memory(11);
    assert_int_equal(attn_backward_plan(context, &grads, &plan), ATTN_OK);
    assert_non_null(strstr(plan.why, "aligns rows of the bias"));
    assert_int_equal(attn_backward_workspace(context, &grads, &bytes), ATTN_OK);
    assert_int_equal(bytes, plan.workspace_bytes);
    args.bias.dtype = ATTN_F32; /* element by element in any case */
    assert_int_equal(attn_backward_plan(context, &grads, &plan), ATTN_OK);
    assert_non_null(strstr(plan.why, "element by element"));
    assert_null(strstr(plan.why, "aligns"));
    attn_context_destroy(context);
}

/* A bias of relative positions has 2 N - 1 numbers for N x N elements: its copy would not be linear
 * in N. */
static void test_relative_positions(void **state)
{
    enum { N = 3000 };
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    attn_forward_args args = fake_args(ATTN_BF16, N, N, 64);
    args.bias = (attn_tensor){.data = (char *)fake_memory(4) + 2 * (N - 1),
                              .shape = {1, 4, N, N},
                              .stride = {0, 2 * N - 1, -1, 1},
                              .dtype = ATTN_BF16};
    attn_backward_args grads = {.struct_size = sizeof grads, .forward = &args, .d_o = args.o};
    attn_plan plan = {.struct_size = sizeof plan};
    assert_in_range(fake_workspace(context, &args), 0, N * 4 * 64);
    const int before = fake.launches;
    assert_ptr_equal(fake_params(context, &args).problem.bias.data, args.bias.data);
    assert_int_equal(fake.launches - before, 1);
    args.lse = attn_tensor_bshd(fake_memory(7), ATTN_F32, 2, N, 4, 1);
    grads.dq = args.q;
    assert_int_equal(attn_backward_plan(context, &grads, &plan), ATTN_OK);
    assert_null(strstr(plan.why, "aligns"));
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mask_bits),
        cmocka_unit_test(test_askew_masks),
        cmocka_unit_test(test_askew_biases),
        cmocka_unit_test(test_relative_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
