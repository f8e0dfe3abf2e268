/*
 * test_gpu_append.c: new rows of the cache and rotary embedding on this machine's GPU (k_new,
 * v_new, rope_*): caches, scales and shifts have the CPU's bits, O is within the bounds of
 * attention over them. Every second call is captured into a graph with other lengths first. Skipped
 * where there is no GPU.
 *
 * Angles of a base go through pow, sin and cos, which differ in the last bits of f64: then an
 * element of K may be rounded the other way.
 */
#include "args.h"
#include "errors.h"
#include "gpu.h"
#include "gpu_copy.h"
#include "inputs.h"
#include "oracle.h"
#include "steps.h"
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POSITIONS = 900, PAIRS = 8 };

static attn_context *gpu;

/* Lists the tensors that a call writes besides its outputs. */
static const int caches[] = {ARGS_K,       ARGS_V,       ARGS_K_SCALE,
                             ARGS_K_SHIFT, ARGS_V_SCALE, ARGS_V_SHIFT};
enum { CACHES = sizeof caches / sizeof caches[0] };

typedef struct gpu_call {
    gpu_copy copies[ARGS_TENSORS];
    attn_forward_args args; /* of the copies */
    attn_plan plan;
} gpu_call;

static void copy_all(gpu_call *call, attn_forward_args *args)
{
    call->args = *args;
    call->plan = (attn_plan){.struct_size = sizeof call->plan};
    for (int i = 0; i < ARGS_TENSORS; i++) {
        call->copies[i] = gpu_copy_tensor(args_at(args, i));
        *args_at(&call->args, i) = call->copies[i].there;
    }
}

/* Captures a call that sees no keys, puts the lengths, and launches the graph. */
static void run_graph(gpu_call *call)
{
    const gpu_copy *used = &call->copies[ARGS_USED_K];
    char *const there = call->args.seqused_k.data, zeros[64] = {0};
    void *stream = gpu_stream();
    assert_true(used->bytes <= sizeof zeros);
    gpu_put(there, zeros, used->bytes);
    gpu_capture(stream);
    call->args.stream = stream;
    if (attn_forward(gpu, &call->args) != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    void *graph = gpu_captured(stream);
    gpu_put(there, used->first, used->bytes);
    gpu_launch(graph, stream);
    gpu_wait();
    gpu_graph_free(graph);
}

static void run_gpu(gpu_call *call, bool graph)
{
    if (attn_forward_plan(gpu, &call->args, &call->plan) != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    call->args.workspace_bytes = call->plan.workspace_bytes;
    call->args.workspace = gpu_alloc((size_t)call->plan.workspace_bytes + 1);
    if (graph) {
        run_graph(call);
    } else if (attn_forward(gpu, &call->args) != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    gpu_wait();
    gpu_free(call->args.workspace);
}

static void close_call(gpu_call *call)
{
    for (int i = 0; i < ARGS_TENSORS; i++) {
        assert_true(gpu_margins_intact(&call->copies[i]));
        gpu_copy_free(&call->copies[i]);
    }
}

/* The elements of `got` are those of `want`, or neighbours of them. */
static void assert_tensors_near(const attn_tensor *got, const attn_tensor *want)
{
    const double unit = got->dtype == ATTN_F64   ? 0x1p-48
                        : got->dtype == ATTN_F32 ? 0x1p-23
                        : got->dtype == ATTN_F16 ? 0x1p-10
                                                 : 0x1p-7;
    const int64_t *n = got->shape;
    for (int64_t at = 0; at < n[0] * n[1] * n[2] * n[3]; at++) {
        const int64_t i3 = at % n[3], i2 = at / n[3] % n[2], i1 = at / n[3] / n[2] % n[1],
                      i0 = at / n[3] / n[2] / n[1];
        const double x = oracle_element(got, i0, i1, i2, i3),
                     y = oracle_element(want, i0, i1, i2, i3);
        if (!(fabs(x - y) <= unit * fabs(y) + 0x1p-24) && !(isnan(x) && isnan(y))) {
            fail_msg("%.17g is not next to %.17g", x, y);
        }
    }
}

/* Runs the step on the GPU's copies, and on the CPU: the same caches, gaps included. */
static void run_both(steps *s, gpu_call *call, bool graph)
{
    attn_forward_args *a = &s->step.args;
    void *wanted[CACHES];
    copy_all(call, a);
    if (attn_forward(NULL, a) != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
    for (int i = 0; i < CACHES; i++) {
        const gpu_copy *copy = &call->copies[caches[i]];
        wanted[i] = malloc(copy->bytes + 1);
        assert_non_null(wanted[i]);
        memcpy(wanted[i], copy->first, copy->bytes);
    }
    run_gpu(call, graph);
    for (int i = 0; i < CACHES; i++) {
        const gpu_copy *copy = &call->copies[caches[i]];
        attn_tensor want = copy->here;
        gpu_copy_back(copy);
        want.data = (char *)wanted[i] + ((char *)want.data - copy->first);
        if (a->rope_base > 0 && caches[i] == ARGS_K) {
            assert_tensors_near(&copy->here, &want);
        } else {
            assert_memory_equal(copy->first, wanted[i], copy->bytes);
        }
        free(wanted[i]);
    }
    gpu_copy_back(&call->copies[ARGS_O]);
    gpu_copy_back(&call->copies[ARGS_LSE]);
}

/* Compares O of the GPU with attention over the cache as it is now, and the rotated Q. */
static void assert_attention(const steps *s, const gpu_call *call, const char *line)
{
    attn_forward_args after = s->step.args;
    error_stats errors;
    after.q = s->q, after.k_new.data = after.v_new.data = NULL;
    after.rope_cos.data = after.rope_sin.data = NULL, after.rope_base = 0, after.rope_dims = 0;
    after.flags &= ~(uint64_t)ATTN_ROPE_INTERLEAVED;
    errors_measure(&after, 0, &errors);
    const double unit = after.q.dtype == ATTN_F16 ? 0x1p-11 : 0x1p-8;
    const bool rounds = call->plan.weight_loss > 0;
    if (!(errors.c <= (rounds ? 16 : 4) || (rounds && errors.relative <= 2 * unit)) ||
        !(errors.lse <= 8)) {
        fail_msg("%s: c = %g, LSE %g: %s", call->plan.kernel, errors.c, errors.lse, line);
    }
}

static steps open_steps(const char *line, const rotation *r)
{
    problem_spec problem;
    char error[512];
    steps s = {0};
    if (!problem_parse(line, &problem, error, sizeof error) || !steps_open(&problem, r, &s)) {
        fail_msg("%s", line);
    }
    return s;
}

/* Puts tables in the place of a base. */
static void tabulate(attn_forward_args *a, const rotation *r)
{
    static double cosine[POSITIONS * PAIRS], sine[POSITIONS * PAIRS];
    const int64_t pairs = r->dims / 2;
    assert_true(pairs <= PAIRS);
    for (int64_t at = 0; at < POSITIONS * pairs; at++) {
        const double angle =
            (double)(at / pairs) * pow(r->base, -2 * (double)(at % pairs) / (double)r->dims);
        cosine[at] = cos(angle), sine[at] = sin(angle);
    }
    a->rope_base = 0;
    a->rope_cos = attn_tensor_bshd(cosine, ATTN_F64, POSITIONS, pairs, 1, 1);
    a->rope_sin = attn_tensor_bshd(sine, ATTN_F64, POSITIONS, pairs, 1, 1);
}

static const char *const lines[] = {
    "b=2 hq=4 hkv=2 nq=1 nk=100 d=16 causal=1 lse=1 used_k=100,3",
    "b=3 hq=4 hkv=1 nq=3 nk=70 d=64 causal=1 lse=1 used_k=70,3,40 page=16 dtype=bf16",
    "b=2 hq=2 nq=5 nk=60 d=32 causal=1 lse=1 used_k=60,33 page=3 dtype=f16 alibi=h",
    "hq=8 hkv=2 nq=40 nk=90 d=16 dv=24 causal=1 lse=1 dtype=f64 layout=bhsd used_k=90",
    "b=2 hq=4 nq=2 nk=90 d=16 causal=1 lse=1 q_origin=500,90 k_origin=412,2 layout=gap index=i64 "
    "used_k=90,90",
    "hq=4 hkv=1 nq=1 nk=900 d=128 dtype=bf16 lse=1 used_k=890",
    "b=2 hq=4 hkv=2 nq=2 nk=50 d=64 dtype=f32 lse=1", /* one block of keys */
    "b=2 hq=2 nq=70 nk=90 d=64 dtype=f32 lse=1 used_k=80,90 leftpad_k=3,0",
    "b=2 hq=4 hkv=2 nq=3 nk=70 d=32 used_k=70,33 causal=1 page=16 kv_dtype=i8 lse=1",
    "b=2 hq=4 hkv=2 nq=3 nk=70 d=32 used_k=70,33 kv_dtype=i4x2 kv_group=8 kv_shift=1 lse=1",
    "b=2 hq=4 hkv=2 nq=2 nk=70 d=24 used_k=70,33 kv_dtype=i4x2 kv_group=3 kv_scale=f16:bkh lse=1",
    "b=2 hq=4 hkv=2 nq=2 nk=70 d=24 used_k=70,33 page=3 kv_dtype=i8 kv_scale=bf16:bk kv_shift=1 "
    "dtype=bf16 lse=1",
    "b=2 hq=4 hkv=2 nq=3 nk=70 d=32 used_k=70,33 page=16 kv_dtype=e4m3 kv_scale=h dtype=f16 lse=1",
    "hq=2 nq=2 nk=40 d=32 used_k=40 kv_dtype=e5m2 lse=1",
};
enum { LINES = sizeof lines / sizeof lines[0] };

static void test_append(void **state)
{
    static const rotation rotations[] = {
        {16, false, 10000}, {16, true, 500000}, {8, false, 100}, {2, true, 1}};
    (void)state;
    for (int n = 0; n < LINES * 5 * 2; n++) {
        const char *line = lines[n % LINES];
        const rotation *r = n / LINES % 5 ? &rotations[n / LINES % 5 - 1] : NULL;
        const bool tables = n / LINES >= 5, coded = strstr(line, "kv_dtype") != NULL;
        if (r && coded && !tables) { /* an element rounded the other way may change a group */
            continue;
        }
        gpu_call call;
        steps s = open_steps(line, r);
        if (r && tables) {
            tabulate(&s.step.args, r);
        }
        run_both(&s, &call, n % 2 && s.step.args.seqused_k.data);
        assert_attention(&s, &call, line);
        close_call(&call);
        steps_close(&s);
    }
}

/* Makes one packed tensor of the rows of all sequences. */
static void pack(attn_tensor *t)
{
    t->shape[1] *= t->shape[0], t->shape[0] = 1;
}

/* Queries packed (cu_seqlens_q), some rows before the first sequence and behind the last. */
static void test_packed(void **state)
{
    static const rotation r = {16, true, 10000};
    (void)state;
    for (int n = 1; n < 3; n++) {
        gpu_call call;
        steps s = open_steps(lines[n], &r);
        attn_forward_args *a = &s.step.args;
        const int32_t b = (int32_t)s.problem.b, rows = (int32_t)s.problem.nq;
        int32_t sums[8] = {0};
        attn_tensor *const packed[] = {&a->q, &a->o, &a->lse, &a->k_new, &a->v_new, &s.q};
        for (int i = 0; i < 6; i++) {
            pack(packed[i]);
        }
        for (int i = 0; i <= b; i++) {
            sums[i] = 1 + (i == b ? b * rows - 2 : i * rows);
        }
        a->cu_seqlens_q = attn_tensor_bshd(sums, ATTN_I32, b + 1, 1, 1, 1);
        tabulate(a, &r);
        run_both(&s, &call, false);
        const attn_tensor of_gpu = steps_copy(&a->o);
        assert_int_equal(attn_forward(NULL, a), ATTN_OK);
        for (int64_t at = 0; at < a->o.shape[1] * a->o.shape[2] * a->o.shape[3]; at++) {
            const int64_t c = at % a->o.shape[3], h = at / a->o.shape[3] % a->o.shape[2],
                          i = at / a->o.shape[3] / a->o.shape[2];
            const double x = oracle_element(&of_gpu, 0, i, h, c),
                         y = oracle_element(&a->o, 0, i, h, c);
            /* P of 8 bits, values of size 4 at most. The last sequence has fewer rows than
             * steps.h left NaN for. */
            assert_true(fabs(x - y) <= 0x1p-5 || (isnan(x) && isnan(y)));
        }
        free(of_gpu.data);
        close_call(&call);
        steps_close(&s);
    }
}

/* Numbers in the GPU's memory that are out of range: nothing is written outside of the cache, and
 * rows without a key are left out. */
static void test_out_of_range(void **state)
{
    static const int32_t used[] = {-5, 2, 1 << 30};
    static const int64_t origins[] = {-9, INT64_C(1) << 40};
    (void)state;
    for (int n = 0; n < LINES; n++) {
        gpu_call call;
        const rotation r = {16, false, 10000};
        steps s = open_steps(lines[n], &r);
        attn_forward_args *a = &s.step.args;
        int64_t wild[PROBLEM_MAX_SEQS * 40];
        tabulate(a, &r);
        for (int64_t i = 0; i < a->block_table.shape[0] * a->block_table.shape[1]; i++) {
            wild[i] = (i % 2 ? 1 : -1) * (INT64_C(1) << 40);
        }
        if (a->block_table.data) {
            a->block_table = attn_tensor_bshd(wild, ATTN_I64, a->block_table.shape[0],
                                              a->block_table.shape[1], 1, 1);
        }
        a->seqused_k = attn_tensor_bshd(used + (s.problem.b == 1), ATTN_I32, s.problem.b, 1, 1, 1);
        if (n % 2) {
            a->q_origin = attn_tensor_bshd(origins + (s.problem.b == 1), ATTN_I64,
                                           s.problem.b == 1 ? 1 : 2, 1, 1, 1);
            a->q_origin.shape[0] = s.problem.b <= 2 ? s.problem.b : 1;
        }
        copy_all(&call, a);
        run_gpu(&call, false);
        close_call(&call);
        steps_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_out_of_range),
    };
    gpu = trial_gpu();
    const int failed = gpu ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
    attn_context_destroy(gpu);
    return failed;
}
