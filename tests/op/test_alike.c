/*
 * test_alike.c: kappa of A1 (docs/numerics.md, "Terms that are alike"), by sums of equal terms in
 * the order of forward_generic.cu: blocks of 64, each a chain of fused multiply-adds, added to one
 * sum over all blocks. So the bound of GPUs is held without one.
 */
#include "alike.h"
#include "trial.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 64, LANES = 32 };

static const double u = 0x1p-24;

/* A block's sum of probabilities, which forward_generic.cu adds in a tree over a warp's lanes. */
static float sum_of_lanes(int64_t keys, float p)
{
    float lane[LANES];
    for (int i = 0; i < LANES; i++) {
        lane[i] = (i < keys ? p : 0) + (i + LANES < keys ? p : 0);
    }
    for (int step = LANES / 2; step > 0; step /= 2) {
        for (int i = 0; i < step; i++) {
            lane[i] += lane[i + step];
        }
    }
    return lane[0];
}

/* O of n keys of probability p and value v, one block after the other. chain: l is a chain within
 * blocks, too, as on CPUs. */
static double attend(int64_t n, float p, float v, bool chain)
{
    float o = 0, l = 0;
    for (int64_t key = 0; key < n; key += BLOCK) {
        const int64_t keys = n - key < BLOCK ? n - key : BLOCK;
        float part = 0, sum = 0;
        for (int64_t i = 0; i < keys; i++) {
            part = fmaf(p, v, part);
            sum += p;
        }
        o = o * 1 + part;
        l += chain ? sum : sum_of_lanes(keys, p);
    }
    return (double)(o / l);
}

/* The largest c of n equal terms over some probabilities and values: beside half an ulp of O, in
 * u A. */
static double worst_c(int64_t n, bool chain)
{
    double worst = 0;
    for (int i = 0; i < 400; i++) {
        const float p = (float)(0.5 + (double)inputs_bits(1, 0, i) * 0x1p-65),
                    v = (float)(1 + (double)inputs_bits(1, 1, i) * 0x1p-64);
        const double exact = (double)v, error = fabs(attend(n, p, v, chain) - exact) - u * exact;
        worst = fmax(worst, error / (u * exact));
    }
    return worst;
}

static void test_running_sums(void **state)
{
    static const int64_t lengths[] = {1, 2, 63, 64, 65, 1000, 4096, 16384, 65536};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const double kappa = alike_kappa_of(lengths[i], BLOCK, 0);
        for (int chain = 0; chain < 2; chain++) {
            const double c = worst_c(lengths[i], chain);
            print_message("N = %lld, %s: c %.1f of 4 + %.0f\n", (long long)lengths[i],
                          chain ? "chains" : "lanes", c, kappa);
            assert_true(c <= 4 + kappa);
        }
    }
}

/* One sum over all blocks is beyond c = 4 in one block, and beyond the kappa of segments in many:
 * neither would do for GPUs. */
static void test_kappa_is_needed(void **state)
{
    (void)state;
    assert_true(worst_c(64, true) > 4);
    assert_true(worst_c(1 << 20, true) > 4 + alike_kappa_of(1 << 20, BLOCK, 32));
}

/* What the documents state. */
static void test_published(void **state)
{
    (void)state;
    assert_true(alike_kappa_of(64, 64, 32) == 65 && alike_kappa_of(2048, 64, 32) == 98);
    assert_true(alike_kappa_of(65536, 64, 32) == 113 && alike_kappa_of(1 << 20, 64, 32) == 125);
    assert_true(alike_kappa_of(65536, 64, 0) == 66 + 65536 / 64);
    assert_true(alike_kappa_of(64, 32, 0) == 36);
}

/* A line's O moved by a share of its bound is judged right below 1, and wrong above. */
static bool within(const char *line, double share, bool running)
{
    problem_spec spec;
    problem_tensors tensors;
    error_stats errors;
    char error[256];
    assert_true(problem_parse(line, &spec, error, sizeof error));
    assert_true(problem_tensors_create(&spec, PLACE_PLAIN, &tensors));
    const double kappa =
        alike_possible(&spec)
            ? alike_kappa(&tensors.args, false, running ? ALIKE_RUNNING : ALIKE_SEGMENTS)
            : 0;
    const errors_limits usual = {.c = 4, .lse = 8}, limits = alike_limits(usual, kappa);
    assert_int_equal(attn_forward(NULL, &tensors.args), ATTN_OK);
    float *o = tensors.args.o.data;
    *o += (float)(share * limits.c * u * (double)*o); /* V > 0 and Q = K = 0: sum p |v| = O */
    errors_measure(&tensors.args, 0, &errors);
    problem_tensors_free(&tensors);
    return errors.c <= limits.c;
}

static void test_judge(void **state)
{
    static const char line[] = "hq=1 nq=1 nk=1000 d=4 dv=1 inputs=even scale=0 dtype=f32";
    (void)state;
    for (int running = 0; running < 2; running++) {
        assert_true(within(line, 0.9, running) && within(line, -0.9, running));
        assert_false(within(line, 1.1, running) || within(line, -1.1, running));
    }
    assert_false(within("hq=1 nq=1 nk=1000 d=4 dv=1 inputs=normal dtype=f32", 1e9, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_running_sums),
        cmocka_unit_test(test_kappa_is_needed),
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_judge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
