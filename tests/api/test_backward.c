/*
 * test_backward.c: the ways of calling attn_backward: wrong arguments (C8, F3), workspaces and
 * allocations (F1), older and newer structs. tests/op has the results.
 */
#include "call.h"
#include "core/segment.h"
#include "grad_runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DENSE                                                                                   \
    "b=2 hq=4 hkv=2 nq=5 nk=7 d=8 dtype=bf16 o_dtype=f32 bias=bhqk alibi=h sinks=h used_q=5,4 " \
    "pass=backward d_lse=1 "                                                                    \
    "d_bias=f32 d_alibi=1 d_sinks=1"

static void open_gradients(problem_tensors *tensors)
{
    problem_spec problem;
    char sentence[256];
    assert_true(problem_parse(DENSE, &problem, sentence, sizeof sentence));
    assert_true(problem_tensors_create(&problem, PLACE_GUARD_AFTER, tensors));
    assert_int_equal(attn_forward(NULL, &tensors->args), ATTN_OK);
}

static bool untouched(const problem_tensors *tensors)
{
    size_t bytes;
    unsigned char *now = grad_runs_copy(&tensors->grad, &bytes);
    bool same = true;
    for (size_t i = 0; i < bytes; i++) {
        same = same && now[i] == 0xFF;
    }
    free(now);
    return same && problem_tensors_intact(tensors);
}

/* A word of attn_backward_args, or of the attn_forward_args in it, and its new value. */
#define GRADIENT(member, value, status, says)                                                   \
    {                                                                                           \
        false, offsetof(attn_backward_args, member), sizeof(((attn_backward_args *)0)->member), \
            value, ATTN_ERR_##status, says                                                      \
    }
#define FORWARD(member, value, status, says)                                                 \
    {                                                                                        \
        true, offsetof(attn_forward_args, member), sizeof(((attn_forward_args *)0)->member), \
            value, ATTN_ERR_##status, says                                                   \
    }

static const struct {
    bool forward;
    size_t at, size;
    int64_t value;
    attn_status status;
    const char *says;
} wrong[] = {
    GRADIENT(struct_size, 0, INVALID_ARGUMENT, "attn_backward_args.struct_size = 0"),
    GRADIENT(forward, 0, INVALID_ARGUMENT, "attn_backward_args.forward is NULL"),
    FORWARD(struct_size, 0, INVALID_ARGUMENT, "attn_forward_args.struct_size = 0"),
    FORWARD(q.shape[3], 7, INVALID_ARGUMENT, "k.shape[3] = 8 but q.shape[3] = 7"),
    FORWARD(k.dtype, ATTN_F32, INVALID_ARGUMENT, "must be the same"),
    FORWARD(o.data, 4097, INVALID_ARGUMENT, "o.data = 0x1001 is not aligned"),
    FORWARD(o.dtype, ATTN_F16, INVALID_ARGUMENT, "o.dtype = 3"),
    FORWARD(o_f32.data, 4096, INVALID_ARGUMENT, "o_f32.dtype = 0 (none), must be f32"),
    FORWARD(lse.data, 4097, INVALID_ARGUMENT, "lse.data = 0x1001 is not aligned"),
    FORWARD(lse.dtype, ATTN_BF16, INVALID_ARGUMENT, "lse.dtype = 4"),
    FORWARD(lse.shape[2], 2, INVALID_ARGUMENT, "lse.shape[2] = 2 but q.shape[2] = 4"),
    GRADIENT(d_o.data, 4097, INVALID_ARGUMENT, "d_o.data = 0x1001 is not aligned"),
    GRADIENT(d_o.dtype, ATTN_F64, INVALID_ARGUMENT, "d_o.dtype = 1"),
    GRADIENT(d_o.shape[1], 4, INVALID_ARGUMENT, "d_o.shape[1] = 4 but o.shape[1] = 5"),
    GRADIENT(d_lse.shape[3], 2, INVALID_ARGUMENT, "d_lse.shape[3] = 2 but lse.shape[3] = 1"),
    GRADIENT(dq.dtype, ATTN_F16, INVALID_ARGUMENT, "dq.dtype = 3"),
    GRADIENT(dq.shape[0], 3, INVALID_ARGUMENT, "dq.shape[0] = 3 but q.shape[0] = 2"),
    GRADIENT(dk.shape[2], 1, INVALID_ARGUMENT, "dk.shape[2] = 1 but k.shape[2] = 2"),
    GRADIENT(dv.stride[1], 0, INVALID_ARGUMENT,
             "dv.stride[1] = 0 would write 7 elements to one place"),
    GRADIENT(dv.data, 4097, INVALID_ARGUMENT, "dv.data = 0x1001 is not aligned"),
    GRADIENT(d_bias.shape[0], 1, INVALID_ARGUMENT, "d_bias.shape[0] = 1 but bias.shape[0] = 2"),
    GRADIENT(d_bias.dtype, ATTN_BOOL, INVALID_ARGUMENT, "d_bias.dtype = 5"),
    GRADIENT(d_alibi_slopes.dtype, ATTN_BF16, INVALID_ARGUMENT, "d_alibi_slopes.dtype = 4"),
    GRADIENT(d_sinks.shape[1], 1, INVALID_ARGUMENT, "d_sinks.shape[1] = 1 but sinks.shape[1] = 4"),
    GRADIENT(d_sinks.reserved, 1, UNKNOWN_FIELD, "d_sinks.reserved = 1"),
    FORWARD(flags, 1 << 20, INVALID_ARGUMENT, "flags = 0x100000"),
    FORWARD(softcap, -1, INVALID_ARGUMENT, "softcap = "),
    FORWARD(dropout_p, INT64_C(0x4000000000000000), INVALID_ARGUMENT,
            "dropout_p = 2 must be in [0, 1]"),
    FORWARD(dropout_p, -1, INVALID_ARGUMENT, "dropout_p = "),
    GRADIENT(stream, 64, INVALID_ARGUMENT, "stream = 0x40"),
    FORWARD(q.shape[1], INT64_C(1) << 62, OVERFLOW, "leaves 64 bits"),
};

static void test_wrong_fields(void **state)
{
    problem_tensors tensors;
    (void)state;
    open_gradients(&tensors);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        attn_forward_args forward = tensors.args;
        attn_backward_args args = tensors.grad;
        uint64_t bytes = 5;
        args.forward = &forward;
        memcpy((wrong[i].forward ? (char *)&forward : (char *)&args) + wrong[i].at, &wrong[i].value,
               wrong[i].size);
        attn_plan plan = {.struct_size = sizeof plan};
        for (int function = 0; function < 3; function++) {
            attn_status got = function == 0   ? attn_backward(NULL, &args)
                              : function == 1 ? attn_backward_workspace(NULL, &args, &bytes)
                                              : attn_backward_plan(NULL, &args, &plan);
            if (got != wrong[i].status || strstr(attn_last_error(), wrong[i].says) == NULL) {
                fail_msg("wanted %d, \"%s\"; got %d, \"%s\"", wrong[i].status, wrong[i].says, got,
                         attn_last_error());
            }
        }
        assert_int_equal(bytes, 0);
        assert_true(untouched(&tensors));
    }
    problem_tensors_free(&tensors);
}

/* row_max, workspace and stream of *forward are ignored. */
static void test_fields_of_the_forward_call(void **state)
{
    problem_tensors tensors;
    (void)state;
    open_gradients(&tensors);
    attn_forward_args forward = tensors.args;
    attn_backward_args args = tensors.grad;
    args.forward = &forward;
    memset(&forward.row_max, 0xA5, sizeof forward.row_max);
    memset(&forward.workspace, 0xA5,
           offsetof(attn_forward_args, block_table) - offsetof(attn_forward_args, workspace));
    assert_int_equal(attn_backward(NULL, &args), ATTN_OK);
    problem_tensors_free(&tensors);
}

static void test_null_and_missing(void **state)
{
    problem_tensors tensors;
    uint64_t bytes;
    (void)state;
    open_gradients(&tensors);
    assert_int_equal(attn_backward(NULL, NULL), ATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(attn_backward_workspace(NULL, NULL, &bytes), ATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(attn_backward_workspace(NULL, &tensors.grad, NULL), ATTN_ERR_INVALID_ARGUMENT);
    attn_forward_args forward = tensors.args;
    attn_backward_args args = tensors.grad;
    args.forward = &forward;
    memset(&forward.sinks, 0, sizeof forward.sinks);
    assert_int_equal(attn_backward(NULL, &args), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "d_sinks is given without sinks");
    assert_true(untouched(&tensors));
    problem_tensors_free(&tensors);
}

static attn_tensor no_elements(int64_t b, int64_t heads, int64_t last)
{
    static float nothing;
    attn_tensor t = attn_tensor_bshd(&nothing, ATTN_F32, b, 0, heads, last);
    return t;
}

/* No gradient asked for, or none with an element: no work, however many heads; and more of them
 * than can be counted. */
static void test_nothing_to_write(void **state)
{
    const int64_t many = INT64_C(1) << 40;
    const attn_tensor row = no_elements(many, many, 8), one = no_elements(many, many, 1);
    float slope = 1, d_slope = 5;
    uint64_t bytes = 5;
    problem_tensors tensors;
    (void)state;
    open_gradients(&tensors);
    attn_backward_args args = tensors.grad;
    attn_tensor *const out[] = {
        &args.dq, &args.dk, &args.dv, &args.d_bias, &args.d_alibi_slopes, &args.d_sinks};
    for (int i = 0; i < 6; i++) {
        memset(out[i], 0, sizeof *out[i]);
    }
    assert_int_equal(attn_backward_workspace(NULL, &args, &bytes), ATTN_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(attn_backward(NULL, &args), ATTN_OK);
    assert_true(untouched(&tensors));
    problem_tensors_free(&tensors);
    attn_forward_args forward = {
        .struct_size = sizeof forward, .q = row, .k = row, .v = row, .o = row, .lse = one};
    args = (attn_backward_args){.struct_size = sizeof args,
                                .forward = &forward,
                                .d_o = row,
                                .dq = row,
                                .dk = row,
                                .dv = row};
    assert_int_equal(attn_backward_workspace(NULL, &args, &bytes), ATTN_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(attn_backward(NULL, &args), ATTN_OK);
    forward.alibi_slopes = attn_tensor_bshd(&slope, ATTN_F32, 1, 1, 1, 1);
    args.d_alibi_slopes = attn_tensor_bshd(&d_slope, ATTN_F32, 1, 1, 1, 1);
    assert_int_equal(attn_backward(NULL, &args), ATTN_ERR_OVERFLOW);
    assert_true(d_slope == 5);
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct books {
    int calls, live;
    bool refuse;
} books;

static void *books_alloc(void *user, size_t size, size_t alignment)
{
    books *b = user;
    b->calls++;
    if (b->refuse) {
        return NULL;
    }
    b->live++;
    void *memory = aligned_alloc(alignment, size);
    memset(memory, 0xFF, size);
    return memory;
}

static void books_free(void *user, void *ptr, size_t size)
{
    books *b = user;
    (void)size;
    b->live--;
    free(ptr);
}

/* One allocation without a workspace, none with one. A refused allocation or a workspace too small
 * writes nothing. */
static void test_memory(void **state)
{
    books b = {0};
    attn_context_config config = {.struct_size = sizeof config, .threads = 3};
    attn_context *context;
    problem_tensors tensors;
    guarded_region room;
    (void)state;
    config.allocator = (attn_allocator){&b, books_alloc, books_free};
    open_gradients(&tensors);
    assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
    int live = b.live;
    attn_backward_args args = tensors.grad;
    b.calls = 0, b.refuse = true;
    assert_int_equal(attn_backward(context, &args), ATTN_ERR_OUT_OF_MEMORY);
    assert_non_null(strstr(attn_last_error(), "no memory for a workspace of "));
    assert_int_equal(attn_backward_workspace(context, &args, &args.workspace_bytes), ATTN_OK);
    assert_true(region_create(&room, args.workspace_bytes + 7, PLACE_GUARD_AFTER));
    args.workspace = room.first, args.workspace_bytes--;
    assert_int_equal(attn_backward(context, &args), ATTN_ERR_WORKSPACE);
    attn_backward_args before = args;
    before.workspace = (char *)args.dq.data - 8, before.workspace_bytes = 8; /* dQ is behind it */
    assert_int_equal(attn_backward(context, &before), ATTN_ERR_WORKSPACE);
    assert_int_equal(b.calls, 1);
    assert_true(untouched(&tensors));
    args.workspace = room.first + 7, args.workspace_bytes++;
    assert_int_equal(attn_backward(context, &args), ATTN_OK);
    assert_int_equal(b.calls, 1);
    b.refuse = false;
    assert_int_equal(attn_backward(context, &tensors.grad), ATTN_OK);
    assert_int_equal(b.calls, 2);
    assert_int_equal(b.live, live);
    region_free(&room);
    attn_context_destroy(context);
    problem_tensors_free(&tensors);
}

/* The workspace grows with the number of rows, not with its square: each row has as many sums as
 * the tree of its keys' segments has levels (core/segment.h). */
static void test_workspace_is_linear(void **state)
{
    uint64_t before = 0;
    (void)state;
    for (int64_t n = 1024; n <= 65536; n *= 2) {
        char line[128], sentence[256];
        problem_spec problem;
        problem_tensors tensors;
        uint64_t bytes;
        snprintf(line, sizeof line, "hq=16 n=%lld d=64 dtype=f32 pass=backward", (long long)n);
        assert_true(problem_parse(line, &problem, sentence, sizeof sentence));
        assert_true(problem_tensors_create(&problem, PLACE_NOWHERE, &tensors));
        assert_int_equal(attn_backward_workspace(NULL, &tensors.grad, &bytes), ATTN_OK);
        print_message("N = %lld: workspace %.1f MB, standard attention's scores and their "
                      "gradients %.0f MB\n",
                      (long long)n, (double)bytes / 1e6,
                      2.0 * 16 * (double)n * (double)n * 4 / 1e6);
        const int64_t size = ATTN_DQ_SEGMENTS * ATTN_SEGMENT;
        const int levels = attn_segment_sums((n + size - 1) / size);
        assert_true(before == 0 || bytes / (uint64_t)levels <= 2 * before + 4096);
        before = bytes / (uint64_t)levels;
        problem_tensors_free(&tensors);
    }
}

/* ---- plans ----------------------------------------------------------------------------------- */

static attn_plan plan_of(const char *line)
{
    char sentence[256];
    problem_spec problem;
    problem_tensors tensors;
    attn_plan plan = {.struct_size = sizeof plan};
    uint64_t bytes;
    assert_true(problem_parse(line, &problem, sentence, sizeof sentence));
    assert_true(problem_tensors_create(&problem, PLACE_NOWHERE, &tensors));
    assert_int_equal(attn_backward_plan(NULL, &tensors.grad, &plan), ATTN_OK);
    assert_int_equal(attn_backward_workspace(NULL, &tensors.grad, &bytes), ATTN_OK);
    assert_int_equal(plan.workspace_bytes, bytes);
    assert_non_null(plan.kernel);
    assert_true(plan.threads >= 1 && plan.items >= 1 && strlen(plan.why) > 0);
    problem_tensors_free(&tensors);
    return plan;
}

/* Operations by the formula, all tiles where nothing is masked, and less of both below a
 * diagonal. */
static void test_plan(void **state)
{
    const double n = 1000, heads = 2 * 4, once = 4 * heads * n * (8 * 64);
    const attn_plan all = plan_of("b=2 hq=4 n=1000 d=64 dtype=f32 pass=backward"),
                    half = plan_of("b=2 hq=4 n=1000 d=64 dtype=f32 causal=1 pass=backward");
    (void)state;
    assert_true(all.flops == 2 * (3 * 64 + 2 * 64) * n * n * heads);
    assert_true(half.flops == all.flops * (n + 1) / (2 * n));
    assert_int_equal(all.tiles_partial + all.tiles_skipped, 0);
    assert_int_equal(half.tiles_full + half.tiles_partial + half.tiles_skipped, all.tiles_full);
    assert_true(half.tiles_skipped > all.tiles_full / 3);
    assert_true(all.bytes_tiled >= once && all.bytes_tiled < 20 * once);
    assert_true(all.bytes_standard == once + 7 * 4 * n * n * heads);
    assert_int_equal(all.sum_bits, 32);
}

static void test_plan_of_nothing(void **state)
{
    problem_tensors tensors;
    attn_plan plan = {.struct_size = sizeof plan};
    (void)state;
    open_gradients(&tensors);
    attn_backward_args args = tensors.grad;
    memset(&args.dq, 0, 6 * sizeof args.dq);
    assert_int_equal(attn_backward_plan(NULL, &args, &plan), ATTN_OK);
    assert_int_equal(plan.items, 0);
    assert_true(plan.flops == 0);
    assert_int_equal(plan.workspace_bytes, 0);
    problem_tensors_free(&tensors);
}

/* ---- structs --------------------------------------------------------------------------------- */

/* A struct followed by the fields of a newer header. */
#define NEWER(type)     \
    struct {            \
        type known;     \
        char added[64]; \
    }

/* Either struct may be of an older header, whose end is followed by anything, or of a newer one. */
static void test_older_and_newer_structs(void **state)
{
    NEWER(attn_backward_args) a = {.added = {0}};
    NEWER(attn_forward_args) f = {.added = {0}};
    problem_tensors tensors;
    (void)state;
    open_gradients(&tensors);
    a.known = tensors.grad, f.known = tensors.args;
    a.known.forward = &f.known;
    a.known.struct_size = offsetof(attn_backward_args, stream);
    memset(&a.known.stream, 0xA5, sizeof a - a.known.struct_size);
    f.known.struct_size = offsetof(attn_forward_args, workspace);
    memset(&f.known.workspace, 0xA5, sizeof f - f.known.struct_size);
    assert_int_equal(attn_backward(NULL, &a.known), ATTN_OK);
    memset(&a, 0, sizeof a);
    memset(&f, 0, sizeof f);
    a.known = tensors.grad, f.known = tensors.args;
    a.known.forward = &f.known;
    a.known.struct_size = sizeof a, f.known.struct_size = sizeof f;
    assert_int_equal(attn_backward(NULL, &a.known), ATTN_OK);
    a.added[63] = 1;
    assert_int_equal(attn_backward(NULL, &a.known), ATTN_ERR_UNKNOWN_FIELD);
    a.added[63] = 0, f.added[63] = 1;
    assert_int_equal(attn_backward(NULL, &a.known), ATTN_ERR_UNKNOWN_FIELD);
    problem_tensors_free(&tensors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_plan_of_nothing),
        cmocka_unit_test(test_wrong_fields),
        cmocka_unit_test(test_fields_of_the_forward_call),
        cmocka_unit_test(test_null_and_missing),
        cmocka_unit_test(test_nothing_to_write),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_workspace_is_linear),
        cmocka_unit_test(test_older_and_newer_structs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
