/*
 * test_appends.c: launches for new rows and rotation on pretended GPUs (fake_driver.c): which come
 * before the attention, where rotated rows lie in the workspace, and the calls that are refused.
 * Results are tests/cuda/test_gpu_append.c.
 */
#include "fake_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

/* A step of two sequences with new rows of K and V, and a rotation. */
static attn_forward_args step_args(bool append, bool rotate)
{
    attn_forward_args args = fake_args(ATTN_BF16, 3, 3000, 128);
    args.rope_base = rotate ? 10000 : 0;
    if (append) {
        args.k_new = attn_tensor_bshd(fake_memory(4), ATTN_BF16, 2, 3, 4, 128);
        args.v_new = attn_tensor_bshd(fake_memory(5), ATTN_BF16, 2, 3, 4, 128);
    }
    return args;
}

static void test_order(void **state)
{
    attn_context *context;
    char *const workspace = fake_memory(6);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (int n = 0; n < 4; n++) {
        const bool append = n & 1, rotate = n & 2;
        attn_forward_args args = step_args(append, rotate);
        attn_plan plan = {.struct_size = sizeof plan};
        int next = 0;
        assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
        assert_string_equal(plan.kernel, "attn_forward_few_bf16_d128_r8");
        args.workspace = workspace, args.workspace_bytes = plan.workspace_bytes;
        fake.launches = 0;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        if (rotate) {
            assert_string_equal(fake.kernels[next++], "attn_append_rotate");
        }
        if (append) {
            assert_string_equal(fake.kernels[next++], "attn_append_store");
        }
        assert_string_equal(fake.kernels[next++], "attn_forward_few_bf16_d128_line");
        assert_string_equal(fake.kernels[next++], "attn_forward_few_bf16_merge");
        assert_int_equal(fake.launches, next);
        assert_ptr_equal(fake.last.params.problem.q.data, rotate ? workspace : args.q.data);
    }
    attn_context_destroy(context);
}

/* The kernel for new rows has a CTA for each, and knows which scales it writes. */
static void test_rows(void **state)
{
    attn_context *context;
    attn_forward_args args = step_args(true, false);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.k.dtype = args.v.dtype = ATTN_I8;
    args.k_scale = attn_tensor_bshd(fake_memory(6), ATTN_F32, 2, 3000, 4, 1);
    args.v_scale = attn_tensor_bshd(fake_memory(7), ATTN_F32, 1, 1, 4, 1);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_string_equal(fake.kernels[0], "attn_append_store");
    assert_string_equal(fake.kernels[1], "attn_forward_few_bf16_i8_d128_line");
    assert_int_equal(fake.append.rows, 2 * 3);
    assert_int_equal(fake.append.k.given, false);
    assert_int_equal(fake.append.v.given, true);
    assert_memory_equal(&fake.append.k.scale, &args.k_scale, sizeof(attn_tensor));
    attn_context_destroy(context);
}

/* Everything lies in the workspace, whatever its alignment. */
static void test_workspace(void **state)
{
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (int n = 0; n < 4; n++) {
        attn_forward_args args = step_args(true, n & 1);
        char *const first = (char *)fake_memory(8) + (n & 2 ? 4 : 0);
        uint64_t bytes;
        assert_int_equal(attn_forward_workspace(context, &args, &bytes), ATTN_OK);
        args.workspace = first, args.workspace_bytes = bytes;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        const attn_cuda_forward_params *p = &fake.last.params;
        const char *end =
            (const char *)(p->parts.sums + p->schedule.items * p->parts.rows * p->parts.columns);
        assert_in_range(end - first, 0, bytes);
        assert_true((const char *)p->parts.states >= first);
        if (n & 1) {
            const attn_rotated *to = &fake.append.rotated;
            assert_true((char *)to->q.data >= first && to->k.data > to->q.data);
            assert_true((const char *)p->parts.states >= (char *)to->q.data + to->bytes);
        }
        args.workspace_bytes--;
        assert_int_equal(attn_forward(context, &args), ATTN_ERR_WORKSPACE);
    }
    attn_context_destroy(context);
}

/* A rotation wants the workspace; new rows alone do not. */
static void test_refusals(void **state)
{
    attn_context *context;
    attn_forward_args args = step_args(true, true);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_WORKSPACE);
    assert_non_null(strstr(attn_last_error(), "are needed to rotate: a GPU's calls do not"));
    args.rope_base = 0;
    args.rope_cos = attn_tensor_bshd(fake_memory(6), ATTN_F32, 0, 64, 1, 1);
    args.rope_sin = args.rope_cos;
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(fake.launches, 0);
    args = step_args(true, false);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    args.k_new = args.k;
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_INVALID_ARGUMENT);
    args = step_args(true, false);
    args.k.shape[1] = args.v.shape[1] = 2; /* shapes say that three new rows have no room .. */
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_INVALID_ARGUMENT);
    args.seqused_k = attn_tensor_bshd(args.q.data, ATTN_I32, 2, 1, 1, 1); /* .. lengths do not */
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    attn_context_destroy(context);
}

/* Codes without a head of Q are nothing to do. */
static void test_no_heads(void **state)
{
    attn_context *context;
    attn_forward_args args = fake_args(ATTN_BF16, 1, 300, 128);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.k.dtype = args.v.dtype = ATTN_I8;
    args.k_scale = args.v_scale = attn_tensor_bshd(fake_memory(4), ATTN_F32, 1, 1, 1, 1);
    args.q.shape[2] = args.o.shape[2] = 0;
    if (attn_forward(context, &args) != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    assert_int_equal(fake.launches, 0);
    attn_context_destroy(context);
}

/* A pool without pages has no keys, whatever the table says. */
static void test_no_pages(void **state)
{
    attn_context *context;
    attn_forward_args args = step_args(false, false);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.k = attn_tensor_bshd(fake_memory(1), ATTN_BF16, 0, 16, 4, 128);
    args.v = attn_tensor_bshd(fake_memory(2), ATTN_BF16, 0, 16, 4, 128);
    args.block_table = attn_tensor_bshd(fake_memory(4), ATTN_I32, 2, 10, 1, 1);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_int_equal(fake.last.params.problem.keys, 0);
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),     cmocka_unit_test(test_rows),
        cmocka_unit_test(test_workspace), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_heads),  cmocka_unit_test(test_no_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
