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
        assert_string_equal(fake.last.kernel, "attn_forward_sm90_mask_bf16_d64");
        const uint64_t bytes = fake_workspace(context, &args);
        before = fake.launches;
        const attn_cuda_lanes lanes = fake_params(context, &args).lanes;
        assert_int_equal(fake.launches - before, cases[i].made ? 2 : 1);
        if (cases[i].made) {
            const int64_t blocks = (rows + 15) / 16;
            assert_string_equal(fake.last.kernel, "attn_forward_sm90_mask_bf16_d64_lanes");
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
        assert_int_equal(strstr(plan.why, "aligned rows") != NULL, cases[i].copied);
        assert_int_equal(p.problem.mask.data != args.mask.data, cases[i].copied);
        if (cases[i].copied) {
            const int64_t row = (columns + 15) / 16 * 16;
            assert_string_equal(plan.kernel, "attn_forward_sm90_mask_bf16_d64");
            assert_int_equal(p.problem.mask.stride[2], rows > 1 ? row : 0);
            assert_true(bytes >= (uint64_t)(cases[i].heads * rows * row));
            args.workspace_bytes = bytes - 1;
            assert_int_equal(attn_forward(context, &args), ATTN_ERR_WORKSPACE);
        }
    }
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mask_bits),
        cmocka_unit_test(test_askew_masks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
