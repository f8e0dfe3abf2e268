/*
 * test_grad_splits.c: the backward pass over parts of the keys, or of the queries, that are nodes
 * of the tree of segments (core/segment.h): contract, D4. Gradients of a part's own rows have the
 * bits of one call. So have sums over the parts, if they are added as the tree adds them.
 */
#include "core/segment.h"
#include "grad_trial.h"

enum { MOST_PARTS = 4 };

static int64_t count_of(const attn_tensor *tensor)
{
    return tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * tensor->shape[3];
}

static attn_tensor room_like(const attn_tensor *like)
{
    void *data = calloc((size_t)count_of(like), attn_dtype_size(like->dtype));
    assert_non_null(data);
    return attn_tensor_bshd(data, (attn_dtype)like->dtype, like->shape[0], like->shape[1],
                            like->shape[2], like->shape[3]);
}

static void add_parts(const attn_tensor *to, const attn_tensor *from)
{
    for (int64_t i = 0; i < count_of(to); i++) {
        if (to->dtype == ATTN_F64) {
            ((double *)to->data)[i] += ((const double *)from->data)[i];
        } else {
            ((float *)to->data)[i] += ((const float *)from->data)[i];
        }
    }
}

static void assert_equal_bits(const attn_tensor *got, const attn_tensor *want)
{
    assert_memory_equal(got->data, want->data,
                        (size_t)count_of(want) * attn_dtype_size(want->dtype));
}

/* Sums the parts as leaves of a binary tree. */
static void assert_sum(attn_tensor *part, int64_t parts, const attn_tensor *whole)
{
    for (int64_t span = 1; span < parts; span *= 2) {
        for (int64_t n = 0; n + span < parts; n += 2 * span) {
            add_parts(&part[n], &part[n + span]);
        }
    }
    assert_equal_bits(&part[0], whole);
    for (int64_t n = 0; n < parts; n++) {
        free(part[n].data);
    }
}

static attn_tensor index_of(const int64_t *value)
{
    return attn_tensor_bshd((void *)(uintptr_t)value, ATTN_I64, 1, 1, 1, 1);
}

/* The longest segment of any table. */
static int64_t segment_of(const attn_forward_args *args)
{
    return attn_dtype_size((int32_t)args->q.dtype) == 2 ? ATTN_LONG_SEGMENT : ATTN_SEGMENT;
}

/* Cuts the keys into `parts` ranges, each a power of two of segments; only the last may be
 * shorter. */
static void check_keys(op_trial *whole, attn_context *context, int64_t parts)
{
    const attn_backward_args *all = &whole->tensors.grad;
    const attn_forward_args *forward = all->forward;
    const int64_t nk = forward->k.shape[1], zero = 0, q_origin = nk - forward->q.shape[1];
    attn_tensor dq[MOST_PARTS], dk = room_like(&all->dk), dv = room_like(&all->dv);
    int64_t span = ATTN_DQ_SEGMENTS * segment_of(forward);
    whole->args->q_origin = index_of(&q_origin), whole->args->k_origin = index_of(&zero);
    assert_int_equal(attn_forward(context, forward), ATTN_OK);
    assert_int_equal(attn_backward(context, all), ATTN_OK);
    while (span * parts < nk) {
        span *= 2;
    }
    for (int64_t n = 0; n < parts; n++) {
        const int64_t first = span * n, left = nk - first, keys = left < span ? left : span;
        attn_forward_args f = *forward;
        attn_backward_args b = *all;
        b.forward = &f, f.k_origin = index_of(&first);
        f.k = tensor_slice(f.k, 1, first, keys), f.v = tensor_slice(f.v, 1, first, keys);
        b.dk = tensor_slice(dk, 1, first, keys), b.dv = tensor_slice(dv, 1, first, keys);
        b.dq = dq[n] = room_like(&all->dq);
        assert_int_equal(attn_backward(context, &b), ATTN_OK);
    }
    assert_equal_bits(&dk, &all->dk);
    assert_equal_bits(&dv, &all->dv);
    assert_sum(dq, parts, &all->dq);
    free(dk.data);
    free(dv.data);
}

/* Cuts the queries likewise; the rows of a group count as one each. */
static void check_queries(op_trial *whole, attn_context *context, int64_t parts)
{
    const attn_backward_args *all = &whole->tensors.grad;
    const attn_forward_args *forward = all->forward;
    const int64_t nq = forward->q.shape[1], zero = 0;
    attn_tensor dk[MOST_PARTS], dv[MOST_PARTS], dq = room_like(&all->dq);
    int64_t span =
        ATTN_DKV_SEGMENTS * segment_of(forward) / (forward->q.shape[2] / forward->k.shape[2]);
    whole->args->q_origin = whole->args->k_origin = index_of(&zero);
    assert_int_equal(attn_forward(context, forward), ATTN_OK);
    assert_int_equal(attn_backward(context, all), ATTN_OK);
    while (span * parts < nq) {
        span *= 2;
    }
    for (int64_t n = 0; n < parts; n++) {
        const int64_t first = span * n, left = nq - first, rows = left < span ? left : span;
        attn_forward_args f = *forward;
        attn_backward_args b = *all;
        b.forward = &f, f.q_origin = index_of(&first);
        f.q = tensor_slice(f.q, 1, first, rows), f.o = tensor_slice(f.o, 1, first, rows);
        f.lse = tensor_slice(f.lse, 1, first, rows), b.d_o = tensor_slice(b.d_o, 1, first, rows);
        b.dq = tensor_slice(dq, 1, first, rows);
        b.dk = dk[n] = room_like(&all->dk), b.dv = dv[n] = room_like(&all->dv);
        assert_int_equal(attn_backward(context, &b), ATTN_OK);
    }
    assert_equal_bits(&dq, &all->dq);
    assert_sum(dk, parts, &all->dk);
    assert_sum(dv, parts, &all->dv);
    free(dq.data);
}

static void check_line(const char *line, const char *table, int32_t threads, int64_t parts)
{
    const attn_context_config config = {
        .struct_size = sizeof config, .cpu = table, .threads = threads};
    attn_context *context;
    if (attn_context_create(&config, &context) != ATTN_OK) {
        return; /* a table of other builds */
    }
    op_trial whole = trial_open("%s pass=backward", line);
    if (whole.args->q.shape[1] < whole.args->k.shape[1]) {
        check_keys(&whole, context, parts);
    } else {
        check_queries(&whole, context, parts);
    }
    attn_context_destroy(context);
    trial_close(&whole);
}

/* Lines differ in type, mask, group and width; each on every table (on scalar, which is slow, the
 * first two), with one thread or three: they decide whether an item owns all gradients or a part of
 * them. */
static void on_tables(const char *const *lines, size_t count, int64_t parts)
{
    static const char *const tables[] = {"scalar", "avx2", "avx512",  "avx512bf16",
                                         "amx",    "neon", "neonbf16"};
#ifdef ONLY_EMULATED
    const size_t from = 2; /* the emulated ones */
#else
    const size_t from = 0;
#endif
    for (size_t n = from; n < 7; n++) {
        for (size_t line = 0; line < (n == 0 ? 2 : count); line++) {
            const int32_t threads = (line + n) % 2 ? 3 : 1;
#ifdef ONLY_THREADS
            if (threads == 1) {
                continue;
            }
#endif
            check_line(lines[line], tables[n], threads, parts);
        }
    }
}

static void halves_of_keys(void **state)
{
    static const char *const lines[] = {
        "nq=40 nk=8192 hq=2 d=16 dtype=f32 inputs=positive",
        "nq=40 nk=8000 hq=4 hkv=2 d=24 dv=16 dtype=f32 causal=1",
        "nq=40 nk=8192 hq=2 d=16 dtype=f32 window_left=4170 window_right=3 alibi=h",
        "nq=40 nk=8192 hq=2 d=16 dtype=f32 causal=1 dropout=0.3 dropout_seed=5",
        "nq=40 nk=8192 hq=2 d=16 dtype=f64 causal=1 inputs=positive",
        "nq=40 nk=12000 hq=2 d=32 dtype=bf16 grad_dtype=f32 causal=1 inputs=offset",
        "nq=100 nk=16384 hq=2 d=32 dtype=f16 grad_dtype=f32 softcap=9",
    };
    (void)state;
    on_tables(lines, sizeof lines / sizeof lines[0], 2);
}

static void quarters_of_keys(void **state)
{
    static const char *const lines[] = {
        "nq=33 nk=16384 hq=1 d=16 dtype=f32 causal=1",
        "nq=33 nk=28000 hq=1 d=16 dtype=bf16 grad_dtype=f32 window_left=8400",
    };
    (void)state;
    on_tables(lines, sizeof lines / sizeof lines[0], 4);
}

static void halves_of_queries(void **state)
{
    static const char *const lines[] = {
        "nq=12288 nk=70 hq=1 d=16 dtype=f32 inputs=positive",
        "nq=6000 nk=90 hq=4 hkv=2 d=16 dv=24 dtype=f32 causal=1 dropout=0.3 dropout_seed=5",
        "nq=12000 nk=70 hq=1 d=16 dtype=f64 inputs=positive",
        "nq=24576 nk=130 hq=1 d=32 dtype=bf16 grad_dtype=f32 alibi=h inputs=offset",
        "nq=24576 nk=130 hq=1 d=32 dtype=f16 grad_dtype=f32",
    };
    (void)state;
    on_tables(lines, sizeof lines / sizeof lines[0], 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_of_keys),
        cmocka_unit_test(quarters_of_keys),
        cmocka_unit_test(halves_of_queries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
