/*
 * test_cores.c: threads that a context gets by itself: control groups' quotas, read from files made
 * here, and affinity. Threads that leave a core.
 */
#include "call.h"
#include "system/system.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/attn-cores-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int32_t quota(const char *groups)
{
    char path[256];
    snprintf(path, sizeof path, "%s/groups", root);
    write_file("groups", groups);
    return attn_system_quota(path, root);
}

static int make_groups(void **state)
{
    char path[256];
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/a", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/a/b", root);
    assert_int_equal(mkdir(path, 0700), 0);
    return 0;
}

static int remove_groups(void **state)
{
    static const char *const names[] = {"groups", "cpu.max", "a/cpu.max", "a/b/cpu.max",
                                        "a/b",    "a",       ""};
    char path[256];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        remove(path);
    }
    return 0;
}

static void test_quota(void **state)
{
    (void)state;
    assert_int_equal(quota("0::/a/b\n"), INT32_MAX); /* no file says anything */
    write_file("a/b/cpu.max", "max 100000\n");
    assert_int_equal(quota("0::/a/b\n"), INT32_MAX);
    write_file("a/cpu.max", "250000 100000\n");
    assert_int_equal(quota("0::/a/b\n"), 3); /* of the group around it, rounded up */
    write_file("a/b/cpu.max", "200000 100000\n");
    assert_int_equal(quota("0::/a/b\n"), 2);
    assert_int_equal(quota("1:cpu:/x\n0::/a\n"), 3);
    assert_int_equal(quota("0::/elsewhere/a\n"), INT32_MAX);
    write_file("cpu.max", "1000 100000\n");
    /* a container that sees its own group as the root */
    assert_int_equal(quota("0::/elsewhere/a\n"), 1);
    assert_int_equal(quota("0::/\n"), 1);
    assert_int_equal(quota("0::/../../a\n"), 1);
}

static void test_nonsense(void **state)
{
    static const char *const text[] = {"",          "\n",        "0 100000",
                                       "-5 100000", "100000 0",  "100000",
                                       "max\n",     "a b c d\n", "9223372036854775807 1"};
    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
        write_file("cpu.max", text[i]);
        assert_int_equal(quota("0::/\n"), INT32_MAX);
    }
    write_file("cpu.max", "100000 100000\n");
    assert_int_equal(quota(""), INT32_MAX);
    /* version 1 only, or a line like ours */
    assert_int_equal(quota("4:memory:/a\n10::/\n"), INT32_MAX);
    assert_int_equal(attn_system_quota("/nonexistent", "/nonexistent"), INT32_MAX);
}

static void test_affinity(void **state)
{
    cpu_set_t before, one;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    const int32_t cores = attn_system_cores();
    assert_in_range(cores, 1, CPU_COUNT(&before));
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
        if (CPU_ISSET(i, &before)) {
            CPU_SET(i, &one);
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(attn_system_cores(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* A thread leaves its core and keeps its affinity; it stays where there is no other core. */
static void test_leaving(void **state)
{
    (void)state;
    cpu_set_t before, after, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    const int32_t core = attn_system_core();
    assert_in_range(core, 0, CPU_SETSIZE - 1);
    CPU_ZERO(&one);
    CPU_SET((size_t)core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* it is there for sure */
    attn_system_leave_core(core);
    assert_int_equal(attn_system_core(), core);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    attn_system_leave_core(core);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_affinity),
        cmocka_unit_test(test_leaving),
    };
    return cmocka_run_group_tests(tests, make_groups, remove_groups);
}
