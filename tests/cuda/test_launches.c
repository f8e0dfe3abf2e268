/*
 * test_launches.c: plans and launches of a forward pass (src/cuda/forward/plan.c, forward.c) on
 * pretended GPUs (fake_driver.c): the kernel, its arguments, and the maps of tensors for its TMA.
 * Whole plans of one GPU are in tests/plan/h200.txt.
 */
#include "fake_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fenv.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- GPUs of several kinds ------------------------------------------------------------------- */

static void assert_launches_fit(attn_context *context)
{
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    static const int64_t sizes[] = {1, 8, 33, 64, 65, 128, 200, 256, 300};
    for (int n = 0; n < 4 * 9 * 2 * 2 * 2; n++) {
        attn_forward_args args =
            fake_args(dtypes[n % 4], n / 4 % 2 ? 300 : 5, n / 4 % 2 ? 300 : 30, sizes[n / 16 % 9]);
        args.softcap = n / 8 % 2, args.dropout_p = n / 144 * 0.5;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        assert_int_equal(fake.launches, n + 1);
        assert_in_range(fake.last.shared_bytes, 0, fake.shared_bytes);
        assert_in_range(fake.last.threads, 64, 512);
        assert_true(fake.capability == 90 || fake_kernel()->family >= ATTN_CUDA_SM80);
        const attn_cuda_dropout *made = &fake.last.params.dropout;
        assert_true(args.dropout_p == 0 || made->keys[2][1] == 2 * ATTN_PHILOX_W1);
    }
}

/* An A100, its smaller kin, an H100, and its successors: kernels of sm_90a are for sm_90 alone. */
static void test_capabilities(void **state)
{
    enum { any = ATTN_CUDA_FAMILIES - ATTN_CUDA_SM80 };
    static const struct {
        int capability, shared_bytes, images;
    } gpus[] = {{80, 163 << 10, any},
                {86, 99 << 10, any},
                {90, 227 << 10, ATTN_CUDA_FAMILIES},
                {100, 227 << 10, any},
                {120, 99 << 10, any}};
    attn_context *context;
    (void)state;
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        fake_reset();
        fake.capability = gpus[i].capability, fake.shared_bytes = gpus[i].shared_bytes;
        assert_int_equal(fake_create(0, &context), ATTN_OK);
        assert_int_equal(fake.loaded, gpus[i].images);
        assert_launches_fit(context);
        attn_context_destroy(context);
        assert_true(fake_keeps_nothing());
    }
    fake_reset();
    fake.capability = 75;
    assert_int_equal(fake_create(0, &context), ATTN_ERR_UNSUPPORTED);
    assert_non_null(strstr(attn_last_error(), "sm_75"));
    assert_true(fake_keeps_nothing());
}

/* Why f32 with d = 128 is not on the tensor cores of a GPU whose shared memory is too small for
 * it. */
static void test_why(void **state)
{
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args args = fake_args(ATTN_F32, 300, 300, 128);
    (void)state;
    fake_reset();
    fake.capability = 80, fake.shared_bytes = 163 << 10;
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_f32");
    assert_non_null(strstr(plan.why, "shared memory"));
    attn_context_destroy(context);
}

/* A GPU of sm_90 with less shared memory than any known one: tiles that exceed it are an error. */
static void test_no_kernel(void **state)
{
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args args = fake_args(ATTN_BF16, 300, 300, 128);
    (void)state;
    fake_reset();
    fake.capability = 90, fake.shared_bytes = 163 << 10;
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_ERR_UNSUPPORTED);
    assert_non_null(
        strstr(attn_last_error(), "no kernel for d = 128, d_v = 128 fits into 166912 "));
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_UNSUPPORTED);
    assert_int_equal(fake.launches, 0);
    attn_context_destroy(context);
    assert_true(fake_keeps_nothing());
}

/* One block of keys: a mask only where rows see different keys, or the block is not full. */
static void test_single(void **state)
{
    static const struct {
        int64_t keys, left, right;
        uint64_t flags;
        bool masked;
    } cases[] = {{64, 0, 0, 0, false},           {63, 0, 0, 0, true},
                 {64, 0, 0, ATTN_CAUSAL, true},  {64, 3, -1, ATTN_WINDOW, true},
                 {64, -1, 3, ATTN_WINDOW, true}, {64, -1, -1, ATTN_WINDOW, false}};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attn_forward_args args = fake_args(ATTN_F32, 64, cases[i].keys, 64);
        args.flags = cases[i].flags;
        args.window_left = cases[i].left, args.window_right = cases[i].right;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        assert_true(fake_kernel()->single && fake_kernel()->keys == 64);
        assert_int_equal(fake.last.params.single.masked, cases[i].masked);
    }
    attn_context_destroy(context);
}

/* Head dims beyond 256: on tensor cores where the TMA takes the tensors; V may be a view of K. */
static void test_wide(void **state)
{
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args args = fake_args(ATTN_BF16, 300, 300, 576);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.v.shape[3] = args.o.shape[3] = 512;
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_sm90_wide_bf16_d576");
    args.v.data = args.k.data;
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_sm90_wide_bf16_view");
    args.v.stride[1] += 8; /* rows of V begin elsewhere */
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_sm90_wide_bf16_d576");
    args.v.stride[1]++;
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_bf16");
    args.v = args.k, args.v.shape[3] = 512, args.softcap = 30;
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_bf16");
    args.softcap = 0, args.k.shape[3] = args.q.shape[3] = 577;
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_bf16");
    attn_context_destroy(context);
}

/* Keys in pages: boxes of rows divide a page and a tile; behind left padding a box is a row. */
static void test_pages(void **state)
{
    static const struct {
        int64_t size;
        uint32_t box;
    } pages[] = {{1, 1}, {16, 16}, {17, 1}, {48, 16}, {100, 4}, {128, 128}, {1000, 8}, {1024, 128}};
    attn_context *context;
    attn_forward_args args = fake_args(ATTN_BF16, 17, 300, 128);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.block_table = attn_tensor_bshd(fake_memory(4), ATTN_I32, 2, 30, 1, 1);
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        args.k = attn_tensor_bshd(fake_memory(1), ATTN_BF16, 70, pages[i].size, 4, 128);
        args.v = attn_tensor_bshd(fake_memory(2), ATTN_BF16, 70, pages[i].size, 4, 128);
        fake.maps = 0;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        assert_string_equal(fake.last.kernel, "attn_forward_sm90_paged_bf16_d128");
        assert_int_equal(fake.last.params.pages.size, pages[i].size);
        assert_int_equal(fake.last.params.pages.box, pages[i].box);
        const uint32_t all = pages[i].box * (pages[i].box % 8 == 0 ? 2 : 1); /* of both chunks */
        assert_true(fake.box_rows[1] == all && fake.box_rows[2] == all);
    }
    args.leftpad_k = attn_tensor_bshd(fake_memory(5), ATTN_I32, 2, 1, 1, 1);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_int_equal(fake.last.params.pages.box, 1);
    attn_context_destroy(context);
}

/* Quantised K or V: kernels of their own, which get scales and shifts beside the other
 * arguments. */
static void test_codes(void **state)
{
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args args = fake_args(ATTN_BF16, 1, 300, 128);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.v = attn_tensor_bshd(fake_memory(2), ATTN_I8, 2, 300, 4, 128);
    args.v_scale = attn_tensor_bshd(fake_memory(4), ATTN_F16, 2, 300, 4, 4);
    args.v_shift = attn_tensor_bshd(fake_memory(5), ATTN_F16, 2, 300, 4, 4);
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.why, "not on tensor cores: K and V are not of one type");
    assert_true(plan.weight_loss == 0 && plan.tile_products == 0);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_string_equal(fake.last.kernel, "attn_forward_codes_bf16");
    assert_int_equal(fake.last.grid, 2 * 4 * 2); /* sequences, heads, 64 columns of V at a time */
    const attn_tensor *const factors[] = {&args.k_scale, &args.k_shift, &args.v_scale,
                                          &args.v_shift};
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(&fake.last.factors[i], factors[i], sizeof(attn_tensor));
    }
    args = fake_args(ATTN_F32, 1, 300, 128);
    args.k.dtype = ATTN_E4M3;
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_string_equal(fake.last.kernel, "attn_forward_codes_f32");
    attn_context_destroy(context);
}

/* ---- Plans of any size ----------------------------------------------------------------------- */

/* A GPU's count of operations is that of the CPU, and so are bytes of standard attention. */
static void test_costs(void **state)
{
    static const int64_t lengths[] = {1, 6, 100, 257}, windows[] = {-1, 0, 7, 99, 300};
    attn_context *context;
    fake_reset(), (void)state;
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (int n = 0; n < 4 * 4 * 5 * 5 * 2; n++) {
        attn_plan gpu = {.struct_size = sizeof gpu}, cpu = gpu;
        attn_forward_args args = fake_args(ATTN_F32, lengths[n % 4], lengths[n / 4 % 4], 8);
        args.window_left = windows[n / 16 % 5], args.window_right = windows[n / 80 % 5];
        args.flags = ATTN_WINDOW | (n / 400 ? ATTN_TOP_LEFT : 0);
        assert_int_equal(attn_forward_plan(context, &args, &gpu), ATTN_OK);
        assert_int_equal(attn_forward_plan(NULL, &args, &cpu), ATTN_OK);
        /* f32 of 2 x 4 heads: Q and O, K and V, four passes over the scores */
        const double rows = 8 * (double)lengths[n % 4], keys = (double)lengths[n / 4 % 4],
                     standard = 4 * (2 * rows * 8 + 2 * 8 * keys * 8 + 4 * rows * keys);
        assert_true(gpu.flops == cpu.flops);
        assert_true(gpu.bytes_standard == standard && cpu.bytes_standard == standard);
    }
    attn_context_destroy(context);
}

/* An axis with a stride of 0 may declare any extent: planning takes no longer, nothing overflows,
 * and numbers beyond the kernels' counters are refused. */
static void test_sizes(void **state)
{
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args args = fake_args(ATTN_F32, 5, 30, 64);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    alarm(20);
    args = (attn_forward_args){.struct_size = sizeof args, .flags = ATTN_CAUSAL};
    args.q = attn_tensor_bshd(&plan, ATTN_F32, 1, INT64_C(100000000000), 1, 64);
    args.k = attn_tensor_bshd(&plan, ATTN_F32, 1, 30, 1, 64);
    args.k.shape[1] = INT64_C(1) << 60, args.k.stride[1] = 0;
    args.v = args.k, args.o = args.q;
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    alarm(0);

    args = fake_args(ATTN_F32, 5, 30, 64);
    args.q.shape[3] = args.k.shape[3] = INT64_C(1) << 40;
    memset(args.q.stride, 0, sizeof args.q.stride), memset(args.k.stride, 0, sizeof args.k.stride);
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_UNSUPPORTED);

    args = fake_args(ATTN_F32, 5, 30, 64);
    args.q.shape[0] = args.k.shape[0] = args.v.shape[0] = args.o.shape[0] = 1;
    args.cu_seqlens_q = (attn_tensor){&plan, {INT64_C(1) << 40, 1, 1, 1}, {1}, ATTN_I64, 0};
    args.cu_seqlens_k = args.cu_seqlens_q;
    assert_int_equal(attn_forward(context, &args), ATTN_ERR_UNSUPPORTED);
    assert_int_equal(fake.launches, 0);
    attn_context_destroy(context);
}

/* ---- What a kernel is handed ----------------------------------------------------------------- */

/* Rows of a warpgroup, keys of a block, rows of a warp: as the kernels expect their boxes. Where
 * head dimensions are those of the kernel, boxes of keys and of O have all chunks of 64 columns. */
static void test_boxes(void **state)
{
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (int64_t d = 32; d <= 256; d += 32) {
        attn_forward_args args = fake_args(ATTN_BF16, 300, 300, d);
        const uint32_t keys = d > 192 ? 80 : d > 128 ? 112 : 128;
        const uint32_t chunks = d == 128 || d == 192 || d == 256 ? (uint32_t)d / 64 : 1,
                       rows[4] = {64, keys * chunks, keys * chunks, 16 * chunks};
        fake.maps = 0;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        assert_int_equal(fake.maps, 4);
        assert_memory_equal(fake.box_rows, rows, sizeof rows);
        assert_int_equal(fake.last.params.joined, chunks > 1);
    }
    attn_context_destroy(context);
}

/* The TMA takes addresses and strides in multiples of 16 bytes, and none backwards: the fake driver
 * refuses others. */
static void test_alignment(void **state)
{
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (int which = 0; which < 4; which++) {
        for (int how = 0; how < 4; how++) {
            attn_forward_args args = fake_args(ATTN_BF16, 300, 300, 64);
            attn_tensor *const tensors[] = {&args.q, &args.k, &args.v, &args.o},
                               *t = tensors[which];
            t->data = (char *)t->data + (how == 0 ? 8 : 0);
            t->stride[1] += how == 1 ? 4 : 0;
            t->stride[1] *= how == 2 ? -1 : 1;
            t->stride[2] = how == 3 ? INT64_C(1) << 40 : t->stride[2];
            assert_int_equal(attn_forward(context, &args), ATTN_OK);
            assert_string_equal(fake.last.kernel, which == 3 ? "attn_forward_sm90_bf16_d64"
                                                             : "attn_forward_sm90_bf16_d64_any");
            assert_int_equal(fake.last.params.o_boxed, false);
        }
    }
    attn_context_destroy(context);
}

/* The TMA writes 16 bytes at a time: rows of O that end within them leave by ordinary stores. */
static void test_row_ends(void **state)
{
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (int dv = 1; dv <= 64; dv++) {
        attn_forward_args args = fake_args(ATTN_BF16, 300, 300, 64);
        args.v.shape[3] = args.o.shape[3] = dv;
        assert_int_equal(attn_forward(context, &args), ATTN_OK);
        assert_string_equal(fake.last.kernel, "attn_forward_sm90_bf16_d64");
        assert_int_equal(fake.last.params.o_boxed, dv % 8 == 0);
    }
    attn_context_destroy(context);
}

static void test_params(void **state)
{
    static const float log2_e = 1.44269504f;
    attn_context *context;
    attn_forward_args plain = fake_args(ATTN_BF16, 300, 300, 64), args;
    attn_cuda_forward_params p;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    p = fake_params(context, &plain);
    assert_true(p.whole && p.o_boxed && !p.statistics && !p.steps && p.scale_log2 == log2_e / 8);

    fesetround(FE_UPWARD); /* the nearest f32 is below log2 e */
    p = fake_params(context, &plain);
    fesetround(FE_TONEAREST);
    assert_true(p.scale_log2 == log2_e / 8);

    args = plain, args.softcap = 5; /* the kernel scales before the steps */
    p = fake_params(context, &args);
    assert_true(p.steps && p.scale_log2 == log2_e);
    args = plain, args.flags = ATTN_SCALE, args.softmax_scale = -1;
    assert_true(fake_params(context, &args).steps);

    args = plain, args.lse = attn_tensor_bshd(fake_memory(4), ATTN_F32, 2, 300, 4, 1);
    p = fake_params(context, &args);
    assert_true(p.lse_alone && !p.statistics);
    args = plain, args.row_max = attn_tensor_bshd(fake_memory(4), ATTN_F32, 2, 300, 4, 1);
    p = fake_params(context, &args);
    assert_true(p.statistics && !p.lse_alone);
    args = plain, args.sinks = attn_tensor_bshd(args.q.data, ATTN_F32, 1, 4, 1, 1);
    assert_true(fake_params(context, &args).statistics);

    args = plain, args.seqused_q = attn_tensor_bshd(args.q.data, ATTN_I32, 2, 1, 1, 1);
    assert_true(!fake_params(context, &args).whole);
    assert_string_equal(fake.last.kernel, "attn_forward_sm90_bf16_d64_ragged");
    args = plain, args.seqused_k = attn_tensor_bshd(args.q.data, ATTN_I32, 2, 1, 1, 1);
    assert_true(!fake_params(context, &args).whole);
    assert_string_equal(fake.last.kernel, "attn_forward_sm90_bf16_d64_ragged");
    args.q.stride[1] += 4;
    assert_true(!fake_params(context, &args).whole);
    assert_string_equal(fake.last.kernel, "attn_forward_sm90_bf16_d64_any");
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capabilities), cmocka_unit_test(test_why),
        cmocka_unit_test(test_pages),        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_no_kernel),    cmocka_unit_test(test_single),
        cmocka_unit_test(test_costs),        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_boxes),        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_row_ends),     cmocka_unit_test(test_params),
        cmocka_unit_test(test_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
