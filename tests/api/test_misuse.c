/*
 * test_misuse.c: wrong arguments of the forward pass (contract C8, F3): the right status, a
 * sentence that names the field and its values, and nothing written, from attn_forward,
 * attn_forward_workspace and attn_forward_plan alike.
 */
#include "call.h"

#include <math.h>

/* All optional tensors, dense and with lengths. */
#define DENSE                                                                              \
    "b=2 hq=4 hkv=2 nq=5 nk=7 d=8 dtype=f32 lse=1 row_max=1 mask=bhqk bias=bhqk alibi=bh " \
    "sinks=bh used_q=5,4 "                                                                 \
    "used_k=7,3 q_origin=3,9 k_origin=2,5 "                                                \
    "index=i64"
#define VARLEN "lens_q=2,3 lens_k=4,3 hq=4 hkv=2 d=8 dtype=f32 lse=1 row_max=1 mask=qk bias=f16:k"

/* A field, its wrong value, and the expected status and sentence. */
typedef struct misuse {
    size_t at, size; /* the field */
    int64_t value;
    attn_status status;
    const char *says;
} misuse;

#define FIELD(member, value, status, says)                                                    \
    {                                                                                         \
        offsetof(attn_forward_args, member), sizeof(((attn_forward_args *)0)->member), value, \
            ATTN_ERR_##status, says                                                           \
    }

static void assert_refused_by_all(const call *c, const attn_forward_args *args, attn_status status,
                                  const char *says)
{
    uint64_t bytes = 5;
    attn_plan plan = {.struct_size = sizeof plan, .threads = -5};
    for (int function = 0; function < 3; function++) {
        attn_status got = function == 0   ? attn_forward(NULL, args)
                          : function == 1 ? attn_forward_workspace(NULL, args, &bytes)
                                          : attn_forward_plan(NULL, args, &plan);
        if (got != status || strstr(attn_last_error(), says) == NULL) {
            fail_msg("wanted %d, \"%s\"; function %d gave %d, \"%s\"", status, says, function, got,
                     attn_last_error());
        }
    }
    assert_int_equal(plan.threads, -5);
    assert_true(call_is_untouched(c));
}

static void assert_refused_fields(const char *line, const misuse *list, size_t count)
{
    call c;
    call_open(&c, line);
    for (size_t i = 0; i < count; i++) {
        attn_forward_args args = *c.args;
        memcpy((char *)&args + list[i].at, &list[i].value, list[i].size);
        assert_refused_by_all(&c, &args, list[i].status, list[i].says);
    }
    call_close(&c);
}

static void test_dense_fields(void **state)
{
    static const misuse list[] = {
        FIELD(q.shape[0], 3, INVALID_ARGUMENT, "k.shape[0] = 2 but q.shape[0] = 3"),
        FIELD(q.shape[1], 4, INVALID_ARGUMENT, "o.shape[1] = 5 but q.shape[1] = 4"),
        FIELD(q.shape[2], 5, INVALID_ARGUMENT, "o.shape[2] = 4 but q.shape[2] = 5"),
        FIELD(q.shape[3], 7, INVALID_ARGUMENT, "k.shape[3] = 8 but q.shape[3] = 7"),
        FIELD(k.shape[1], 6, INVALID_ARGUMENT, "v.shape[1] = 7 but k.shape[1] = 6"),
        FIELD(k.shape[2], 1, INVALID_ARGUMENT, "v.shape[2] = 2 but k.shape[2] = 1"),
        FIELD(v.shape[0], 1, INVALID_ARGUMENT, "v.shape[0] = 1 but k.shape[0] = 2"),
        FIELD(v.shape[3], 9, INVALID_ARGUMENT, "o.shape[3] = 8 but v.shape[3] = 9"),
        FIELD(o.shape[0], 1, INVALID_ARGUMENT, "o.shape[0] = 1 but q.shape[0] = 2"),
        FIELD(lse.shape[1], 4, INVALID_ARGUMENT, "lse.shape[1] = 4 but q.shape[1] = 5"),
        FIELD(lse.shape[3], 0, INVALID_ARGUMENT, "lse has shape (2, 5, 4, 0)"),
        FIELD(row_max.shape[2], 2, INVALID_ARGUMENT, "row_max.shape[2] = 2 but q.shape[2] = 4"),
        FIELD(mask.shape[0], 3, INVALID_ARGUMENT, "mask.shape[0] = 3, must be 1 or 2"),
        FIELD(mask.shape[3], 8, INVALID_ARGUMENT, "mask.shape[3] = 8, must be 1 or 7"),
        FIELD(bias.shape[1], 2, INVALID_ARGUMENT, "bias.shape[1] = 2, must be 1 or 4"),
        FIELD(bias.shape[2], 0, INVALID_ARGUMENT, "bias.shape[2] = 0, must be 1 or 5"),
        FIELD(alibi_slopes.shape[1], 2, INVALID_ARGUMENT,
              "alibi_slopes.shape[1] = 2, must be 1 or 4"),
        FIELD(sinks.shape[2], 5, INVALID_ARGUMENT, "sinks.shape[2] = 5, must be 1"),
        FIELD(seqused_q.shape[0], 1, INVALID_ARGUMENT,
              "seqused_q has shape (1, 1, 1, 1), wanted (2, 1, 1, 1)"),
        FIELD(seqused_k.shape[1], 2, INVALID_ARGUMENT, "seqused_k has shape (2, 2, 1, 1)"),
        FIELD(o.stride[3], 0, INVALID_ARGUMENT,
              "o.stride[3] = 0 would write 8 elements to one place"),
        FIELD(o.stride[0], 0, INVALID_ARGUMENT, "o.stride[0] = 0"),
        FIELD(lse.stride[1], 0, INVALID_ARGUMENT, "lse.stride[1] = 0"),
        FIELD(q.data, 4097, INVALID_ARGUMENT, "q.data = 0x1001 is not aligned"),
        FIELD(seqused_k.data, 4100, INVALID_ARGUMENT, "seqused_k.data = 0x1004 is not aligned"),
        FIELD(k.dtype, ATTN_F16, INVALID_ARGUMENT,
              "q.dtype = 2 (f32), k.dtype = 3 (f16) and v.dtype = 2 (f32) must be the same"),
        FIELD(o.dtype, ATTN_F16, INVALID_ARGUMENT,
              "o.dtype = 3 (f16) must be q.dtype = 2 (f32) or f32"),
        FIELD(q.dtype, ATTN_I32, INVALID_ARGUMENT,
              "q.dtype = 6 (i32), must be f64, f32, f16 or bf16"),
        FIELD(lse.dtype, ATTN_F16, INVALID_ARGUMENT, "lse.dtype = 3"),
        FIELD(mask.dtype, ATTN_F32, INVALID_ARGUMENT, "mask.dtype = 2"),
        FIELD(bias.dtype, ATTN_BOOL, INVALID_ARGUMENT, "bias.dtype = 5"),
        FIELD(sinks.dtype, ATTN_BF16, INVALID_ARGUMENT, "sinks.dtype = 4"),
        FIELD(seqused_q.dtype, ATTN_F64, INVALID_ARGUMENT, "seqused_q.dtype = 1"),
        FIELD(flags, 0x40000, INVALID_ARGUMENT, "flags = 0x40000 has unknown bits"),
        FIELD(flags, INT64_MIN, INVALID_ARGUMENT, "flags = 0x8000000000000000"),
        FIELD(struct_size, 0, INVALID_ARGUMENT, "attn_forward_args.struct_size = 0"),
        FIELD(struct_size, -1, INVALID_ARGUMENT,
              "attn_forward_args.struct_size = 18446744073709551615"),
    };
    (void)state;
    assert_refused_fields(DENSE, list, sizeof list / sizeof list[0]);
}

static void test_varlen_fields(void **state)
{
    static const misuse list[] = {
        FIELD(cu_seqlens_q.dtype, 0, INVALID_ARGUMENT, "cu_seqlens_q.dtype = 0"),
        FIELD(cu_seqlens_q.shape[0], 0, INVALID_ARGUMENT, "cu_seqlens_q has shape (0, 1, 1, 1)"),
        FIELD(cu_seqlens_q.stride[0], 0, INVALID_ARGUMENT,
              "cu_seqlens_q.stride[0] = 0 would make 2 sequences of no rows"),
        FIELD(cu_seqlens_k.shape[0], 2, INVALID_ARGUMENT,
              "cu_seqlens_k has shape (2, 1, 1, 1), wanted (3, 1, 1, 1)"),
        FIELD(mask.shape[2], 2, INVALID_ARGUMENT, "mask.shape[2] = 2, must be 1 or 3"),
        FIELD(bias.shape[3], 3, INVALID_ARGUMENT, "bias.shape[3] = 3, must be 1 or 4"),
    };
    (void)state;
    assert_refused_fields(VARLEN, list, sizeof list / sizeof list[0]);
}

/* Lengths are data: the contents of the tensors. */
static void test_lengths(void **state)
{
    static const struct {
        int32_t cu_q[3], used_k[2];
        const char *says;
    } list[] = {
        {{-1, 2, 5}, {4, 3}, "cu_seqlens_q[0] = -1, must be in [0, 5]"},
        {{0, 3, 2}, {4, 3}, "cu_seqlens_q[2] = 2, must be in [3, 5]"},
        {{0, 2, 6}, {4, 3}, "cu_seqlens_q[2] = 6, must be in [2, 5]"},
        {{0, 2, INT32_MIN}, {4, 3}, "cu_seqlens_q[2] = -2147483648"},
        {{0, 2, 5}, {5, 3}, "seqused_k[0] = 5, must be in [0, 4]"},
        {{0, 2, 5}, {4, -1}, "seqused_k[1] = -1, must be in [0, 3]"},
    };
    call c;
    (void)state;
    call_open(&c, VARLEN);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        attn_forward_args args = *c.args;
        args.cu_seqlens_q = attn_tensor_bshd(list[i].cu_q, ATTN_I32, 3, 1, 1, 1);
        args.seqused_k = attn_tensor_bshd(list[i].used_k, ATTN_I32, 2, 1, 1, 1);
        assert_refused_by_all(&c, &args, ATTN_ERR_INVALID_ARGUMENT, list[i].says);
    }
    attn_forward_args args = *c.args;
    memset(&args.cu_seqlens_k, 0, sizeof args.cu_seqlens_k);
    assert_refused_by_all(&c, &args, ATTN_ERR_INVALID_ARGUMENT,
                          "cu_seqlens_q and cu_seqlens_k must be given together");
    args = *c.args;
    args.q.shape[0] = args.k.shape[0] = args.v.shape[0] = args.o.shape[0] = args.lse.shape[0] =
        args.row_max.shape[0] = 0;
    assert_refused_by_all(&c, &args, ATTN_ERR_INVALID_ARGUMENT,
                          "q.shape[0] = 0, must be 1 with cu_seqlens_q");
    call_close(&c);
}

/* Origins are data too: one of them is set to a value. Positions end at 2^60, dropout's at 2^32 and
 * 2^34. */
static void test_origins(void **state)
{
    static const struct {
        int at; /* q's two, then k's */
        int64_t value;
        uint64_t flags;
        double dropout;
        attn_status status;
        const char *says;
    } list[] = {
        {0, -1, 0, 0, ATTN_ERR_INVALID_ARGUMENT, "q_origin[0] = -1 is negative"},
        {3, INT64_MIN, 0, 0, ATTN_ERR_INVALID_ARGUMENT, "k_origin[1] = -9223372036854775808 is"},
        {1, (INT64_C(1) << 60) - 4, 0, 0, ATTN_ERR_OVERFLOW,
         "q_origin[1] = 1152921504606846972 and 5 rows: positions end at 2^60"},
        {2, INT64_MAX, 0, 0, ATTN_ERR_OVERFLOW, "k_origin[0] = 9223372036854775807 and 7 rows"},
        {0, 0, ATTN_TOP_LEFT, 0, ATTN_ERR_INVALID_ARGUMENT, "ATTN_TOP_LEFT and q_origin is given"},
        {0, UINT32_MAX - 4, 0, 0.5, ATTN_ERR_OVERFLOW, "positions of q end at row 4294967296"},
        {3, (INT64_C(1) << 34) - 7, 0, 0.5, ATTN_ERR_OVERFLOW, "of k at key 17179869184"},
    };
    call c;
    (void)state;
    call_open(&c, DENSE);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        int64_t origins[4] = {0};
        attn_forward_args args = *c.args;
        origins[list[i].at] = list[i].value;
        args.q_origin = attn_tensor_bshd(origins, ATTN_I64, 2, 1, 1, 1);
        args.k_origin = attn_tensor_bshd(origins + 2, ATTN_I64, 2, 1, 1, 1);
        args.flags |= list[i].flags, args.dropout_p = list[i].dropout;
        assert_refused_by_all(&c, &args, list[i].status, list[i].says);
    }
    attn_forward_args args = *c.args;
    memset(&args.q_origin, 0, sizeof args.q_origin);
    args.flags |= ATTN_TOP_LEFT;
    assert_refused_by_all(&c, &args, ATTN_ERR_INVALID_ARGUMENT,
                          "ATTN_TOP_LEFT and k_origin is given");
    call_close(&c);
}

/* More keys than can be counted, all of them one row of memory. */
static void test_endless_keys(void **state)
{
    call c;
    (void)state;
    call_open(&c, "b=1 hq=2 nq=5 nk=7 d=8 dtype=f32");
    attn_forward_args args = *c.args;
    args.k.shape[1] = args.v.shape[1] = INT64_MAX;
    args.k.stride[1] = args.v.stride[1] = 0;
    args.flags = ATTN_WINDOW;
    args.window_left = args.window_right = 5;
    assert_refused_by_all(&c, &args, ATTN_ERR_OVERFLOW, "k.shape[1] = 9223372036854775807");
    call_close(&c);
}

/* B52: a scale or softcap that is not a number, infinite or out of the range of f32. */
static void test_real_fields(void **state)
{
    static const struct {
        size_t at;
        double value;
        const char *says;
    } list[] = {
        {offsetof(attn_forward_args, softmax_scale), (double)NAN, "softmax_scale = "},
        {offsetof(attn_forward_args, softmax_scale), (double)INFINITY, "softmax_scale = inf"},
        {offsetof(attn_forward_args, softmax_scale), -1e300, "softmax_scale = -1e+300"},
        {offsetof(attn_forward_args, softcap), (double)NAN, "softcap = "},
        {offsetof(attn_forward_args, softcap), -1, "softcap = -1"},
        {offsetof(attn_forward_args, softcap), (double)INFINITY, "softcap = inf"},
        {offsetof(attn_forward_args, softcap), 1e-323, "softcap = 9.88131e-324"},
    };
    call c;
    (void)state;
    call_open(&c, DENSE);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        attn_forward_args args = *c.args;
        args.flags |= ATTN_SCALE;
        memcpy((char *)&args + list[i].at, &list[i].value, sizeof list[i].value);
        assert_refused_by_all(&c, &args, ATTN_ERR_INVALID_ARGUMENT, list[i].says);
    }
    call_close(&c);
}

/* B52: Hk = 0, and a ratio that is not whole. */
static void test_b52_heads(void **state)
{
    call c;
    (void)state;
    call_open(&c, "b=1 hq=8 hkv=4 nq=5 nk=7 d=8 dtype=f32");
    attn_forward_args args = *c.args;
    args.k.shape[2] = args.v.shape[2] = 0;
    assert_refused_by_all(&c, &args, ATTN_ERR_INVALID_ARGUMENT,
                          "k.shape[2] = 0 does not divide q.shape[2] = 8");
    args.k.shape[2] = args.v.shape[2] = 3;
    assert_refused_by_all(&c, &args, ATTN_ERR_INVALID_ARGUMENT,
                          "k.shape[2] = 3 does not divide q.shape[2] = 8");
    call_close(&c);
}

/* ---- every field of every tensor, with values that cannot be meant --------------------------- */

static const struct {
    const char *name;
    size_t at;
} tensors[] = {
#define TENSOR(member)                               \
    {                                                \
#member, offsetof(attn_forward_args, member) \
    }
    TENSOR(q),        TENSOR(k),         TENSOR(v),
    TENSOR(o),        TENSOR(lse),       TENSOR(row_max),
    TENSOR(mask),     TENSOR(bias),      TENSOR(alibi_slopes),
    TENSOR(sinks),    TENSOR(seqused_q), TENSOR(seqused_k),
    TENSOR(q_origin), TENSOR(k_origin),
};

static void assert_refused_somehow(const call *c, const attn_forward_args *args, const char *name)
{
    attn_status status = attn_forward(NULL, args);
    uint64_t bytes;
    if (status == ATTN_OK || strstr(attn_last_error(), name) == NULL) {
        fail_msg("%s spoilt gave %d, \"%s\"", name, status, attn_last_error());
    }
    assert_int_equal(attn_forward_workspace(NULL, args, &bytes), status);
    assert_true(call_is_untouched(c));
}

static void test_every_extent_and_type(void **state)
{
    static const int64_t extents[] = {-1, INT64_MIN, INT64_MAX, INT64_C(1) << 62, INT64_C(1) << 40};
    static const int32_t types[] = {-1, 13, 99, INT32_MIN, INT32_MAX, 1 << 24};
    call c;
    (void)state;
    call_open(&c, DENSE);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        attn_forward_args args = *c.args;
        attn_tensor *t = (attn_tensor *)((char *)&args + tensors[i].at);
        for (int n = 0; n < 20; n++) {
            t->shape[n / 5] = extents[n % 5];
            assert_refused_somehow(&c, &args, tensors[i].name);
            args = *c.args;
        }
        for (int n = 0; n < 6; n++) {
            t->dtype = types[n];
            assert_refused_somehow(&c, &args, tensors[i].name);
            args = *c.args;
        }
        t->reserved = 1;
        assert_refused_by_all(&c, &args, ATTN_ERR_UNKNOWN_FIELD, tensors[i].name);
    }
    call_close(&c);
}

/* Strides whose span leaves 64 bits. */
static void test_every_stride(void **state)
{
    call c;
    (void)state;
    call_open(&c, DENSE);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        for (int axis = 0; axis < 4; axis++) {
            attn_forward_args args = *c.args;
            attn_tensor *t = (attn_tensor *)((char *)&args + tensors[i].at);
            t->stride[axis] = INT64_MIN;
            if (t->shape[axis] > 1) {
                assert_refused_by_all(&c, &args, ATTN_ERR_OVERFLOW, tensors[i].name);
            } else {
                assert_int_equal(attn_forward(NULL, &args),
                                 ATTN_OK); /* the axis has one index, 0 */
                assert_true(call_is_right(&c));
            }
        }
    }
    call_close(&c);
}

static void test_null(void **state)
{
    call c;
    uint64_t bytes = 5;
    attn_plan plan = {.struct_size = sizeof plan};
    (void)state;
    call_open(&c, DENSE);
    assert_int_equal(attn_forward(NULL, NULL), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "attn_forward_args is NULL");
    assert_int_equal(attn_forward_workspace(NULL, NULL, &bytes), ATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(attn_forward_workspace(NULL, c.args, NULL), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "bytes is NULL");
    assert_int_equal(attn_forward_plan(NULL, NULL, &plan), ATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(attn_forward_plan(NULL, c.args, NULL), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "attn_plan is NULL");
    assert_true(call_is_untouched(&c));
    call_close(&c);
}

static void test_workspace_too_small(void **state)
{
    static char room[1 << 20];
    call c;
    (void)state;
    call_open(&c, DENSE);
    attn_forward_args args = *c.args;
    assert_int_equal(attn_forward_workspace(NULL, &args, &args.workspace_bytes), ATTN_OK);
    assert_true(args.workspace_bytes > 0 && args.workspace_bytes <= sizeof room);
    args.workspace = room, args.workspace_bytes--;
    memset(room, 0x5A, sizeof room);
    assert_int_equal(attn_forward(NULL, &args), ATTN_ERR_WORKSPACE);
    assert_non_null(strstr(attn_last_error(), "workspace_bytes = "));
    args.workspace_bytes = 0;
    assert_int_equal(attn_forward(NULL, &args), ATTN_ERR_WORKSPACE);
    for (size_t i = 0; i < sizeof room; i++)
        assert_int_equal(room[i], 0x5A);
    args.workspace = (char *)args.o.data - 8, args.workspace_bytes = 8; /* it ends where O begins */
    assert_int_equal(attn_forward(NULL, &args), ATTN_ERR_WORKSPACE);
    assert_true(call_is_untouched(&c));
    call_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_fields),
        cmocka_unit_test(test_varlen_fields),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_endless_keys),
        cmocka_unit_test(test_real_fields),
        cmocka_unit_test(test_b52_heads),
        cmocka_unit_test(test_every_extent_and_type),
        cmocka_unit_test(test_every_stride),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_workspace_too_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
