/*
 * test_relative_bias.c: biases whose elements share memory, first of all those of relative
 * positions: element (h, i, j) is number i - j of the head's table. Each place of d_bias has the
 * sum over all elements that lie there, against a dense d_bias in f64 added up in long double;
 * equal bits on all tables and threads; gaps stay as they are.
 */
#include "grad_trial.h"
#include "oracle.h"

enum { ROOM = 1 << 20 };

/* A view of `room`: strides of (batch, head, query, key), and element (0, 0, 0, 0). */
typedef struct layout {
    const char *line; /* with bias=AXES of the view's shape */
    int64_t stride[4], first;
} layout;

static attn_tensor view_of(const layout *l, const attn_tensor *like, void *room, int32_t dtype)
{
    attn_tensor t = *like;
    t.dtype = dtype;
    t.data = (char *)room + l->first * (int64_t)attn_dtype_size(dtype);
    for (int a = 0; a < 4; a++) {
        t.stride[a] = l->stride[a];
    }
    return t;
}

static int64_t place_of(const layout *l, const int64_t at[4])
{
    int64_t place = l->first;
    for (int a = 0; a < 4; a++) {
        place += at[a] * l->stride[a];
    }
    return place;
}

/* Adds up a dense tensor by the view's places; sizes: sums of absolute values. */
static void add_up(const layout *l, const attn_tensor *dense, long double *sums, long double *sizes)
{
    int64_t at[4];
    for (at[0] = 0; at[0] < dense->shape[0]; at[0]++) {
        for (at[1] = 0; at[1] < dense->shape[1]; at[1]++) {
            for (at[2] = 0; at[2] < dense->shape[2]; at[2]++) {
                for (at[3] = 0; at[3] < dense->shape[3]; at[3]++) {
                    const double x = oracle_element(dense, at[0], at[1], at[2], at[3]);
                    sums[place_of(l, at)] += x;
                    sizes[place_of(l, at)] += fabs(x);
                }
            }
        }
    }
}

/* d_bias as a view in `dtype`: the sums of the dense one. */
static void compare(const layout *l, int32_t dtype)
{
    static double room[ROOM], values[ROOM];
    static long double sums[ROOM], sizes[ROOM];
    op_trial dense = trial_open("%s d_bias=f64 pass=backward", l->line),
             folded = trial_open("%s d_bias=f64 pass=backward", l->line);
    attn_tensor *d_bias = &folded.tensors.grad.d_bias, *bias = &folded.args->bias;
    for (int64_t i = 0; i < ROOM; i++) {
        values[i] = inputs_normal(inputs_bits(3, INPUTS_BIAS, i));
        sums[i] = sizes[i] = 0;
    }
    memset(room, 0xFF, sizeof room);
    *d_bias = view_of(l, d_bias, room, dtype);
    *bias = view_of(l, bias, values, ATTN_F64);
    tensor_copy(&dense.args->bias, bias);
    grad_trial_check(&dense);
    grad_trial_forward(&folded);
    grad_trial_backward(&folded);
    add_up(l, &dense.tensors.grad.d_bias, sums, sizes);
    assert_same_tensor(&dense.tensors.grad.dq, &folded.tensors.grad.dq);
    const double unit = dtype == ATTN_F64 ? 0x1p-50 : dtype == ATTN_F32 ? 0x1p-24 : 0x1p-8;
    const attn_tensor all = attn_tensor_bshd(room, (attn_dtype)dtype, 1, 1, 1, ROOM);
    for (int64_t i = 0; i < ROOM; i++) {
        const double got = oracle_element(&all, 0, 0, 0, i % (ROOM / 2));
        if (i < ROOM / 2 && sizes[i] > 0) {
            assert_near(got, (double)sums[i],
                        unit * fabs((double)sums[i]) + 0x1p-45 * (double)sizes[i]);
        }
    }
    trial_close(&dense);
    trial_close(&folded);
}

/* The line's heads, rows and keys are written out in the strides. */
static const layout layouts[] = {
    {"b=2 hq=4 hkv=2 n=230 d=8 dtype=f32 bias=f64:hqk", {0, 459, -1, 1}, 229},
    {"hq=3 nq=130 nk=250 d=8 dtype=f64 causal=1 bias=f64:hqk", {0, 400, -1, 1}, 129},
    {"b=2 hq=2 nq=250 nk=130 d=8 dtype=f32 bias=f64:qk dropout=.2", {0, 0, -1, 1}, 249},
    {"b=2 hq=2 n=150 d=8 dtype=bf16 window_left=40 window_right=9 bias=f64:bhqk",
     {2000, 500, 1, 1},
     7},
    /* a table of [position][head]: heads interleave */
    {"b=2 hq=6 hkv=3 n=200 d=8 dtype=f32 bias=f64:hqk", {0, 1, -6, 6}, 6 * 199},
    /* with gaps between places; batches share them by a stride of 0 */
    {"b=2 hq=2 n=120 d=8 dtype=f32 bias=f64:bhqk", {0, 700, -2, 2}, 300},
    /* heads that share some places, but not all */
    {"hq=4 n=110 d=8 dtype=f32 softcap=2 bias=f64:hqk", {0, 50, -1, 1}, 109},
    /* the same element for all keys, and rows two by two */
    {"hq=2 nq=140 nk=90 d=8 dtype=f32 bias=f64:hq", {0, 1, 1, 0}, 0},
    {"lens_q=70,140 lens_k=140,90 hq=2 d=8 dtype=f32 causal=1 bias=f64:hqk", {0, 300, -1, 1}, 139},
};

static void test_sums(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof layouts / sizeof layouts[0]; n++) {
        compare(&layouts[n], ATTN_F64);
    }
    compare(&layouts[0], ATTN_F32);
    compare(&layouts[1], ATTN_BF16);
}

/* Places that no element has are not written. */
static void test_gaps(void **state)
{
    static float room[2 * 700];
    const layout *l = &layouts[5];
    op_trial trial = trial_open("%s d_bias=f32 pass=backward", l->line);
    (void)state;
    memset(room, 0xFF, sizeof room);
    trial.tensors.grad.d_bias = view_of(l, &trial.tensors.grad.d_bias, room, ATTN_F32);
    grad_trial_forward(&trial);
    grad_trial_backward(&trial);
    for (int64_t i = 0; i < 2 * 700; i++) {
        const int64_t within = i % 700 - (300 - 2 * 119);
        const bool place = within >= 0 && within <= 4 * 119 && within % 2 == 0;
        assert_true(isnan(room[i]) == !place);
    }
    trial_close(&trial);
}

/* Views that cannot be summed are refused. */
static void test_refusal(void **state)
{
    op_trial trial =
        trial_open("b=2 hq=4 nq=9 nk=9 d=8 dtype=f32 bias=bhk d_bias=f32 pass=backward");
    (void)state;
    grad_trial_forward(&trial);
    trial.tensors.grad.d_bias.stride[1] = 1;
    assert_int_equal(attn_backward(NULL, &trial.tensors.grad), ATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "d_bias has strides by which its elements share"));
    trial_close(&trial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
