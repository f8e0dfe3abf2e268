/*
 * test_extents.c: calls of absurd extents and of none, planned by a CPU and by a pretended GPU
 * (fake_driver.c): no plan counts sequences one by one, no number leaves its type, and both give
 * the same status. Found by tests/fuzz/fuzz_gpu.c; UBSan sees the numbers.
 */
#include "fake_driver.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#define TWO(n) (INT64_C(1) << (n))

static attn_context *gpu;

static int open_gpu(void **state)
{
    (void)state;
    fake_reset();
    alarm(60); /* a loop over 2^50 sequences does not end */
    return fake_create(0, &gpu) != ATTN_OK;
}

static int close_gpu(void **state)
{
    (void)state;
    attn_context_destroy(gpu);
    return 0;
}

/* q, k, v and o of equal heads; a plan does not look at memory. */
static attn_forward_args args_of(attn_dtype dtype, int64_t b, int64_t rows, int64_t keys, int64_t h,
                                 int64_t d)
{
    attn_forward_args args = fake_args(dtype, 1, 1, 1);
    attn_tensor *const all[] = {&args.q, &args.k, &args.v, &args.o};
    for (int i = 0; i < 4; i++) {
        const int64_t n[4] = {b, i == 1 || i == 2 ? keys : rows, h, d};
        uint64_t step = 1; /* beyond 64 bits where there are no elements */
        for (int a = 3; a >= 0; a--) {
            all[i]->shape[a] = n[a], all[i]->stride[a] = (int64_t)step;
            step *= (uint64_t)n[a];
        }
    }
    return args;
}

static void assert_forward(const attn_forward_args *args, attn_status cpu, attn_status on_gpu)
{
    attn_plan plan = {.struct_size = sizeof plan};
    uint64_t bytes;
    assert_int_equal(attn_forward_workspace(NULL, args, &bytes), cpu);
    assert_int_equal(attn_forward_plan(NULL, args, &plan), cpu);
    assert_int_equal(attn_forward_workspace(gpu, args, &bytes), on_gpu);
    assert_int_equal(attn_forward_plan(gpu, args, &plan), on_gpu);
}

static void assert_backward(const attn_forward_args *forward, attn_status cpu, attn_status on_gpu)
{
    attn_forward_args f = *forward;
    attn_plan plan = {.struct_size = sizeof plan};
    f.lse = f.o, f.lse.data = fake_memory(4), f.lse.dtype = ATTN_F32, f.lse.shape[3] = 1;
    attn_backward_args g = {.struct_size = sizeof g, .forward = &f, .d_o = f.o, .dq = f.q};
    g.d_o.data = fake_memory(5), g.dq.data = fake_memory(6);
    assert_int_equal(attn_backward_plan(NULL, &g, &plan), cpu);
    assert_int_equal(attn_backward_plan(gpu, &g, &plan), on_gpu);
}

/* Sequences without lengths of their own are alike. */
static void test_many_sequences(void **state)
{
    static const int64_t origin = 5;
    attn_forward_args args = args_of(ATTN_BF16, TWO(48), 1, 4, 1, 64);
    uint64_t bytes;
    (void)state;
    args.rope_base = 10000;
    args.k_new = args.v_new = args.q;
    args.k_new.data = fake_memory(4), args.v_new.data = fake_memory(5);
    assert_forward(&args, ATTN_OK, ATTN_ERR_UNSUPPORTED);
    args.q_origin = attn_tensor_bshd(&origin, ATTN_I64, 1, 1, 1, 1);
    assert_int_equal(attn_forward_workspace(NULL, &args, &bytes), ATTN_OK);

    args = args_of(ATTN_BF16, TWO(48), 1, 4, 1, 64);
    args.block_table = attn_tensor_bshd(fake_memory(4), ATTN_I32, TWO(48), 2, 1, 1);
    args.mask = attn_tensor_bshd(fake_memory(5), ATTN_BOOL, 1, 1, 1, 8);
    assert_forward(&args, ATTN_OK, ATTN_ERR_UNSUPPORTED);
    args.mask.shape[3] = 7;
    assert_forward(&args, ATTN_ERR_INVALID_ARGUMENT, ATTN_ERR_INVALID_ARGUMENT);
    args.block_table.shape[0] = args.q.shape[0] = args.o.shape[0] = 0; /* not fewer with none */
    assert_forward(&args, ATTN_ERR_INVALID_ARGUMENT, ATTN_ERR_INVALID_ARGUMENT);
}

/* Products of extents leave 64 bits, whatever other extents are 0. */
static void test_no_sequences(void **state)
{
    static int64_t starts[101];
    attn_forward_args args = args_of(ATTN_BF16, 0, TWO(31), 8, TWO(33), 64);
    uint64_t bytes;
    (void)state;
    assert_forward(&args, ATTN_ERR_OVERFLOW, ATTN_OK);
    assert_backward(&args, ATTN_OK, ATTN_ERR_OVERFLOW); /* no gradient has elements */
    args.rope_base = 10000;
    assert_forward(&args, ATTN_ERR_OVERFLOW, ATTN_ERR_OVERFLOW);
    args = args_of(ATTN_BF16, 2, 0, 4, 8, 64);
    args.rope_base = 10000;
    assert_int_equal(attn_forward_workspace(gpu, &args, &bytes), ATTN_OK);
    assert_int_equal(bytes, 0); /* no row is rotated */

    args = args_of(ATTN_BF16, TWO(32), 0, 0, TWO(32), 64);
    assert_forward(&args, ATTN_ERR_OVERFLOW, ATTN_OK);
    assert_backward(&args, ATTN_OK, ATTN_ERR_OVERFLOW); /* no gradient has elements */

    args = args_of(ATTN_BF16, 1, TWO(20), TWO(20), TWO(38), 2);
    args.cu_seqlens_q = args.cu_seqlens_k = attn_tensor_bshd(starts, ATTN_I64, 101, 1, 1, 1);
    assert_forward(&args, ATTN_OK, ATTN_ERR_UNSUPPORTED);
}

/* Columns beyond what kernels count. */
static void test_many_columns(void **state)
{
    const attn_forward_args args = args_of(ATTN_F32, 1, 4, 4, 1, TWO(37));
    (void)state;
    assert_forward(&args, ATTN_OK, ATTN_ERR_UNSUPPORTED);
    assert_non_null(strstr(attn_last_error(), "count to 2^30"));
    assert_backward(&args, ATTN_OK, ATTN_ERR_UNSUPPORTED);
    assert_non_null(strstr(attn_last_error(), "count to 2^30"));
}

/* Visible scores are counted to the last one beside more keys than products of f64 hold: rows of 6
 * to 9 of them. */
static void test_window_of_many_keys(void **state)
{
    attn_forward_args args = args_of(ATTN_F32, 1, 4, TWO(40), 1, 8);
    attn_plan plan = {.struct_size = sizeof plan};
    (void)state;
    args.flags = ATTN_WINDOW, args.window_left = args.window_right = 5;
    assert_int_equal(attn_forward_plan(NULL, &args, &plan), ATTN_OK);
    assert_true(plan.flops == 2 * (8 + 8) * (6 + 7 + 8 + 9));
    assert_int_equal(attn_forward_plan(gpu, &args, &plan), ATTN_OK);
    assert_true(plan.flops == 2 * (8 + 8) * (6 + 7 + 8 + 9));
}

/* A copy that would align rows of a mask is left out where 64 bits do not hold it; one that kernels
 * need is an error. */
static void test_large_masks(void **state)
{
    attn_forward_args args = args_of(ATTN_BF16, 1, TWO(28), TWO(28), 16, 64);
    (void)state;
    args.mask = attn_tensor_bshd(fake_memory(4), ATTN_U8, 1, 16, TWO(28), TWO(28));
    for (int a = 1; a < 3; a++) {
        args.mask.stride[a] += a == 2 ? 1 : TWO(28);
    }
    assert_forward(&args, ATTN_OK, ATTN_OK);
    args.mask.dtype = ATTN_I32, args.mask.stride[2]--;
    args.mask.stride[1] -= TWO(28);
    assert_forward(&args, ATTN_OK, ATTN_ERR_OVERFLOW);

    args = args_of(ATTN_F32, 1, 4, 4, 1, 8);
    args.k.shape[1] = args.v.shape[1] = INT64_MAX, args.k.stride[1] = args.v.stride[1] = 0;
    args.mask = attn_tensor_bshd(fake_memory(4), ATTN_I32, 1, 1, 1, INT64_MAX);
    args.mask.stride[0] = args.mask.stride[1] = args.mask.stride[2] = args.mask.stride[3] = 0;
    assert_forward(&args, ATTN_ERR_OVERFLOW, ATTN_ERR_OVERFLOW);
    assert_non_null(strstr(attn_last_error(), "the mask"));
}

/* Overlaps come before the size of the workspace, whose bytes behind those handed in do not count,
 * and before the news that there is nothing to do. */
static void test_overlaps(void **state)
{
    attn_forward_args args = fake_args(ATTN_BF16, 300, 300, 64), none;
    char *const before = (char *)args.o.data - 64;
    uint64_t bytes;
    (void)state;
    args.mask = attn_tensor_bshd(fake_memory(4), ATTN_I32, 1, 1, 300, 300);
    assert_int_equal(attn_forward_workspace(gpu, &args, &bytes), ATTN_OK);
    args.workspace = before, args.workspace_bytes = 64;
    assert_int_equal(attn_forward(gpu, &args), ATTN_ERR_WORKSPACE);
    args.workspace_bytes = 65;
    assert_int_equal(attn_forward(gpu, &args), ATTN_ERR_INVALID_ARGUMENT);
    args.workspace_bytes = bytes;
    assert_int_equal(attn_forward(gpu, &args), ATTN_ERR_INVALID_ARGUMENT);

    args.lse = attn_tensor_bshd(fake_memory(5), ATTN_F32, 2, 300, 4, 1);
    attn_backward_args g = {.struct_size = sizeof g, .forward = &args, .d_o = args.o};
    g.dq = args.q, g.dq.data = fake_memory(6);
    for (int masked = 1; masked >= 0; masked--) {
        args.mask.data = masked ? args.mask.data : NULL;
        g.workspace = (char *)g.dq.data - 64, g.workspace_bytes = 64;
        assert_int_equal(attn_backward(gpu, &g), ATTN_ERR_WORKSPACE);
        g.workspace_bytes = 65;
        assert_int_equal(attn_backward(gpu, &g), ATTN_ERR_INVALID_ARGUMENT);
    }

    none = fake_args(ATTN_BF16, 1, 300, 64);
    none.k_new = attn_tensor_bshd(fake_memory(4), ATTN_BF16, 2, 1, 4, 64);
    none.v_new = none.k_new, none.v = none.k;
    none.q.shape[2] = none.o.shape[2] = 0;
    assert_int_equal(attn_forward(gpu, &none), ATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "k and v overlap"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_sequences), cmocka_unit_test(test_no_sequences),
        cmocka_unit_test(test_many_columns),   cmocka_unit_test(test_window_of_many_keys),
        cmocka_unit_test(test_large_masks),    cmocka_unit_test(test_overlaps),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
