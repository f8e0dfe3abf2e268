/*
 * test_gpu_elements.c: attn_quantize, attn_dequantize and attn_dropout_mask on this machine's GPU:
 * the CPU's bits, gaps and inputs untouched, of all types, groups and strides. Every second call is
 * captured into a graph before its inputs are there. Skipped where there is no GPU. Argument: of
 * how many cases of codes one is tried.
 */
#include "both.h"

static attn_context *gpu;
static int every = 1;

/* ---- codes ----------------------------------------------------------------------------------- */

static int magnitude, odd_one_in; /* of elements: a power of 2; how many are zeros or not finite */

static double element(uint64_t bits)
{
    static const double odd[] = {0, -0.0, 0, INFINITY, -INFINITY, NAN, -0.0, 0};
    const uint64_t kind = draw();
    return odd_one_in && kind % (uint64_t)odd_one_in == 0 ? odd[kind / 1000 % 8]
                                                          : ldexp(inputs_normal(bits), magnitude);
}

static double zero(uint64_t bits)
{
    return bits & 1 ? 0 : -0.0;
}

static double factor(uint64_t bits)
{
    static const double odd[] = {0, -1, INFINITY, NAN, 1e-7};
    return bits % 16 == 0 ? odd[bits / 16 % 5] : ldexp(1 + 0x1p-64 * (double)bits, magnitude - 5);
}

/* Bytes of codes, gaps between them left. */
static void fill_codes(const attn_tensor *t)
{
    const int64_t *n = t->shape;
    for (int64_t at = 0; at < count(t); at++) {
        const int64_t place = at / n[3] / n[2] / n[1] * t->stride[0] +
                              at / n[3] / n[2] % n[1] * t->stride[1] +
                              at / n[3] % n[2] * t->stride[2] + at % n[3] * t->stride[3];
        ((uint8_t *)t->data)[place] = (uint8_t)draw();
    }
}

static attn_status quantize(attn_context *context, const void *args)
{
    return attn_quantize(context, args);
}
static attn_status dequantize(attn_context *context, const void *args)
{
    return attn_dequantize(context, args);
}

static void run_codes(attn_quantize_args *a, bool encode, bool graph)
{
    attn_quantize_args on_gpu = *a;
    both b = {.here = {&a->x, &a->codes, &a->scale, &a->shift},
              .there = {&on_gpu.x, &on_gpu.codes, &on_gpu.scale, &on_gpu.shift},
              .stream = &on_gpu.stream,
              .tensors = 4};
    put_all(&b);
    assert_ok((encode ? quantize : dequantize)(NULL, a));
    keep_all(&b);
    compare(&b, gpu, encode ? quantize : dequantize, &on_gpu, graph);
}

typedef struct coded {
    int64_t shape[4];
    int32_t x, codes, factor; /* types; factor 0: no scale */
    int64_t groups;
    int shared; /* axes that share a scale, as bits */
    bool shifted;
} coded;

static attn_quantize_args open_codes(const coded *c, uint64_t layout)
{
    attn_quantize_args a = {.struct_size = sizeof a};
    int64_t n[4] = {c->shape[0], c->shape[1], c->shape[2], c->shape[3]};
    used = 0;
    a.x = make(c->x, n, layout);
    n[3] /= c->codes == ATTN_I4X2 ? 2 : 1;
    a.codes = make(c->codes, n, layout / LAYOUTS);
    for (int axis = 0; axis < 3; axis++) {
        n[axis] = c->shared >> axis & 1 ? 1 : n[axis];
    }
    n[3] = c->groups;
    if (c->factor) {
        a.scale = make(c->factor, n, layout / LAYOUTS / 2);
    }
    if (c->shifted) {
        a.shift = make(c->factor, n, layout / LAYOUTS / 3);
    }
    return a;
}

/* Codes of x by scales of its own and by given ones, and values of all codes. */
static void check_codes(const coded *c, uint64_t n)
{
    attn_quantize_args a = open_codes(c, n);
    magnitude = (int)(n % 7) * 8 - 24, odd_one_in = n % 3 ? 0 : 40;
    fill(&a.x, n % 11 ? element : zero);
    if (c->factor) {
        run_codes(&a, true, n % 2);
    }
    a.scale_given = 1;
    if (c->factor) {
        fill(&a.scale, factor);
    }
    if (c->shifted) {
        fill(&a.shift, element);
    }
    run_codes(&a, true, n % 2 == 0);
    fill_codes(&a.codes);
    run_codes(&a, false, n % 2);
}

static const int32_t floats[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16},
                     codes[] = {ATTN_I8, ATTN_I4X2, ATTN_E4M3, ATTN_E5M2};

/* Shapes: some columns and tails, one element or byte, groups that a CTA reads. */
static void test_codes(void **state)
{
    static const int64_t shapes[][4] = {{2, 3, 2, 24}, {1, 1, 1, 2},   {3, 1, 5, 6},
                                        {1, 5, 3, 66}, {2, 45, 3, 16}, {1, 2, 2, 130}};
    uint64_t n = 0;
    (void)state;
    for (int i = 0; i < COUNT(shapes) * 4 * 4 * 4 * 2 * 8; i++) {
        const int type = i % 4, code = i / 4 % 4, factors = i / 16 % 4, shift = i / 64 % 2;
        const int64_t *shape = shapes[i / 128 / 8], columns = shape[3];
        const int64_t groups[] = {1, 2, columns / 2, columns, 1};
        const coded c = {{shape[0], shape[1], shape[2], columns},
                         floats[type],
                         codes[code],
                         factors ? floats[factors] : 0,
                         groups[n % 5],
                         i / 128 % 8,
                         shift};
        if ((factors || (code >= 2 && i / 128 % 8 == 0)) && !(shift && (code >= 2 || !factors))) {
            n++;
            if (i % every == 0) {
                check_codes(&c, n);
            }
        }
    }
    assert_true(n > 1700);
}

/* Sizes at which CTAs of the largest GPUs take several turns: scales of a warp, of a CTA, bytes. */
static void test_turns(void **state)
{
    static const coded list[] = {
        {{2, 70, 4, 32}, ATTN_F32, ATTN_I4X2, ATTN_F16, 1, 0, true},
        {{1, 1100, 2, 32}, ATTN_BF16, ATTN_I8, ATTN_F32, 32, 2, true},
        {{1, 1100, 2, 32}, ATTN_F16, ATTN_E4M3, ATTN_BF16, 1, 7, false},
        {{3, 1500, 4, 32}, ATTN_BF16, ATTN_I8, ATTN_F32, 1, 0, false},
    };
    (void)state;
    for (int i = 0; i < COUNT(list); i++) {
        check_codes(&list[i], (uint64_t)(3 * i + 1));
    }
}

/* A tensor without elements, and one whose elements x repeats by strides of 0. */
static void test_edges(void **state)
{
    const coded c = {{2, 3, 2, 24}, ATTN_F32, ATTN_I8, ATTN_F32, 2, 0, true};
    attn_quantize_args a = open_codes(&c, 0);
    (void)state;
    fill(&a.x, element);
    a.x.stride[1] = a.x.stride[2] = 0;
    run_codes(&a, true, false);
    a = open_codes(&c, 0);
    a.x.shape[1] = a.codes.shape[1] = a.scale.shape[1] = a.shift.shape[1] = 0;
    a.stream = gpu_stream();
    assert_ok(attn_quantize(gpu, &a));
    assert_ok(attn_dequantize(gpu, &a));
    assert_int_equal(((unsigned char *)a.scale.data)[0], 0xFF);
}

/* ---- dropout --------------------------------------------------------------------------------- */

static attn_status dropout_mask(attn_context *context, const void *args)
{
    return attn_dropout_mask(context, args);
}

static void run_mask(attn_dropout_mask_args *a, bool graph)
{
    attn_dropout_mask_args on_gpu = *a;
    both b = {.here = {&a->keep, &a->q_origin, &a->k_origin},
              .there = {&on_gpu.keep, &on_gpu.q_origin, &on_gpu.k_origin},
              .stream = &on_gpu.stream,
              .tensors = 3};
    put_all(&b);
    assert_ok(attn_dropout_mask(NULL, a));
    keep_all(&b);
    compare(&b, gpu, dropout_mask, &on_gpu, graph);
}

static void test_dropout(void **state)
{
    static const double p[] = {0, 0.1, 0.5, 0.9, 1, 0x1p-16};
    static const int64_t shapes[][4] = {
        {2, 3, 17, 29}, {1, 1, 1, 1}, {3, 2, 40, 70}, {1, 2, 130, 300}, {2, 2, 5, 0}};
    static int32_t rows[] = {7, 4000000, 0}, keys[] = {16};
    static int64_t many[] = {INT64_C(1) << 33, 9, 31};
    (void)state;
    for (int i = 0; i < COUNT(shapes) * 6 * 4 * 2; i++) {
        const int64_t *n = shapes[i / 48];
        used = 0;
        attn_dropout_mask_args a = {.struct_size = sizeof a,
                                    .keep = make(ATTN_BOOL, n, (uint64_t)i),
                                    .dropout_p = p[i % 6],
                                    .dropout_seed = draw(),
                                    .dropout_offset = i % 5 ? draw() : UINT64_MAX - 2};
        const int origins = i / 6 % 4;
        if (origins & 1) {
            a.q_origin = attn_tensor_bshd(rows, ATTN_I32, n[0], 1, 1, 1);
        }
        if (origins & 2) {
            const bool one = i / 24 % 2;
            a.k_origin = one ? attn_tensor_bshd(keys, ATTN_I32, 1, 1, 1, 1)
                             : attn_tensor_bshd(many, ATTN_I64, n[0], 1, 1, 1);
        }
        run_mask(&a, i % 2);
    }
}

/* Origins in the GPU's memory that are out of range are cut to it. */
static void test_origins_are_cut(void **state)
{
    static int64_t wild[] = {-5, 0, INT64_MIN};
    static const int64_t n[4] = {3, 2, 9, 40};
    (void)state;
    used = 0;
    attn_dropout_mask_args a = {
        .struct_size = sizeof a, .keep = make(ATTN_BOOL, n, 1), .dropout_p = 0.5};
    attn_dropout_mask_args on_gpu = a;
    both b = {.here = {&a.keep, &a.q_origin},
              .there = {&on_gpu.keep, &on_gpu.q_origin},
              .stream = &on_gpu.stream,
              .tensors = 2};
    a.q_origin = attn_tensor_bshd(wild, ATTN_I64, 3, 1, 1, 1);
    put_all(&b);
    a.q_origin.data = NULL;
    assert_ok(attn_dropout_mask(NULL, &a));
    keep_all(&b);
    compare(&b, gpu, dropout_mask, &on_gpu, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),           cmocka_unit_test(test_turns),
        cmocka_unit_test(test_edges),           cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_origins_are_cut),
    };
    every = argc > 1 ? atoi(argv[1]) : 1;
    gpu = trial_gpu();
    const int failed = gpu ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
    attn_context_destroy(gpu);
    return failed;
}
