/*
 * test_executor.c: the caller's threads instead of the library's. The results' bits must not depend
 * on the order of tasks, on which thread runs which, or on how many there are.
 */
#include "call.h"
#include "grad_runs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* State shared by the executors below; user points to one of these. */
typedef struct team {
    int32_t threads;
    int64_t loops, tasks; /* run so far */
} team;

static int32_t team_threads(void *user)
{
    return ((team *)user)->threads;
}

typedef void task_function(void *arg, int64_t i, int32_t thread);
typedef void loop_function(void *user, int64_t n, task_function *task, void *arg);

static void count(team *t, int64_t n)
{
    t->loops++;
    t->tasks += n;
}

static void in_order(void *user, int64_t n, task_function *task, void *arg)
{
    count(user, n);
    for (int64_t i = 0; i < n; i++) {
        task(arg, i, 0);
    }
}

static void backwards_on_the_last_thread(void *user, int64_t n, task_function *task, void *arg)
{
    count(user, n);
    for (int64_t i = n; i-- > 0;) {
        task(arg, i, team_threads(user) - 1);
    }
}

static void in_turn(void *user, int64_t n, task_function *task, void *arg)
{
    count(user, n);
    for (int64_t i = 0; i < n; i++) {
        task(arg, i, (int32_t)(i * 7 % team_threads(user)));
    }
}

/* The order of OpenMP's static schedule: each thread has a contiguous part. */
typedef struct part {
    int64_t first, last;
    int32_t thread;
    task_function *task;
    void *arg;
} part;

static void *run_part(void *arg)
{
    part *p = arg;
    for (int64_t i = p->first; i < p->last; i++) {
        p->task(p->arg, i, p->thread);
    }
    return NULL;
}

static void on_threads(void *user, int64_t n, task_function *task, void *arg)
{
    enum { MOST = 8 };
    pthread_t id[MOST];
    part parts[MOST];
    int32_t threads = team_threads(user);
    count(user, n);
    for (int32_t t = 0; t < threads; t++) {
        parts[t] = (part){n * t / threads, n * (t + 1) / threads, t, task, arg};
        assert_int_equal(pthread_create(&id[t], NULL, run_part, &parts[t]), 0);
    }
    for (int32_t t = 0; t < threads; t++) {
        assert_int_equal(pthread_join(id[t], NULL), 0);
    }
}

static attn_context *context_on(team *t, loop_function *loop)
{
    attn_context_config config = {.struct_size = sizeof config};
    attn_context *context;
    config.executor = (attn_executor){t, team_threads, loop};
    assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
    return context;
}

static void test_any_executor_gives_the_same_bits(void **state)
{
    static loop_function *const loops[] = {in_order, backwards_on_the_last_thread, in_turn,
                                           on_threads};
    call dense, varlen;
    (void)state;
    call_open(&dense, CALL_LINE);
    call_open(
        &varlen,
        "lens_q=3,70,1,40 lens_k=30,80,0,40 hq=4 hkv=2 d=16 dtype=f16 causal=1 lse=1 row_max=1");
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        for (int32_t threads = 1; threads <= 5; threads += 2) {
            team t = {.threads = threads};
            attn_context *context = context_on(&t, loops[i]);
            assert_int_equal(attn_forward(context, dense.args), ATTN_OK);
            assert_true(call_is_right(&dense));
            assert_int_equal(attn_forward(context, varlen.args), ATTN_OK);
            assert_true(call_is_right(&varlen));
            assert_int_equal(t.loops, 2);
            attn_context_destroy(context);
        }
    }
    call_close(&varlen);
    call_close(&dense);
}

/* The number of threads is asked for at each call. */
static void test_threads_that_change(void **state)
{
    team t = {.threads = 1};
    attn_context *context = context_on(&t, in_turn);
    attn_info info = {.struct_size = sizeof info};
    call c;
    (void)state;
    call_open(&c, CALL_LINE);
    for (t.threads = 6; t.threads > 0; t.threads--) {
        assert_int_equal(attn_get_info(context, &info), ATTN_OK);
        assert_int_equal(info.threads, t.threads);
        assert_int_equal(attn_forward(context, c.args), ATTN_OK);
        assert_true(call_is_right(&c));
    }
    attn_context_destroy(context);
    call_close(&c);
}

static void test_no_threads(void **state)
{
    team t = {.threads = 0};
    attn_context *context = context_on(&t, in_order);
    uint64_t bytes;
    call c;
    (void)state;
    call_open(&c, CALL_LINE);
    for (; t.threads > -3; t.threads--) {
        assert_int_equal(attn_forward(context, c.args), ATTN_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(attn_last_error(), "executor.num_threads returned "));
        assert_int_equal(attn_forward_workspace(context, c.args, &bytes),
                         ATTN_ERR_INVALID_ARGUMENT);
    }
    assert_int_equal(t.loops, 0);
    assert_true(call_is_untouched(&c));
    attn_context_destroy(context);
    call_close(&c);
}

/* attn_merge runs on it as well. */
static void test_merge(void **state)
{
    team t = {.threads = 3};
    attn_context *context = context_on(&t, backwards_on_the_last_thread);
    float o[6] = {1, 2, 3, 4, 5, 6}, lse[6] = {0}, to[6] = {0};
    attn_tensor part_o = attn_tensor_bshd(o, ATTN_F32, 2, 3, 1, 1),
                part_lse = attn_tensor_bshd(lse, ATTN_F32, 2, 3, 1, 1);
    attn_merge_args args = {
        .struct_size = sizeof args, .parts = 1, .part_o = &part_o, .part_lse = &part_lse};
    (void)state;
    args.o = attn_tensor_bshd(to, ATTN_F32, 2, 3, 1, 1);
    assert_int_equal(attn_merge(context, &args), ATTN_OK);
    assert_memory_equal(to, o, sizeof o);
    assert_int_equal(t.loops, 1);
    attn_context_destroy(context);
}

/* Few items need little scratch, under any numbers of the threads that run them. */
static void test_many_threads(void **state)
{
    team t = {.threads = 1 << 20};
    attn_context *context = context_on(&t, backwards_on_the_last_thread);
    uint64_t bytes = 0;
    call c;
    (void)state;
    call_open(&c, "hq=2 nq=200 d=64 lse=1 row_max=1");
    assert_int_equal(attn_forward_workspace(context, c.args, &bytes), ATTN_OK);
    assert_in_range(bytes, 1, 100 << 20);
    assert_int_equal(attn_forward(context, c.args), ATTN_OK);
    assert_true(call_is_right(&c));
    call_close(&c);
    attn_context_destroy(context);
}

/* Products of threads and rows do not leave 64 bits (UBSan sees it), whatever an executor says. */
static void test_most_threads(void **state)
{
    const int64_t rows = INT64_C(1) << 45;
    team t = {.threads = INT32_MAX};
    attn_context *context = context_on(&t, in_order);
    attn_forward_args args = {.struct_size = sizeof args};
    uint64_t bytes = 0;
    (void)state;
    args.q = args.o = attn_tensor_bshd(NULL, ATTN_F32, 1, rows, 3, 64);
    args.k = args.v = attn_tensor_bshd(NULL, ATTN_F32, 1, 100, 3, 64);
    assert_int_equal(attn_forward_workspace(context, &args, &bytes), ATTN_OK);
    attn_context_destroy(context);
}

/* Every thread's scratch lies within the workspace, in each loop of a call: over items in pieces,
 * and over KV heads in turn, whose pieces are fewer than the items that join them. */
static void test_scratch_of_the_last_thread(void **state)
{
    static const char *const lines[] = {
        "hq=4 hkv=1 nq=2 nk=9000 d=16 causal=1 lse=1 row_max=1",
        "lens_q=1,0,1,2 lens_k=900,50,2049,65 hq=6 hkv=3 d=8 lse=1 row_max=1",
        "lens_q=1,0,1,2 lens_k=900,50,4097,65 hq=6 hkv=3 d=8 dtype=bf16 lse=1 row_max=1",
        "b=2 hq=4 hkv=2 nq=1 nk=17000 d=8 used_k=17000,9000 lse=1 row_max=1",
    };
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        call c;
        call_open(&c, lines[i]);
        for (int32_t threads = 1; threads <= 16; threads++) {
            team t = {.threads = threads};
            attn_context *context = context_on(&t, backwards_on_the_last_thread);
            attn_forward_args args = *c.args;
            guarded_region workspace;
            assert_int_equal(attn_forward_workspace(context, &args, &args.workspace_bytes),
                             ATTN_OK);
            assert_true(region_create(&workspace, args.workspace_bytes, PLACE_GUARD_AFTER));
            args.workspace = workspace.first;
            assert_int_equal(attn_forward(context, &args), ATTN_OK);
            assert_true(call_is_right(&c));
            region_free(&workspace);
            attn_context_destroy(context);
        }
        call_close(&c);
    }
}

/* Gradients on so many threads, with a workspace of exactly the size that is asked for, which is
 * returned. Their bits are those of `want`, or become them. */
static uint64_t run_gradients(const problem_tensors *tensors, int32_t threads, loop_function *loop,
                              unsigned char **want)
{
    team t = {.threads = threads};
    attn_context *context = context_on(&t, loop);
    attn_backward_args args = tensors->grad;
    guarded_region workspace;
    size_t bytes;
    assert_int_equal(attn_backward_workspace(context, &args, &args.workspace_bytes), ATTN_OK);
    assert_true(region_create(&workspace, args.workspace_bytes, PLACE_GUARD_AFTER));
    args.workspace = workspace.first;
    assert_int_equal(attn_backward(context, &args), ATTN_OK);
    unsigned char *now = grad_runs_copy(&args, &bytes);
    *want = *want ? *want : now;
    assert_memory_equal(now, *want, bytes);
    if (now != *want) {
        free(now);
    }
    region_free(&workspace);
    attn_context_destroy(context);
    return args.workspace_bytes;
}

/* The same for each loop of gradients. Threads without a task have no scratch: the workspace stops
 * growing at `busy` threads. */
static void test_scratch_of_gradients(void **state)
{
    static const struct {
        const char *line;
        int32_t busy;
    } cases[] = {
        {"hq=2 nq=1 nk=3 d=8", 2},
        {"hq=1 nq=3 nk=5 d=16 dtype=bf16 causal=1", 1},
        {"b=2 hq=4 hkv=2 nq=37 nk=90 d=16 bias=qk d_bias=f32 alibi=h d_alibi=1", 8},
        {"hq=3 nq=100 nk=20 d=8 bias=hqk d_bias=f32", 0},
        {"b=2 hq=3 nq=70 nk=20 d=8 bias=h d_bias=f32 sinks=h d_sinks=1", 0},
        {"lens_q=3,70,0,1 lens_k=9,80,3,0 hq=4 hkv=2 d=8 dtype=f16 bias=hk d_bias=f32", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        problem_spec problem;
        problem_tensors tensors;
        char line[256], sentence[256];
        unsigned char *want = NULL;
        uint64_t full = 0;
        snprintf(line, sizeof line, "%s pass=backward", cases[i].line);
        assert_true(problem_parse(line, &problem, sentence, sizeof sentence));
        assert_true(problem_tensors_create(&problem, PLACE_GUARD_AFTER, &tensors));
        assert_int_equal(attn_forward(NULL, &tensors.args), ATTN_OK);
        for (int32_t threads = 1; threads <= 64; threads += threads < 9 ? 1 : 11) {
            const uint64_t bytes =
                run_gradients(&tensors, threads, backwards_on_the_last_thread, &want);
            (void)run_gradients(&tensors, threads, in_turn, &want);
            full = threads == cases[i].busy ? bytes : full;
            assert_true(full == 0 || bytes == full);
        }
        free(want);
        problem_tensors_free(&tensors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_executor_gives_the_same_bits),
        cmocka_unit_test(test_scratch_of_the_last_thread),
        cmocka_unit_test(test_scratch_of_gradients),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_most_threads),
        cmocka_unit_test(test_threads_that_change),
        cmocka_unit_test(test_no_threads),
        cmocka_unit_test(test_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
