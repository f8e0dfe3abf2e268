/*
 * peak.c: see peak.h. A loop of twelve independent chains per instruction set and type, enough to
 * cover the latency of the multiply-add units of current cores (4 cycles x 2 units), and few enough
 * for 16 registers.
 */
#include "peak.h"
#include "stats.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define TARGET(names) __attribute__((target(names)))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define TARGET(names)
#else
#define TARGET(names)
#endif

enum { CHAINS = 12, MAX_THREADS = 256 };

/* so that nothing is known at compile time */
static volatile double factor = 0.999, summand = 0.001;
static _Thread_local volatile double sink;

/* void name(long n): n rounds of CHAINS multiply-adds. The chains start apart, or the compiler
 * would make them one. */
#define DEFINE_LOOP(name, target, vector, element, set1, fma, first)                            \
    TARGET(target) static void name(long n)                                                     \
    {                                                                                           \
        vector a = set1((element)factor), b = set1((element)summand);                           \
        vector x0 = set1((element)0), x1 = set1((element)1), x2 = set1((element)2),             \
               x3 = set1((element)3);                                                           \
        vector x4 = set1((element)4), x5 = set1((element)5), x6 = set1((element)6),             \
               x7 = set1((element)7);                                                           \
        vector x8 = set1((element)8), x9 = set1((element)9), x10 = set1((element)10),           \
               x11 = set1((element)11);                                                         \
        for (long i = 0; i < n; i++) {                                                          \
            x0 = fma(x0, a, b), x1 = fma(x1, a, b), x2 = fma(x2, a, b), x3 = fma(x3, a, b),     \
            x4 = fma(x4, a, b);                                                                 \
            x5 = fma(x5, a, b), x6 = fma(x6, a, b), x7 = fma(x7, a, b), x8 = fma(x8, a, b),     \
            x9 = fma(x9, a, b);                                                                 \
            x10 = fma(x10, a, b), x11 = fma(x11, a, b);                                         \
        }                                                                                       \
        x0 = fma(fma(x0, x1, x2), fma(x3, x4, x5), fma(fma(x6, x7, x8), x9, fma(x10, x11, b))); \
        sink = (double)first(x0);                                                               \
    }

#define SAME(x) (x)

#if defined(__x86_64__)
DEFINE_LOOP(scalar_f32, "fma", float, float, SAME, fmaf, SAME)
DEFINE_LOOP(scalar_f64, "fma", double, double, SAME, fma, SAME)
DEFINE_LOOP(avx2_f32, "avx2,fma", __m256, float, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_cvtss_f32)
DEFINE_LOOP(avx2_f64, "avx2,fma", __m256d, double, _mm256_set1_pd, _mm256_fmadd_pd,
            _mm256_cvtsd_f64)
DEFINE_LOOP(avx512_f32, "avx512f", __m512, float, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_cvtss_f32)
DEFINE_LOOP(avx512_f64, "avx512f", __m512d, double, _mm512_set1_pd, _mm512_fmadd_pd,
            _mm512_cvtsd_f64)
#define ADD_PAIRS(x, a, b) _mm512_dpbf16_ps(x, (__m512bh)(a), (__m512bh)(b))
DEFINE_LOOP(avx512_pairs, "avx512f,avx512bf16", __m512, float, _mm512_set1_ps, ADD_PAIRS,
            _mm512_cvtss_f32)
#elif defined(__aarch64__)
#define NEON_FMA_F32(x, a, b) vfmaq_f32(b, x, a)
#define NEON_FMA_F64(x, a, b) vfmaq_f64(b, x, a)
#define NEON_FIRST_F32(x) vgetq_lane_f32(x, 0)
#define NEON_FIRST_F64(x) vgetq_lane_f64(x, 0)
DEFINE_LOOP(scalar_f32, , float, float, SAME, fmaf, SAME)
DEFINE_LOOP(scalar_f64, , double, double, SAME, fma, SAME)
DEFINE_LOOP(neon_f32, , float32x4_t, float, vdupq_n_f32, NEON_FMA_F32, NEON_FIRST_F32)
DEFINE_LOOP(neon_f64, , float64x2_t, double, vdupq_n_f64, NEON_FMA_F64, NEON_FIRST_F64)
#else
DEFINE_LOOP(scalar_f32, , float, float, SAME, fmaf, SAME)
DEFINE_LOOP(scalar_f64, , double, double, SAME, fma, SAME)
#endif

static const struct loop {
    int vector_bits, number_bits;
    void (*run)(long n);
} loops[] = {
#if defined(__x86_64__)
    {256, 32, avx2_f32},   {256, 64, avx2_f64},     {512, 32, avx512_f32},
    {512, 64, avx512_f64}, {512, 16, avx512_pairs},
#elif defined(__aarch64__)
    {128, 32, neon_f32},
    {128, 64, neon_f64},
#endif
    {32, 32, scalar_f32},  {64, 64, scalar_f64},
};

/* Operations of a round. */
static double operations(const struct loop *loop)
{
    return 2.0 * CHAINS * loop->vector_bits / loop->number_bits;
}

/* Asks the processor, since emulated kernels need not be what it can do. */
static bool can_run(const struct loop *loop)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("fma") &&
           (loop->vector_bits < 512 || __builtin_cpu_supports("avx512f")) &&
           (loop->number_bits > 16 || __builtin_cpu_supports("avx512bf16"));
#else
    (void)loop;
    return true;
#endif
}

/* ---- Threads at once ------------------------------------------------------------------------- */

struct share {
    const struct loop *loop;   /* multiply-adds, or NULL: */
    bool tiles;                /* tile products, or else reading */
    const uint64_t *buffer[2]; /* one behind the other; the second may be NULL */
    size_t words;              /* of each */
    double seconds;
    double (*clock)(void); /* of one thread: that of its processor time */
    double rate;           /* out: operations or bytes per second */
    pthread_barrier_t *start;
};

static uint64_t read_words(const uint64_t *p, size_t n)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= n; i += 8) {
        for (size_t l = 0; l < 8; l++) {
            sum[l] += p[i + l];
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

static void *run_share(void *argument)
{
    struct share *s = argument;
    const long rounds = 100000;
    double work = 0;
    pthread_barrier_wait(s->start);
    double begin = s->clock(), now = begin;
    while (now - begin < s->seconds || work == 0) {
        if (s->loop != NULL) {
            s->loop->run(rounds);
            work += operations(s->loop) * (double)rounds;
        } else if (s->tiles) {
            work += peak_amx_loop(rounds);
        } else {
            for (int i = 0; i < 2 && s->buffer[i] != NULL; i++) {
                sink = (double)read_words(s->buffer[i], s->words);
                work += (double)(s->words * sizeof(uint64_t));
            }
        }
        now = s->clock();
    }
    s->rate = work / (now - begin);
    return NULL;
}

/* The sum of the threads' rates. */
static double run_threads(const struct share *shares, int threads)
{
    pthread_t id[MAX_THREADS];
    struct share share[MAX_THREADS];
    pthread_barrier_t start;
    double rate = 0;
    threads = threads > MAX_THREADS ? MAX_THREADS : threads;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int t = 0; t < threads; t++) {
        share[t] = *shares;
        share[t].start = &start;
        share[t].clock = threads == 1 ? stats_used : stats_now;
        for (int i = 0; i < 2 && shares->buffer[i] != NULL; i++) {
            share[t].buffer[i] = shares->buffer[i] + (size_t)t * share[t].words;
        }
        if (t > 0 && pthread_create(&id[t], NULL, run_share, &share[t]) != 0) {
            abort(); /* the others wait at the barrier */
        }
    }
    run_share(&share[0]);
    for (int t = 0; t < threads; t++) {
        if (t > 0) {
            pthread_join(id[t], NULL);
        }
        rate += share[t].rate;
    }
    pthread_barrier_destroy(&start);
    return rate;
}

double peak_fma(int vector_bits, int number_bits, int threads, double seconds)
{
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        const struct loop *loop = &loops[i];
        if (loop->vector_bits == vector_bits && loop->number_bits == number_bits && can_run(loop)) {
            struct share share = {.loop = loop, .seconds = seconds};
            return run_threads(&share, threads) * 1e-9;
        }
    }
    return 0;
}

double peak_vectors(const attn_plan *plan, double seconds)
{
    const int number_bits = plan->pair_products > 0 ? 16 : plan->sum_bits;
    return peak_fma(plan->vector_bits, number_bits, plan->threads, seconds);
}

double peak_amx(int threads, double seconds)
{
    attn_info info = {.struct_size = sizeof info};
    if (attn_get_info(NULL, &info) != ATTN_OK || strstr(info.cpu_features, "amx") == NULL ||
        peak_amx_loop(1) == 0) {
        return 0;
    }
    struct share share = {.tiles = true, .seconds = seconds};
    return run_threads(&share, threads) * 1e-9;
}

double peak_read_of(const void *memory, const void *other, size_t bytes, int threads,
                    double seconds)
{
    const void *const of[2] = {memory, other};
    struct share share = {.seconds = seconds};
    if (bytes < 1 << 16) {
        return 0;
    }
    for (int i = 0; i < 2 && of[i] != NULL; i++) {
        const size_t skipped = -(uintptr_t)of[i] % sizeof(uint64_t);
        share.buffer[i] = (const void *)((const char *)of[i] + skipped);
    }
    share.words = bytes / sizeof(uint64_t) / (size_t)threads - 1;
    return run_threads(&share, threads) * 1e-9;
}

double peak_read(int threads, double seconds)
{
    size_t bytes = (size_t)256 << 20;
    void *buffer = malloc(bytes);
    if (buffer == NULL) {
        return 0;
    }
    memset(buffer, 1, bytes);
    double rate = peak_read_of(buffer, NULL, bytes, threads, seconds);
    free(buffer);
    return rate;
}
