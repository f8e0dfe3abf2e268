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

static void assert_refused(const call *c, const attn_forward_args *a, const char *says)
{
    attn_status got = attn_forward(NULL, a);
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
    attn_forward_args a = *c.args;
    a.softmax_scale = 0.5;
    assert_refused(&c, &a, "softmax_scale = 0.5, but flags = 0x0 lacks ATTN_SCALE");
    a.softmax_scale = (double)NAN;
    assert_refused(&c, &a, "lacks ATTN_SCALE");
    a = *c.args, a.flags = ATTN_CAUSAL, a.window_left = 3;
    assert_refused(&c, &a,
                   "window_left = 3 and window_right = 0, but flags = 0x1 lacks ATTN_WINDOW");
    a.window_left = 0, a.window_right = -1;
    assert_refused(&c, &a, "lacks ATTN_WINDOW");
    a = *c.args, a.dropout_seed = 7, a.dropout_offset = 8; /* without dropout_p they mean nothing */
    assert_int_equal(attn_forward(NULL, &a), ATTN_OK);
    assert_true(call_is_right(&c));
    call_close(&c);
}

/* ---- types ----------------------------------------------------------------------------------- */

static void test_sentences_list_the_types(void **state)
{
    call c;
    (void)state;
    call_open(&c, LINE);
    attn_forward_args a = *c.args;
    a.mask.dtype = ATTN_F16;
    assert_refused(&c, &a, "mask.dtype = 3 (f16), must be bool, u8, i8, i32 or i64");
    a = *c.args, a.bias.dtype = ATTN_U8;
    assert_refused(&c, &a, "bias.dtype = 8 (u8), must be f64, f32, f16 or bf16");
    a = *c.args, a.lse.dtype = 10;
    assert_refused(&c, &a, "lse.dtype = 10 (unknown), must be f64 or f32");
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
    attn_forward_args a = *without.args;
    a.lse = with.args->lse, a.row_max = with.args->row_max, a.mask = with.args->mask;
    a.bias = with.args->bias, a.sinks = with.args->sinks, a.alibi_slopes = with.args->sinks;
    attn_tensor *const optional[] = {&a.lse,          &a.row_max,      &a.mask,
                                     &a.bias,         &a.sinks,        &a.o_f32,
                                     &a.alibi_slopes, &a.cu_seqlens_q, &a.seqused_k};
    for (int i = 0; i < 9; i++) {
        optional[i]->data = NULL;
        optional[i]->dtype = i % 2 ? ATTN_F32 : 99;
    }
    assert_int_equal(attn_forward(NULL, &a), ATTN_OK);
    assert_true(call_is_right(&without));
    call_close(&with);
    call_close(&without);
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
    attn_forward_args a = *c.args;
    a.q.data = a.k.data = a.v.data = a.o.data = NULL;
    assert_int_equal(attn_forward_workspace(NULL, &a, &bytes), ATTN_OK);
    assert_int_equal(bytes, right);
    assert_int_equal(attn_forward_plan(NULL, &a, &plan), ATTN_OK);
    assert_int_equal(plan.workspace_bytes, right);
    assert_refused(&c, &a, "q.data is NULL");
    a.q.data = a.k.data = a.v.data = a.o.data = c.args->q.data;
    assert_int_equal(attn_forward_workspace(NULL, &a, &bytes), ATTN_OK);
    a.q.shape[3] = 5;
    assert_int_equal(attn_forward_workspace(NULL, &a, &bytes), ATTN_ERR_INVALID_ARGUMENT);
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
    attn_forward_args a = *c.args;
#define OVERLAPS(change, names)                     \
    do {                                            \
        a = *c.args;                                \
        change;                                     \
        assert_refused(&c, &a, names " overlap: "); \
    } while (0)
    OVERLAPS(a.q = a.o, "o and q");
    OVERLAPS(a.k = reversed(a.o), "o and k");
    OVERLAPS(a.v = shifted(a.o, -1), "o and v");
    OVERLAPS(a.o_f32 = a.o, "o and o_f32");
    OVERLAPS(a.row_max = a.lse, "lse and row_max");
    OVERLAPS(a.lse.data = a.o.data, "o and lse");
    OVERLAPS(a.mask.data = a.lse.data, "lse and mask");
    OVERLAPS(a.bias.data = a.o.data, "o and bias");
    OVERLAPS(a.sinks = shifted(a.lse, 9); a.sinks.shape[1] = 4;
             a.sinks.shape[2] = 1, "lse and sinks");
    OVERLAPS(a.alibi_slopes = a.sinks;
             a.alibi_slopes.data = a.row_max.data, "row_max and alibi_slopes");
    /* with gaps: the same first element */
    OVERLAPS(a.o.stride[3] = 2; a.o.stride[2] *= 2; a.o.stride[1] *= 2; a.o.stride[0] *= 2;
             a.q = a.o, "o and q");
    call_close(&c);
}

static void test_overlaps_of_the_workspace(void **state)
{
    call c;
    (void)state;
    call_open(&c, LINE);
    attn_forward_args a = *c.args;
    uint64_t needed;
    assert_int_equal(attn_forward_workspace(NULL, &a, &needed), ATTN_OK);
    char *room = malloc(2 * needed);
    attn_tensor *const tensors[] = {&a.o, &a.lse, &a.k, &a.bias};
    static const char *const names[] = {"workspace and o overlap", "workspace and lse overlap",
                                        "workspace and k overlap", "workspace and bias overlap"};
    for (int i = 0; i < 4; i++) {
        a = *c.args;
        a.workspace = room, a.workspace_bytes = 2 * needed;
        tensors[i]->data = room + (needed - 4) / 8 * 8;
        assert_refused(&c, &a, names[i]);
        tensors[i]->data = room;
        assert_refused(&c, &a, names[i]);
    }
    a = *c.args; /* beside it, however much the caller says there is */
    a.workspace = room, a.workspace_bytes = UINT64_MAX;
    a.k.data = room + (needed + 8) / 8 * 8;
    memset(a.k.data, 0, 64);
    assert_int_equal(attn_forward(NULL, &a), ATTN_OK);
    free(room);
    call_close(&c);
}

/* Rows that begin inside the row before. */
static void test_outputs_that_overlap_themselves(void **state)
{
    call c;
    (void)state;
    call_open(&c, LINE);
    attn_forward_args a = *c.args;
    a.o.stride[1] = 1;
    assert_refused(&c, &a, "o has strides by which its elements share memory for ");
    call_close(&c);
}

/* ---- and of the backward pass ---------------------------------------------------------------- */

#define GRADIENTS                                                                           \
    "b=2 hq=4 nq=6 nk=6 d=6 dtype=f32 bias=bhqk sinks=bh pass=backward d_lse=1 d_bias=f32 " \
    "d_sinks=1"

static problem_tensors gradients_open(attn_backward_args *g)
{
    problem p;
    problem_tensors t;
    char sentence[256];
    assert_true(problem_parse(GRADIENTS, &p, sentence, sizeof sentence));
    assert_true(problem_tensors_create(&p, PLACE_GUARD_AFTER, &t));
    assert_int_equal(attn_forward(NULL, &t.args), ATTN_OK);
    *g = t.grad;
    return t;
}

static void test_overlaps_of_gradients(void **state)
{
    attn_backward_args a, g;
    problem_tensors t = gradients_open(&g);
    (void)state;
    g.forward = &t.args;
#define GRADIENT_OVERLAPS(change, names)                                      \
    do {                                                                      \
        a = g;                                                                \
        change;                                                               \
        assert_int_equal(attn_backward(NULL, &a), ATTN_ERR_INVALID_ARGUMENT); \
        if (strstr(attn_last_error(), names " overlap: ") == NULL) {          \
            fail_msg("wanted \"%s\", got \"%s\"", names, attn_last_error());  \
        }                                                                     \
        assert_true(problem_tensors_intact(&t));                              \
    } while (0)
    GRADIENT_OVERLAPS(a.dq = t.args.q, "dq and q");
    GRADIENT_OVERLAPS(a.dk = a.dv, "dk and dv");
    GRADIENT_OVERLAPS(a.dv = shifted(a.d_o, 1), "dv and d_o");
    GRADIENT_OVERLAPS(a.dk = reversed(t.args.o), "dk and o");
    GRADIENT_OVERLAPS(a.d_bias = t.args.bias, "d_bias and bias");
    GRADIENT_OVERLAPS(a.d_sinks = t.args.sinks, "d_sinks and sinks");
    GRADIENT_OVERLAPS(a.d_lse.data = a.dq.data, "dq and d_lse");
    uint64_t needed;
    assert_int_equal(attn_backward_workspace(NULL, &g, &needed), ATTN_OK);
    GRADIENT_OVERLAPS(a.workspace = a.dq.data; a.workspace_bytes = needed, "workspace and dq");
    GRADIENT_OVERLAPS(a.workspace = t.args.q.data; a.workspace_bytes = needed, "workspace and q");
    problem_tensors_free(&t);
}

/* Only attn_backward needs the memory. */
static void test_plans_of_gradients(void **state)
{
    attn_backward_args g;
    problem_tensors t = gradients_open(&g);
    attn_forward_args f = t.args;
    uint64_t right, bytes;
    (void)state;
    g.forward = &f;
    assert_int_equal(attn_backward_workspace(NULL, &g, &right), ATTN_OK);
    f.q.data = f.k.data = f.v.data = f.o.data = f.lse.data = g.d_o.data = NULL;
    assert_int_equal(attn_backward_workspace(NULL, &g, &bytes), ATTN_OK);
    assert_int_equal(bytes, right);
    assert_int_equal(attn_backward(NULL, &g), ATTN_ERR_INVALID_ARGUMENT);
    f.lse.shape[1] = 0; /* nothing to read, but not of the shape */
    assert_int_equal(attn_backward_workspace(NULL, &g, &bytes), ATTN_ERR_INVALID_ARGUMENT);
    problem_tensors_free(&t);
}

/* dQ, dK and dV of one row side by side have the bits of tensors of their own. */
static void test_packed_gradients(void **state)
{
    attn_backward_args g, packed;
    problem_tensors t = gradients_open(&g);
    float room[2 * 6 * 3 * 4 * 6];
    (void)state;
    g.forward = &t.args;
    packed = g;
    attn_tensor *const parts[] = {&packed.dq, &packed.dk, &packed.dv};
    const attn_tensor *const apart[] = {&g.dq, &g.dk, &g.dv};
    for (int i = 0; i < 3; i++) {
        parts[i]->data = room + i * 4 * 6;
        parts[i]->stride[1] *= 3, parts[i]->stride[0] *= 3;
    }
    assert_int_equal(attn_backward(NULL, &g), ATTN_OK);
    assert_int_equal(attn_backward(NULL, &packed), ATTN_OK);
    for (int i = 0; i < 3 * 2 * 6 * 4 * 6; i++) {
        const int which = i / 288, row = i % 288 / 24, within = i % 24;
        assert_memory_equal(room + (row * 3 + which) * 24 + within,
                            (const float *)apart[which]->data + row * 24 + within, sizeof(float));
    }
    problem_tensors_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_without_their_flag),
        cmocka_unit_test(test_sentences_list_the_types),
        cmocka_unit_test(test_absent_tensors),
        cmocka_unit_test(test_plans_of_shapes),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_overlaps_of_the_workspace),
        cmocka_unit_test(test_outputs_that_overlap_themselves),
        cmocka_unit_test(test_overlaps_of_gradients),
        cmocka_unit_test(test_plans_of_gradients),
        cmocka_unit_test(test_packed_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
