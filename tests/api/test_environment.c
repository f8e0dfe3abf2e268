/*
 * test_environment.c: the host's state (contract F2, P4): rounding mode, flush-to-zero,
 * floating-point flags, errno, signal mask and affinity are the same after a call as before, and
 * none of them changes a result.
 */
#include "call.h"
#include "grad_runs.h"
#include "inputs.h"
#include "tables.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#define FLUSH_TO_ZERO 0x8040u /* with denormals-are-zero */
#endif

/* Sets mode 0 .. 7: the four rounding modes, then with flush-to-zero where there is one. */
static void set_mode(int mode)
{
    static const int rounding[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    fesetround(rounding[mode % 4]);
#ifdef FLUSH_TO_ZERO
    _mm_setcsr((_mm_getcsr() & ~FLUSH_TO_ZERO) | (mode >= 4 ? FLUSH_TO_ZERO : 0));
#endif
}

static unsigned get_mode(void)
{
#ifdef FLUSH_TO_ZERO
    return _mm_getcsr();
#else
    return (unsigned)fegetround();
#endif
}

/* Threads of the pool start in the mode of the call that starts them. */
static void assert_right_in_every_mode(const char *line)
{
    call c;
    call_open(&c, line);
    for (int mode = 0; mode < 8; mode++) {
        attn_context_config config = {.struct_size = sizeof config, .threads = 3};
        attn_context *context;
        assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
        set_mode(mode);
        feclearexcept(FE_ALL_EXCEPT);
        unsigned before = get_mode();
        attn_status status = attn_forward(context, c.args);
        unsigned after = get_mode();
        set_mode(0);
        assert_int_equal(status, ATTN_OK);
        assert_int_equal(after, before);
        if (!call_is_right(&c)) {
            fail_msg("other bits in mode %d: %s", mode, line);
        }
        attn_context_destroy(context);
    }
    call_close(&c);
}

static void test_rounding_modes(void **state)
{
    (void)state;
    assert_right_in_every_mode(CALL_LINE);
    assert_right_in_every_mode(CALL_LINE " softcap=5 bias=f16:qk sinks=h alibi=h");
    assert_right_in_every_mode("n=70 hq=2 d=16 dtype=bf16 lse=1 scale=0.25");
    assert_right_in_every_mode("n=70 hq=2 d=16 dtype=f64 lse=1 scale=0.25");
    /* 1 / sqrt(24), 1 / 0.7 are rounded */
    assert_right_in_every_mode("n=70 hq=2 d=24 dtype=f64 lse=1 dropout=0.3");
}

static void test_rounding_modes_of_gradients(void **state)
{
    problem_spec problem;
    problem_tensors tensors;
    char sentence[256];
    unsigned char *right = NULL;
    size_t bytes;
    (void)state;
    assert_true(problem_parse("n=70 hq=2 d=24 dtype=f64 dropout=0.3 pass=backward", &problem,
                              sentence, sizeof sentence));
    assert_true(problem_tensors_create(&problem, PLACE_GUARD_AFTER, &tensors));
    assert_int_equal(attn_forward(NULL, &tensors.args), ATTN_OK);
    for (int mode = 0; mode < 8; mode++) {
        set_mode(mode);
        unsigned before = get_mode();
        attn_status status = attn_backward(NULL, &tensors.grad);
        unsigned after = get_mode();
        set_mode(0);
        assert_int_equal(status, ATTN_OK);
        assert_int_equal(after, before);
        unsigned char *now = grad_runs_copy(&tensors.grad, &bytes);
        if (right && memcmp(now, right, bytes) != 0) {
            fail_msg("other bits in mode %d", mode);
        }
        free(right);
        right = now;
    }
    free(right);
    problem_tensors_free(&tensors);
}

/* An executor that checks after each task that the floating-point state is the old one. */
static void watchful_loop(void *user, int64_t n, void (*task)(void *arg, int64_t i, int32_t thread),
                          void *arg)
{
    for (int64_t i = 0; i < n; i++) {
        unsigned before = get_mode();
        task(arg, i, 0);
        *(int *)user += get_mode() != before;
    }
}

static int32_t one_thread(void *user)
{
    return (void)user, 1;
}

/* O of one query of one element and these keys and values, on a table. */
static float attend(const char *table, const float *key, const float *value, int64_t n)
{
    int changed = 0;
    const attn_context_config config = {.struct_size = sizeof config,
                                        .cpu = table,
                                        .executor = {&changed, one_thread, watchful_loop}};
    attn_context *context;
    uint16_t q[1], k[512], v[512];
    float o = NAN;
    attn_forward_args args = {.struct_size = sizeof args, .flags = ATTN_SCALE, .softmax_scale = 1};
    args.q = attn_tensor_bshd(q, ATTN_BF16, 1, 1, 1, 1);
    args.k = attn_tensor_bshd(k, ATTN_BF16, 1, n, 1, 1);
    args.v = attn_tensor_bshd(v, ATTN_BF16, 1, n, 1, 1);
    args.o = attn_tensor_bshd(&o, ATTN_F32, 1, 1, 1, 1);
    inputs_store(&args.q, 0, 0, 0, 0, 1);
    for (int64_t j = 0; j < n; j++) {
        inputs_store(&args.k, 0, j, 0, 0, (double)key[j]);
        inputs_store(&args.v, 0, j, 0, 0, (double)value[j]);
    }
    assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    attn_context_destroy(context);
    assert_int_equal(changed, 0);
    return o;
}

/* bf16 on tables of x86-64 with bits of their own sets flush-to-zero for a while
 * (docs/numerics.md). A sum that becomes subnormal among the keys is then 0; a quotient that does
 * is kept. Other tables keep both. */
static void subnormal_results(const char *table, bool flushes)
{
    float key[512] = {0}, value[512] = {0x1p-126f};
    const float quotient = attend(table, key, value, 4);
    /* in the second block of 256: its weight, 2^9.02, scales the sum down to 2^-135 */
    key[256] = 6.25f;
    const float sum = attend(table, key, value, 512);
    assert_true(quotient == 0x1p-128f);
    if (flushes ? sum != 0 : !(sum > 0x1p-137f && sum < 0x1p-135f)) {
        fail_msg("%s: a subnormal sum became %a", table, (double)sum);
    }
}

static void test_subnormal_results(void **state)
{
    int usual, own;
    const char *const *names = tables_names(&usual), *const *own_names = tables_own_bits(&own);
    (void)state;
    for (int i = 0; i < usual; i++) {
        subnormal_results(names[i], false);
    }
    for (int i = 0; i < own; i++) {
        subnormal_results(own_names[i], tables_flush(own_names[i]));
    }
    if (own == 0) {
        print_message("SKIPPED flush-to-zero within bf16 on AMX: this machine has no AMX (preset "
                      "emulate has)\n");
    }
}

/* Sinks and masks for which exp overflows and underflows, which sets errno in the C library. */
static void test_errno_and_flags(void **state)
{
    call c;
    (void)state;
    call_open(&c, "nq=3 nk=70 hq=2 d=16 dtype=f32 sinks=h lse=1 bias=k");
    for (int n = 0; n < 4; n++) {
        float sinks[] = {n & 1 ? 1e30f : -1e30f, n & 2 ? 800 : -800};
        attn_forward_args args = *c.args;
        args.sinks = attn_tensor_bshd(sinks, ATTN_F32, 1, 2, 1, 1);
        feclearexcept(FE_ALL_EXCEPT);
        errno = 12345;
        assert_int_equal(attn_forward(NULL, &args), ATTN_OK);
        assert_int_equal(errno, 12345);
        assert_int_equal(fetestexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW), 0);
    }
    call_close(&c);
}

static void test_merge(void **state)
{
    float o[4] = {1, 2, 3, 4}, lse[4] = {0, -1000, -INFINITY, 1000}, to[2];
    attn_tensor part_o[2], part_lse[2];
    (void)state;
    for (int p = 0; p < 2; p++) {
        part_o[p] = attn_tensor_bshd(o + 2 * p, ATTN_F32, 1, 2, 1, 1);
        part_lse[p] = attn_tensor_bshd(lse + 2 * p, ATTN_F32, 1, 2, 1, 1);
    }
    attn_merge_args args = {
        .struct_size = sizeof args, .parts = 2, .part_o = part_o, .part_lse = part_lse};
    args.o = attn_tensor_bshd(to, ATTN_F32, 1, 2, 1, 1);
    for (int mode = 0; mode < 8; mode++) {
        set_mode(mode);
        unsigned before = get_mode();
        errno = 12345;
        attn_status status = attn_merge(NULL, &args);
        unsigned after = get_mode();
        set_mode(0);
        assert_int_equal(status, ATTN_OK);
        assert_int_equal(errno, 12345);
        assert_int_equal(after, before);
        assert_true(to[0] == 1 && to[1] == 4);
    }
}

static void test_signals_and_affinity(void **state)
{
    attn_context_config config = {.struct_size = sizeof config, .threads = 3};
    attn_context *context;
    sigset_t mask, mask_after;
    cpu_set_t cpus, cpus_after;
    call c;
    (void)state;
    call_open(&c, CALL_LINE);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &mask, NULL), 0);
    assert_int_equal(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    assert_int_equal(attn_context_create(&config, &context), ATTN_OK);
    assert_int_equal(attn_forward(context, c.args), ATTN_OK);
    assert_true(call_is_right(&c));
    attn_context_destroy(context);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask_after), 0);
    assert_int_equal(sched_getaffinity(0, sizeof cpus_after, &cpus_after), 0);
    for (int s = 1; s < 32; s++) {
        assert_int_equal(sigismember(&mask, s), sigismember(&mask_after, s));
    }
    assert_true(CPU_EQUAL(&cpus, &cpus_after));
    call_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding_modes),
        cmocka_unit_test(test_rounding_modes_of_gradients),
        cmocka_unit_test(test_subnormal_results),
        cmocka_unit_test(test_errno_and_flags),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_signals_and_affinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
