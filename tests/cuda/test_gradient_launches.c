/*
 * test_gradient_launches.c: launches of a backward pass (src/cuda/backward) on a pretended GPU
 * (fake_driver.c).
 */
#include "fake_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

/* Arguments of a forward pass, and of its backward pass with dQ, dK and dV. */
typedef struct pass {
    attn_forward_args forward;
    attn_backward_args args;
} pass;

static void make_pass(pass *p, attn_dtype dtype)
{
    p->forward = fake_args(dtype, 300, 200, 64);
    p->forward.lse = attn_tensor_bshd(fake_memory(4), ATTN_F32, 2, 300, 4, 1);
    p->args = (attn_backward_args){.struct_size = sizeof p->args, .forward = &p->forward};
    p->args.d_o = p->forward.o, p->args.d_o.data = fake_memory(5);
    p->args.dq = p->forward.q, p->args.dq.data = fake_memory(6);
    p->args.dk = p->forward.k, p->args.dk.data = fake_memory(7);
    p->args.dv = p->forward.v, p->args.dv.data = fake_memory(8);
    p->args.workspace = fake_memory(9);
}

/* A context of a new pretended GPU, and a call for it. */
static attn_context *begin(pass *p, attn_dtype dtype)
{
    attn_context *context;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    make_pass(p, dtype);
    return context;
}

static void test_launches(void **state)
{
    pass p;
    attn_context *const context = begin(&p, ATTN_F64);
    (void)state;
    p.forward.lse.dtype = ATTN_F64;
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_in_range(p.args.workspace_bytes, 2 * 2 * 4 * 300 * 8, 3 * 2 * 4 * 300 * 8);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 3); /* delta, keys, rows */
    assert_string_equal(fake.last.kernel, "attn_backward_f64_rows");
    assert_int_equal(fake.last.grid, 2 * 4 * 5);
    p.args.dq.data = NULL;
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 5);
    assert_string_equal(fake.last.kernel, "attn_backward_f64_keys");
    assert_int_equal(fake.last.grid, 2 * 4 * 4);
    attn_context_destroy(context);
}

/* On tensor cores without the TMA. */
static void test_mma(void **state)
{
    pass p;
    attn_context *const context = begin(&p, ATTN_F32);
    (void)state;
    p.forward.softcap = 3;
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 4); /* delta; keys, rows; noted blocks */
    assert_int_equal(fake.maps, 0);
    assert_string_equal(fake.last.kernel, "attn_backward_f32_noted");
    assert_int_equal(fake.last.grid, 3); /* 2 x 4 x 5 notes of rows, 16 for a CTA */
    attn_context_destroy(context);
}

/* On tensor cores: blocks with non-finite results are done again by plain kernels. */
static void test_tensor_cores(void **state)
{
    pass p;
    attn_context *const context = begin(&p, ATTN_BF16);
    (void)state;
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 4); /* delta; ordered, round; noted blocks */
    assert_int_equal(fake.maps, 4);
    assert_string_equal(fake.last.kernel, "attn_backward_f32_noted");
    assert_int_equal(fake.last.grid, 3); /* 2 x 4 x 5 notes of rows, 16 for a CTA */
    attn_context_destroy(context);
}

/* Many heads, whose first keys see all rows: the ordered kernel rounds dQ. */
static void test_rounding(void **state)
{
    pass p;
    attn_context *const context = begin(&p, ATTN_BF16);
    attn_tensor *const of_batch[] = {&p.forward.q, &p.forward.k, &p.forward.v,
                                     &p.forward.o, &p.args.d_o,  &p.forward.lse,
                                     &p.args.dq,   &p.args.dk,   &p.args.dv};
    (void)state;
    for (int i = 0; i < 9; i++) {
        of_batch[i]->shape[0] = 11; /* four heads each, 132 multiprocessors */
    }
    p.forward.flags = ATTN_CAUSAL;
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 3); /* delta; rounded; noted blocks */
    assert_string_equal(fake.kernels[1], "attn_backward_sm90_bf16_d64_rounded");
    assert_int_equal(fake.maps, 4 + 3);
    p.forward.flags = ATTN_WINDOW, p.forward.window_left = 20, p.forward.window_right = 0;
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 3 + 4); /* the last rows do not see the first keys */
    p.forward.window_left = 150;
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 3 + 4 + 3);
    p.args.dv.data = NULL;
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 3 + 4 + 3 + 4);
    for (int i = 0; i < 9; i++) {
        of_batch[i]->shape[0] = 10;
    }
    p.args.dv.data = fake_memory(8), p.forward.flags = 0;
    p.forward.window_left = p.forward.window_right = 0;
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 3 + 4 + 3 + 4 + 4);
    attn_context_destroy(context);
}

/* Of many rows delta is found beside the ordered kernel: 32 units of 32 rows for each of 132
 * multiprocessors, or for each pair of them. */
static void test_ahead(void **state)
{
    pass p;
    attn_context *const context = begin(&p, ATTN_BF16);
    attn_tensor *const of_batch[] = {&p.forward.q, &p.forward.k, &p.forward.v,
                                     &p.forward.o, &p.args.d_o,  &p.forward.lse,
                                     &p.args.dq,   &p.args.dk,   &p.args.dv};
    const char *const names[] = {
        "attn_backward_sm90_bf16_d64_delta", "attn_backward_sm90_bf16_d64_ahead",
        "attn_backward_sm90_bf16_d256_delta", "attn_backward_sm90_bf16_d256_ahead"};
    (void)state;
    for (int n = 0; n < 4; n++) {
        for (int i = 0; i < 9; i++) {
            attn_tensor *const t = of_batch[i];
            const int64_t sequences = (n < 2 ? 105 : 52) + n % 2; /* four heads of ten units each */
            *t = attn_tensor_bshd(t->data, (attn_dtype)t->dtype, sequences, t->shape[1], 4,
                                  i == 5  ? 1
                                  : n < 2 ? 64
                                          : 256);
        }
        fake.launches = 0;
        assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes),
                         ATTN_OK);
        assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
        assert_string_equal(fake.kernels[0], names[n]);
    }
    attn_context_destroy(context);
}

/* The workspace of a backward pass with as many sequences of 2048 rows and 700 keys. */
static int64_t bytes_of(attn_context *context, pass *p, int64_t sequences)
{
    attn_tensor *const rows[] = {&p->forward.q, &p->forward.o, &p->forward.lse, &p->args.d_o,
                                 &p->args.dq};
    attn_tensor *const keys[] = {&p->forward.k, &p->forward.v, &p->args.dk, &p->args.dv};
    uint64_t bytes = 0;
    for (int i = 0; i < 5; i++) {
        *rows[i] = attn_tensor_bshd(rows[i]->data, (attn_dtype)rows[i]->dtype, sequences, 2048, 4,
                                    rows[i]->shape[3]);
    }
    for (int i = 0; i < 4; i++) {
        *keys[i] = attn_tensor_bshd(keys[i]->data, ATTN_BF16, sequences, 700, 4, 64);
    }
    assert_int_equal(attn_backward_workspace(context, &p->args, &bytes), ATTN_OK);
    return (int64_t)bytes;
}

/* Of calls with two items for each of 132 multiprocessors, 11 sequences of four heads and six
 * blocks, the first keys leave a rest for each multiprocessor, whose sums lie in the workspace. */
static void test_rests(void **state)
{
    enum { EACH = 4 * (2 * 128 * 64 + 4 * 256), SLACK = 4096 };
    pass p;
    attn_context *const context = begin(&p, ATTN_BF16);
    (void)state;
    for (int narrow = 0; narrow < 2; narrow++) {
        const int64_t nine = bytes_of(context, &p, 9), ten = bytes_of(context, &p, 10),
                      eleven = bytes_of(context, &p, 11), more = eleven - (2 * ten - nine);
        assert_in_range(more + SLACK, narrow ? 0 : 132 * EACH,
                        (narrow ? 0 : 132 * EACH) + 2 * SLACK);
        /* the first keys are for 14 tiles of rows */
        p.forward.flags = ATTN_WINDOW, p.forward.window_left = 1600, p.forward.window_right = 0;
    }
    attn_context_destroy(context);
}

/* f32 by parts, whose workspace has six bytes for each of 64 columns of Q and dO. */
static void test_parts(void **state)
{
    enum { ROWS = 2 * 4 * 300 };
    pass p;
    attn_context *const context = begin(&p, ATTN_F32);
    (void)state;
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_true(p.args.workspace_bytes > ROWS * 64 * (2 * 6 + 4));
    assert_true(p.args.workspace_bytes < ROWS * 64 * (2 * 6 + 4) * 5 / 4);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 4); /* as in 16 bits */
    assert_int_equal(fake.maps, 2);     /* of parts of Q and dO */
    p.args.dk.data = p.args.dv.data = NULL;
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 8); /* dQ comes from the same kernel */
    p.args.dq.data = (char *)p.args.dq.data + 8;
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 11); /* rows that are not aligned: by backward_sm80 */
    attn_context_destroy(context);
}

/* Heads of one tile: one launch. */
static void test_single(void **state)
{
    pass p;
    attn_context *const context = begin(&p, ATTN_F32);
    (void)state;
    attn_tensor *const of_rows[] = {&p.forward.q, &p.forward.o, &p.args.d_o, &p.forward.lse,
                                    &p.args.dq},
                       *const of_keys[] = {&p.forward.k, &p.forward.v, &p.args.dk, &p.args.dv};
    for (int i = 0; i < 5; i++) {
        of_rows[i]->shape[1] = 64;
    }
    for (int i = 0; i < 4; i++) {
        of_keys[i]->shape[1] = 50;
    }
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 1);
    assert_int_equal(fake.maps, 0);
    p.args.dq.data = NULL;
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 2);
    p.forward.q.stride[3] = 2, p.forward.q.stride[2] *= 2, p.forward.q.stride[1] *= 2;
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 2 + 3); /* delta, ordered, keys again */
    attn_context_destroy(context);
}

/* Gradients of a bias and of slopes on tensor cores. */
static void test_fast_sums(void **state)
{
    pass p;
    attn_context *const context = begin(&p, ATTN_F16);
    (void)state;
    p.args.dq.data = p.args.dk.data = p.args.dv.data = NULL;
    p.forward.bias = attn_tensor_bshd(fake_memory(10), ATTN_F32, 1, 4, 300, 200);
    p.args.d_bias = p.forward.bias, p.args.d_bias.data = fake_memory(11);
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 2); /* delta, elements */
    assert_string_equal(fake.last.kernel, "attn_backward_sm90_steps_f16_d128_sums");
    assert_int_equal(fake.last.grid, 4 * 5 * 2); /* 64 rows x 128 keys */

    /* an element with more terms than a sum in f32 may have */
    attn_tensor *const of_batch[] = {&p.forward.q, &p.forward.k, &p.forward.v,
                                     &p.forward.o, &p.args.d_o,  &p.forward.lse};
    for (int i = 0; i < 6; i++) {
        of_batch[i]->shape[0] = 1025;
    }
    p.forward.bias.shape[1] = p.args.d_bias.shape[1] = 1;
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_string_equal(fake.last.kernel, "attn_backward_f32_scores");
    attn_context_destroy(context);
}

/* Sums of dS for a bias of each kind, slopes and sinks. */
static void test_sums(void **state)
{
    pass p;
    attn_context *const context = begin(&p, ATTN_F64);
    (void)state;
    p.forward.lse.dtype = ATTN_F64;
    p.args.dq.data = p.args.dk.data = p.args.dv.data = NULL;
    p.forward.bias = attn_tensor_bshd(fake_memory(10), ATTN_F32, 1, 4, 300, 200);
    p.args.d_bias = p.forward.bias, p.args.d_bias.data = fake_memory(11);
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 2); /* delta, an element for each score */
    assert_string_equal(fake.last.kernel, "attn_backward_f64_scores");
    assert_int_equal(fake.last.grid, 4 * 5 * 4);
    p.forward.alibi_slopes = attn_tensor_bshd(fake_memory(12), ATTN_F32, 1, 4, 1, 1);
    p.args.d_alibi_slopes = p.forward.alibi_slopes;
    p.args.d_alibi_slopes.data = fake_memory(13);
    p.args.d_bias.data = NULL;
    assert_int_equal(attn_backward(context, &p.args), ATTN_ERR_WORKSPACE);
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 5); /* delta, a sum for each row, the sums of a head */
    assert_string_equal(fake.last.kernel, "attn_backward_f64_finish");
    assert_int_equal(fake.last.grid, 4);
    attn_context_destroy(context);
}

/* The same for a head dim of 256. */
static attn_context *begin_wide(pass *p)
{
    attn_context *const context = begin(p, ATTN_BF16);
    attn_tensor *const all[] = {&p->forward.q, &p->forward.k, &p->forward.v, &p->forward.o,
                                &p->args.d_o,  &p->args.dq,   &p->args.dk,   &p->args.dv};
    for (int i = 0; i < 8; i++) {
        const int64_t rows = i == 1 || i == 2 || i > 5 ? 200 : 300;
        *all[i] = attn_tensor_bshd(all[i]->data, ATTN_BF16, 2, rows, 4, 256);
    }
    return context;
}

/* Score steps there: pairs of CTAs, and sums of dS by rows. */
static void test_wide_steps(void **state)
{
    pass p;
    attn_context *const context = begin_wide(&p);
    (void)state;
    p.forward.softcap = 50;
    p.forward.alibi_slopes = attn_tensor_bshd(fake_memory(10), ATTN_F32, 1, 4, 1, 1);
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 4); /* delta; ordered, round; noted blocks */
    assert_string_equal(fake.kernels[1], "attn_backward_sm90_steps_bf16_d256_ordered");
    assert_string_equal(fake.kernels[2], "attn_backward_sm90_steps_bf16_d256_round");
    p.args.d_alibi_slopes = p.forward.alibi_slopes;
    p.args.d_alibi_slopes.data = fake_memory(11);
    assert_int_equal(attn_backward(context, &p.args), ATTN_ERR_WORKSPACE);
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_int_equal(fake.launches, 4 + 6);
    assert_string_equal(fake.last.kernel, "attn_backward_f32_finish");
    attn_context_destroy(context);
}

/* A mask that hides the same keys from all rows is a step that kernels without steps take; sums of
 * dS end at d = 128, and sinks take none. */
static void test_sinks_beside_hidden_keys(void **state)
{
    pass p;
    attn_context *const context = begin_wide(&p);
    (void)state;
    p.forward.mask = attn_tensor_bshd(fake_memory(10), ATTN_BOOL, 2, 1, 1, 200);
    p.forward.sinks = attn_tensor_bshd(fake_memory(11), ATTN_F32, 1, 4, 1, 1);
    p.args.d_sinks = attn_tensor_bshd(fake_memory(12), ATTN_F32, 1, 4, 1, 1);
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    assert_int_equal(attn_backward(context, &p.args), ATTN_OK);
    assert_string_equal(fake.kernels[1], "attn_backward_sm90_bf16_d256_ordered");
    assert_string_equal(fake.last.kernel, "attn_backward_f32_finish");
    assert_int_equal(fake.last.grid, 4);
    attn_context_destroy(context);
}

static void test_refusals(void **state)
{
    pass p;
    attn_context *const context = begin(&p, ATTN_BF16);
    (void)state;
    assert_int_equal(attn_backward_workspace(context, &p.args, &p.args.workspace_bytes), ATTN_OK);
    p.args.workspace_bytes--;
    assert_int_equal(attn_backward(context, &p.args), ATTN_ERR_WORKSPACE);
    p.args.workspace = NULL;
    assert_int_equal(attn_backward(context, &p.args), ATTN_ERR_WORKSPACE);
    assert_non_null(strstr(attn_last_error(), "a GPU's calls do not allocate"));
    assert_int_equal(fake.launches, 0);
    p.args.workspace = p.args.dq.data, p.args.workspace_bytes++;
    assert_int_equal(attn_backward(context, &p.args), ATTN_ERR_INVALID_ARGUMENT);
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches),   cmocka_unit_test(test_tensor_cores),
        cmocka_unit_test(test_parts),      cmocka_unit_test(test_single),
        cmocka_unit_test(test_fast_sums),  cmocka_unit_test(test_sums),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_mma),
        cmocka_unit_test(test_rounding),   cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_rests),      cmocka_unit_test(test_sinks_beside_hidden_keys),
        cmocka_unit_test(test_wide_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
