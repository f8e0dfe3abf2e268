/*
 * test_refusals.c: calls whose fields are legal one by one, but make no sense together: values
 * whose flag is off, tensors that overlap. And what is not refused: absent optional tensors, plans
 * of tensors that have no memory yet, views that interleave.
 */
#include "call.h"
#include "grad_runs.h"

#include <math.h>
#include <stdlib.h>

/* Equal shapes, so that any tensor can take another one's place. */
#define LINE "b=2 hq=4 nq=6 nk=6 d=6 dtype=f32 lse=1 row_max=1 mask=i32:bhqk bias=bhqk sinks=bh"

static void assert_refused(const call *c, const attn_forward_args *args, const char *says)
{
    attn_status got = attn_forward(NULL, args);
    if (got != ATTN_ERR_INVALID_ARGUMENT || strstr(attn_last_error(), says) == NULL) {
        fail_msg("wanted \"%s\"; got %d, \"%s\"", says, got, attn_last_error());
    }
    assert_true(call_is_untouched(c));
}

/* ---- flags ----------------------------------------------------------------------------------- */

static void test_values_without_their_flag(void **state)
{
    call c;
    (void)state;
    call_open(&c, LINE);
    attn_forward_args args = *c.args;
    args.softmax_scale = 0.5;
    assert_refused(&c, &args, "softmax_scale = 0.5, but flags = 0x0 lacks ATTN_SCALE");
    args.softmax_scale = (double)NAN;
    assert_refused(&c, &args, "lacks ATTN_SCALE");
    args = *c.args, args.flags = ATTN_CAUSAL, args.window_left = 3;
    assert_refused(&c, &args,
                   "window_left = 3 and window_right = 0, but flags = 0x1 lacks ATTN_WINDOW");
    args.window_left = 0, args.window_right = -1;
    assert_refused(&c, &args, "lacks ATTN_WINDOW");
    args = *c.args, args.dropout_seed = 7,
    args.dropout_offset = 8; /* values that only dropout_p gives a meaning */
    assert_int_equal(attn_forward(NULL, &args), ATTN_OK);
    assert_true(call_is_right(&c));
    call_close(&c);
}

/* ---- types ----------------------------------------------------------------------------------- */

static void test_sentences_list_the_types(void **state)
{
    call c;
    (void)state;
    call_open(&c, LINE);
    attn_forward_args args = *c.args;
    args.mask.dtype = ATTN_F16;
    assert_refused(&c, &args,
                   "mask.dtype = 3 (f16), must be bool, u8, i8, i32, i64 or b1x8; a mask that "
                   "is added to scores is a bias");
    args = *c.args, args.bias.dtype = ATTN_U8;
    assert_refused(&c, &args, "bias.dtype = 8 (u8), must be f64, f32, f16 or bf16");
    args = *c.args, args.lse.dtype = 14;
    assert_refused(&c, &args, "lse.dtype = 14 (unknown), must be f64 or f32");
    call_close(&c);
}

/* ---- absent tensors -------------------------------------------------------------------------- */

/* data == NULL is absent, whatever type and shape are left in the struct. */
static void test_absent_tensors(void **state)
{
    static const char *const lines[] = {LINE " pass=forward", "b=2 hq=4 nq=6 nk=6 d=6 dtype=f32"};
    call with, without;
    (void)state;
    call_open(&with, lines[0]);
    call_open(&without, lines[1]);
    attn_forward_args args = *without.args;
    args.lse = with.args->lse, args.row_max = with.args->row_max, args.mask = with.args->mask;
    args.bias = with.args->bias, args.sinks = with.args->sinks,
    args.alibi_slopes = with.args->sinks;
    attn_tensor *const optional[] = {&args.lse,          &args.row_max,      &args.mask,
                                     &args.bias,         &args.sinks,        &args.o_f32,
                                     &args.alibi_slopes, &args.cu_seqlens_q, &args.seqused_k};
    for (int i = 0; i < 9; i++) {
        optional[i]->data = NULL;
        optional[i]->dtype = i % 2 ? ATTN_F32 : 99;
    }
    assert_int_equal(attn_forward(NULL, &args), ATTN_OK);
    assert_true(call_is_right(&without));
    call_close(&with);
    call_close(&without);
}

/* A list of one length is a varlen call of no sequences: all rows are outside. */
static void test_no_sequences(void **state)
{
    int32_t zero = 0;
    call c;
    (void)state;
    call_open(&c, "hq=2 nq=3 nk=5 d=4 dtype=f32 lse=1");
    attn_forward_args args = *c.args;
    args.cu_seqlens_q = args.cu_seqlens_k = attn_tensor_bshd(&zero, ATTN_I32, 1, 1, 1, 1);
    args.cu_seqlens_q.shape[0] = 0;
    assert_refused(&c, &args, "cu_seqlens_q has shape (0, 1, 1, 1), wanted (B + 1, 1, 1, 1)");
    args.cu_seqlens_q.shape[0] = 1;
    assert_int_equal(attn_forward(NULL, &args), ATTN_OK);
    const float *o = args.o.data, *lse = args.lse.data;
    assert_true(o[0] == 0 && o[23] == 0 && lse[0] == -INFINITY && lse[5] == -INFINITY);
    call_close(&c);
}

/* Plans read shapes only: required tensors may have no memory yet, and may all have the same. */
static void test_plans_of_shapes(void **state)
{
    call c;
    uint64_t right, bytes;
    attn_plan plan = {.struct_size = sizeof plan};
    (void)state;
    call_open(&c, LINE);
    assert_int_equal(attn_forward_workspace(NULL, c.args, &right), ATTN_OK);
    attn_forward_args args = *c.args;
    args.q.data = args.k.data = args.v.data = args.o.data = NULL;
    assert_int_equal(attn_forward_workspace(NULL, &args, &bytes), ATTN_OK);
    assert_int_equal(bytes, right);
    assert_int_equal(attn_forward_plan(NULL, &args, &plan), ATTN_OK);
    assert_int_equal(plan.workspace_bytes, right);
    assert_refused(&c, &args, "q.data is NULL");
    args.q.data = args.k.data = args.v.data = args.o.data = c.args->q.data;
    assert_int_equal(attn_forward_workspace(NULL, &args, &bytes), ATTN_OK);
    args.q.shape[3] = 5;
    assert_int_equal(attn_forward_workspace(NULL, &args, &bytes), ATTN_ERR_INVALID_ARGUMENT);
    call_close(&c);
}

/* ---- overlaps of the forward pass ------------------------------------------------------------ */

/* The view from the last element backwards. */
static attn_tensor reversed(attn_tensor t)
{
    for (int a = 0; a < 4; a++) {
        t.data =
            (char *)t.data + (t.shape[a] - 1) * t.stride[a] * (int64_t)attn_dtype_size(t.dtype);
        t.stride[a] *= -1;
    }
    return t;
}

/* The view whose first element is element n of the first axis after the first. */
static attn_tensor shifted(attn_tensor t, int64_t n)
{
    t.data = (char *)t.data + n * (int64_t)attn_dtype_size(t.dtype);
    return t;
}

static void test_overlaps(void **state)
{
    call c;
    (void)state;
    call_open(&c, LINE);
    attn_forward_args args = *c.args;
#define OVERLAPS(change, names)                        \
    do {                                               \
        args = *c.args;                                \
        change;                                        \
        assert_refused(&c, &args, names " overlap: "); \
    } while (0)
    OVERLAPS(args.q = args.o, "o and q");
    OVERLAPS(args.k = reversed(args.o), "o and k");
    OVERLAPS(args.v = shifted(args.o, -1), "o and v");
    OVERLAPS(args.o_f32 = args.o, "o and o_f32");
    OVERLAPS(args.row_max = args.lse, "lse and row_max");
    OVERLAPS(args.lse.data = args.o.data, "o and lse");
    OVERLAPS(args.mask.data = args.lse.data, "lse and mask");
    OVERLAPS(args.bias.data = args.o.data, "o and bias");
    OVERLAPS(args.sinks = shifted(args.lse, 9); args.sinks.shape[1] = 4;
             args.sinks.shape[2] = 1, "lse and sinks");
    OVERLAPS(args.alibi_slopes = args.sinks;
             args.alibi_slopes.data = args.row_max.data, "row_max and alibi_slopes");
    /* with gaps: the same first element */
    OVERLAPS(args.o.stride[3] = 2; args.o.stride[2] *= 2; args.o.stride[1] *= 2;
             args.o.stride[0] *= 2; args.q = args.o, "o and q");
    call_close(&c);
}

static void test_overlaps_of_the_workspace(void **state)
{
    call c;
    (void)state;
    call_open(&c, LINE);
    attn_forward_args args = *c.args;
    uint64_t needed;
    assert_int_equal(attn_forward_workspace(NULL, &args, &needed), ATTN_OK);
    char *room = malloc(2 * needed);
    attn_tensor *const tensors[] = {&args.o, &args.lse, &args.k, &args.bias};
    static const char *const names[] = {"workspace and o overlap", "workspace and lse overlap",
                                        "workspace and k overlap", "workspace and bias overlap"};
    for (int i = 0; i < 4; i++) {
        args = *c.args;
        args.workspace = room, args.workspace_bytes = 2 * needed;
        tensors[i]->data = room + (needed - 4) / 8 * 8;
        assert_refused(&c, &args, names[i]);
        tensors[i]->data = room;
        assert_refused(&c, &args, names[i]);
    }
    args = *c.args; /* beside it, however much the caller says there is */
    args.workspace = room, args.workspace_bytes = UINT64_MAX;
    args.k.data = room + (needed + 8) / 8 * 8;
    memset(args.k.data, 0, 64);
    assert_int_equal(attn_forward(NULL, &args), ATTN_OK);
    free(room);
    call_close(&c);
}

/* Rows that begin inside the row before. */
static void test_outputs_that_overlap_themselves(void **state)
{
    call c;
    (void)state;
    call_open(&c, LINE);
    attn_forward_args args = *c.args;
    args.o.stride[1] = 1;
    assert_refused(&c, &args, "o.stride reaches ");
    call_close(&c);
}

/* ---- and of the backward pass ---------------------------------------------------------------- */

#define GRADIENTS                                                                           \
    "b=2 hq=4 nq=6 nk=6 d=6 dtype=f32 bias=bhqk sinks=bh pass=backward d_lse=1 d_bias=f32 " \
    "d_sinks=1"

static problem_tensors gradients_open(attn_backward_args *backward)
{
    problem_spec problem;
    problem_tensors tensors;
    char sentence[256];
    assert_true(problem_parse(GRADIENTS, &problem, sentence, sizeof sentence));
    assert_true(problem_tensors_create(&problem, PLACE_GUARD_AFTER, &tensors));
    assert_int_equal(attn_forward(NULL, &tensors.args), ATTN_OK);
    *backward = tensors.grad;
    return tensors;
}

static void test_overlaps_of_gradients(void **state)
{
    attn_backward_args args, backward;
    problem_tensors tensors = gradients_open(&backward);
    (void)state;
    backward.forward = &tensors.args;
#define GRADIENT_OVERLAPS(change, names)                                         \
    do {                                                                         \
        args = backward;                                                         \
        change;                                                                  \
        assert_int_equal(attn_backward(NULL, &args), ATTN_ERR_INVALID_ARGUMENT); \
        if (strstr(attn_last_error(), names " overlap: ") == NULL) {             \
            fail_msg("wanted \"%s\", got \"%s\"", names, attn_last_error());     \
        }                                                                        \
        assert_true(problem_tensors_intact(&tensors));                           \
    } while (0)
    GRADIENT_OVERLAPS(args.dq = tensors.args.q, "dq and q");
    GRADIENT_OVERLAPS(args.dk = args.dv, "dk and dv");
    GRADIENT_OVERLAPS(args.dv = shifted(args.d_o, 1), "dv and d_o");
    GRADIENT_OVERLAPS(args.dk = reversed(tensors.args.o), "dk and o");
    GRADIENT_OVERLAPS(args.d_bias = tensors.args.bias, "d_bias and bias");
    GRADIENT_OVERLAPS(args.d_sinks = tensors.args.sinks, "d_sinks and sinks");
    GRADIENT_OVERLAPS(args.d_lse.data = args.dq.data, "dq and d_lse");
    uint64_t needed;
    assert_int_equal(attn_backward_workspace(NULL, &backward, &needed), ATTN_OK);
    GRADIENT_OVERLAPS(args.workspace = args.dq.data;
                      args.workspace_bytes = needed, "workspace and dq");
    GRADIENT_OVERLAPS(args.workspace = tensors.args.q.data;
                      args.workspace_bytes = needed, "workspace and q");
    problem_tensors_free(&tensors);
}

/* Only attn_backward needs the memory. */
static void test_plans_of_gradients(void **state)
{
    attn_backward_args backward;
    problem_tensors tensors = gradients_open(&backward);
    attn_forward_args forward = tensors.args;
    uint64_t right, bytes;
    (void)state;
    backward.forward = &forward;
    assert_int_equal(attn_backward_workspace(NULL, &backward, &right), ATTN_OK);
    forward.q.data = forward.k.data = forward.v.data = forward.o.data = forward.lse.data =
        backward.d_o.data = NULL;
    assert_int_equal(attn_backward_workspace(NULL, &backward, &bytes), ATTN_OK);
    assert_int_equal(bytes, right);
    assert_int_equal(attn_backward(NULL, &backward), ATTN_ERR_INVALID_ARGUMENT);
    forward.lse.shape[1] = 0; /* nothing to read, but a wrong shape */
    assert_int_equal(attn_backward_workspace(NULL, &backward, &bytes), ATTN_ERR_INVALID_ARGUMENT);
    problem_tensors_free(&tensors);
}

/* dQ, dK and dV of one row side by side have the bits of tensors of their own. */
static void test_packed_gradients(void **state)
{
    attn_backward_args backward, packed;
    problem_tensors tensors = gradients_open(&backward);
    float room[2 * 6 * 3 * 4 * 6];
    (void)state;
    backward.forward = &tensors.args;
    packed = backward;
    attn_tensor *const parts[] = {&packed.dq, &packed.dk, &packed.dv};
    const attn_tensor *const apart[] = {&backward.dq, &backward.dk, &backward.dv};
    for (int i = 0; i < 3; i++) {
        parts[i]->data = room + i * 4 * 6;
        parts[i]->stride[1] *= 3, parts[i]->stride[0] *= 3;
    }
    assert_int_equal(attn_backward(NULL, &backward), ATTN_OK);
    assert_int_equal(attn_backward(NULL, &packed), ATTN_OK);
    for (int i = 0; i < 3 * 2 * 6 * 4 * 6; i++) {
        const int which = i / 288, row = i % 288 / 24, within = i % 24;
        assert_memory_equal(room + (row * 3 + which) * 24 + within,
                            (const float *)apart[which]->data + row * 24 + within, sizeof(float));
    }
    problem_tensors_free(&tensors);
}

/* dK and dV in turn along an axis, each in the gaps of the other, do not overlap. */
static void test_gradients_in_turn(void **state)
{
    attn_backward_args backward, turned;
    problem_tensors tensors = gradients_open(&backward);
    float room[2 * 2 * 6 * 4 * 6];
    (void)state;
    backward.forward = &tensors.args;
    assert_int_equal(attn_backward(NULL, &backward), ATTN_OK);
    for (int axis = 0; axis < 4; axis++) {
        turned = backward, turned.dk.data = room, turned.dv.data = room + turned.dv.stride[axis];
        for (int a = 0; a <= axis; a++) {
            turned.dk.stride[a] *= 2, turned.dv.stride[a] *= 2;
        }
        assert_int_equal(attn_backward(NULL, &turned), ATTN_OK);
        for (int i = 0; i < 2 * 6 * 4 * 6; i++) {
            const int64_t at[] = {i / 144, i / 24 % 6, i / 6 % 4, i % 6};
            const int64_t *step = turned.dk.stride, to = at[0] * step[0] + at[1] * step[1] +
                                                         at[2] * step[2] + at[3] * step[3];
            assert_memory_equal((float *)turned.dk.data + to, (float *)backward.dk.data + i, 4);
            assert_memory_equal((float *)turned.dv.data + to, (float *)backward.dv.data + i, 4);
        }
    }
    turned.dv.data = turned.dk.data;
    assert_int_equal(attn_backward(NULL, &turned), ATTN_ERR_INVALID_ARGUMENT);
    problem_tensors_free(&tensors);
}

/* The size of pages does not matter where there are none. */
static void test_pool_without_pages(void **state)
{
    attn_cache_config pool = {.struct_size = sizeof pool, .sequences = 2, .length = 96};
    uint64_t bytes = 0;
    (void)state;
    pool.k = attn_tensor_bshd(NULL, ATTN_F32, 0, 1, 1, 4);
    pool.k.shape[1] = INT64_MAX, pool.v = pool.k;
    assert_int_equal(attn_cache_bytes(&pool, &bytes), ATTN_OK);
    assert_true(bytes > 0 && bytes < 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_without_their_flag),
        cmocka_unit_test(test_sentences_list_the_types),
        cmocka_unit_test(test_absent_tensors),
        cmocka_unit_test(test_no_sequences),
        cmocka_unit_test(test_plans_of_shapes),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_overlaps_of_the_workspace),
        cmocka_unit_test(test_outputs_that_overlap_themselves),
        cmocka_unit_test(test_overlaps_of_gradients),
        cmocka_unit_test(test_plans_of_gradients),
        cmocka_unit_test(test_packed_gradients),
        cmocka_unit_test(test_gradients_in_turn),
        cmocka_unit_test(test_pool_without_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
