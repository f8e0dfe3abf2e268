/*
 * test_segments.c: what plans count on: sums that wait while segments are summed in turn, sequences
 * as long as their tensors, and the names of the sets of features that a table may need.
 */
#include "core/problem.h"
#include "core/segment.h"
#include "cpu/machine/features.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The most sums on the stack of a walk over so many segments. */
static int most_sums(int64_t segments)
{
    attn_segment_stack stack = {0};
    int most = 0;
    for (int64_t segment = 0; segment < segments; segment++) {
        while (attn_segment_settle(&stack, segment)) {
        }
        stack.last[stack.sums++] = segment;
        most = stack.sums > most ? stack.sums : most;
    }
    return most;
}

static void test_sums_that_wait(void **state)
{
    (void)state;
    for (int64_t segments = 1; segments <= 1100; segments++) {
        assert_int_equal(attn_segment_sums(segments), most_sums(segments));
    }
}

/* A node ends where the smallest tree of its segments does. */
static void test_ends_of_nodes(void **state)
{
    static const int64_t ends[][3] = {{0, 0, 1}, {0, 1, 2}, {2, 3, 4}, {1, 2, 4},
                                      {3, 4, 8}, {6, 7, 8}, {8, 8, 9}, {7, 8, 16}};
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        assert_int_equal(attn_segment_node_end(ends[i][0], ends[i][1]), ends[i][2]);
    }
}

static void test_names_of_features(void **state)
{
    (void)state;
    assert_string_equal(attn_cpu_feature_names(0), "");
    assert_string_equal(attn_cpu_feature_names(ATTN_CPU_AVX2), "avx2");
    assert_string_equal(attn_cpu_feature_names(ATTN_CPU_AVX2 | ATTN_CPU_AVX512), "avx2 avx512");
    assert_string_equal(attn_cpu_feature_names(ATTN_CPU_AVX2 | ATTN_CPU_AVX512 | ATTN_CPU_AMX),
                        "avx2 avx512 amx");
    assert_string_equal(attn_cpu_feature_names(ATTN_CPU_NEON), "neon");
    assert_string_equal(attn_cpu_feature_names(ATTN_CPU_WASM128), "wasm128");
}

/* The short way to a sequence, of kernels and plans of a GPU, leads where the long way does. */
static void test_whole_sequences(void **state)
{
    (void)state;
    for (int top_left = 0; top_left < 2; top_left++) {
        attn_problem problem = {.batch = 3, .keys = 9, .top_left = top_left};
        problem.q.shape[1] = 5, problem.k.shape[1] = 9;
        assert_true(attn_problem_is_whole(&problem));
        for (int64_t b = 0; b < 3; b++) {
            const attn_sequence want = attn_problem_sequence(&problem, b),
                                got = attn_problem_whole_sequence(&problem, b);
            assert_true(got.index == want.index && got.tensor == want.tensor);
            assert_true(got.q_first == want.q_first && got.k_first == want.k_first);
            assert_true(got.nq == want.nq && got.nq_used == want.nq_used);
            assert_true(got.nk == want.nk && got.k_rows == want.k_rows);
            assert_true(got.diagonal == want.diagonal && !got.outside);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_that_wait),
        cmocka_unit_test(test_ends_of_nodes),
        cmocka_unit_test(test_names_of_features),
        cmocka_unit_test(test_whole_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
