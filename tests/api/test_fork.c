/*
 * test_fork.c: a child of fork() may use every context, whatever the parent's threads were doing
 * (contract P2). A child that hangs is ended by its alarm after 10 seconds, and the test fails.
 */
#include "call.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a slow open() and a fixed getpid() between the library and libc ------------------------- */

static _Thread_local bool opens_slowly;
static atomic_bool opening, may_open;
static pid_t fixed_pid; /* 0: the true one */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
pid_t __real_getpid(void);
pid_t __wrap_getpid(void);

int __wrap_open(const char *path, int flags, ...)
{
    if (opens_slowly) {
        atomic_store(&opening, true);
        while (!atomic_load(&may_open)) {
        }
    }
    return __real_open(path, flags);
}

pid_t __wrap_getpid(void)
{
    return fixed_pid ? fixed_pid : __real_getpid();
}

/* ---- children -------------------------------------------------------------------------------- */

static attn_context *new_context(int threads)
{
    attn_context_config config = {.struct_size = sizeof config, .threads = threads};
    attn_context *context;
    assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
    return context;
}

static int threads_of_this_process(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        count += task->d_name[0] != '.';
    }
    return count;
}

/* In the child: two right calls, then the end of the context. Exit status 0 if all is well, which
 * takes at least `threads` threads of its own. */
static void child(attn_context *context, call *c, int threads)
{
    alarm(10);
    for (int i = 0; i < 2; i++) {
        if (attn_forward(context, c->args) != ATTN_OK || !call_is_right(c)) {
            _exit(1);
        }
    }
    if (threads_of_this_process() < threads) {
        _exit(2);
    }
    attn_context_destroy(context);
    _exit(0);
}

static void assert_child_works(attn_context *context, call *c, int threads)
{
    pid_t pid = fork();
    int status;
    assert_true(pid >= 0);
    if (pid == 0) {
        child(context, c, threads);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) {
        fail_msg("the child was ended by signal %d", WTERMSIG(status));
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void fork_while_idle(attn_context *context, int threads)
{
    call c;
    call_open(&c, CALL_LINE);
    assert_child_works(context, &c, threads); /* no thread started yet */
    assert_int_equal(attn_forward(context, c.args), ATTN_OK);
    assert_true(call_is_right(&c));
    assert_child_works(context, &c, threads); /* the parent's pool sleeps */
    assert_int_equal(attn_forward(context, c.args), ATTN_OK);
    assert_true(call_is_right(&c));
    call_close(&c);
}

static void test_fork_while_idle(void **state)
{
    attn_context *context = new_context(3);
    (void)state;
    fork_while_idle(context, 3);
    fork_while_idle(NULL, 1);
    attn_context_destroy(context);
}

/* A thread that calls without pause until told to stop. It hands a workspace in: the child's malloc
 * is not the library's business, and that of clang 14's ASan hangs if another thread was inside it
 * at the fork. */
typedef struct busy {
    attn_context *context;
    call own;
    atomic_bool stop;
    atomic_int calls;
} busy;

static void *run_busy(void *arg)
{
    busy *b = arg;
    while (!atomic_load(&b->stop)) {
        if (attn_forward(b->context, b->own.args) != ATTN_OK) {
            return arg;
        }
        atomic_fetch_add(&b->calls, 1);
    }
    return NULL;
}

static void fork_during_calls(attn_context *context, int threads)
{
    busy b = {.context = context};
    call c;
    pthread_t id;
    void *wrong;
    call_open(&c, CALL_LINE);
    /* short, so that forks hit every moment of a call */
    call_open(&b.own, "b=1 hq=3 n=7 d=8 dtype=f32");
    assert_int_equal(attn_forward_workspace(context, b.own.args, &b.own.args->workspace_bytes),
                     ATTN_OK);
    b.own.args->workspace = malloc(b.own.args->workspace_bytes);
    assert_int_equal(pthread_create(&id, NULL, run_busy, &b), 0);
    while (atomic_load(&b.calls) < 10) {
    }
    for (int i = 0; i < 50; i++) {
        assert_child_works(context, &c, threads);
    }
    atomic_store(&b.stop, true);
    pthread_join(id, &wrong);
    assert_null(wrong);
    assert_true(call_is_right(&b.own));
    free(b.own.args->workspace);
    call_close(&b.own);
    call_close(&c);
}

static void test_fork_during_calls(void **state)
{
    attn_context *context = new_context(3);
    (void)state;
    fork_during_calls(context, 3);
    attn_context_destroy(context);
}

static void test_fork_during_calls_on_the_default_context(void **state)
{
    (void)state;
    fork_during_calls(NULL, 1);
}

static void *first_call(void *arg)
{
    call *c = arg;
    opens_slowly = true;
    return attn_forward(NULL, c->args) == ATTN_OK && call_is_right(c) ? NULL : arg;
}

/* The fork finds another thread in the middle of making the default context. This test is the
 * first, since no call may have used that context before. */
static void test_fork_during_the_first_call(void **state)
{
    call c, own;
    pthread_t id;
    void *wrong;
    (void)state;
    call_open(&c, CALL_LINE);
    call_open(&own, CALL_LINE);
    assert_int_equal(pthread_create(&id, NULL, first_call, &own), 0);
    while (!atomic_load(&opening)) {
    }
    assert_child_works(NULL, &c, 1);
    atomic_store(&may_open, true);
    pthread_join(id, &wrong);
    assert_null(wrong);
    call_close(&own);
    call_close(&c);
}

/* Both processes have number 1, as in PID namespaces. */
static void test_child_with_its_parents_number(void **state)
{
    attn_context *context = new_context(3);
    (void)state;
    fixed_pid = 1;
    fork_while_idle(context, 3);
    fork_during_calls(context, 3);
    attn_context_destroy(context); /* which joins threads of process 1 */
    fixed_pid = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork_during_the_first_call),
        cmocka_unit_test(test_child_with_its_parents_number),
        cmocka_unit_test(test_fork_while_idle),
        cmocka_unit_test(test_fork_during_calls),
        cmocka_unit_test(test_fork_during_calls_on_the_default_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
