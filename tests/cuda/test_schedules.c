/*
 * test_schedules.c: the work items of a forward pass on a GPU (src/cuda/forward/schedule.c):
 * sections, heads folded into rows, splits of the keys; on a driver without a GPU (fake_driver.c).
 */
#include "fake_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

/* Columns that share the L2 cache, of 16k rows in all, causal: as measured on an H200. Up to d =
 * 128 those but the last section have 8 MB of K and V, if that is four columns. */
static void test_sections(void **state)
{
    static const int32_t widths[3][6] = {
        {64, 64, 64, 32, 16, 16}, {64, 64, 32, 16, 16, 16}, {64, 32, 16, 16, 16, 8}};
    static const int32_t narrow[3][6] = {
        {64, 32, 16, 8, 4, 16}, {32, 16, 8, 4, 16, 16}, {64, 32, 16, 16, 16, 8}};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (int i = 0; i < 18; i++) {
        const int64_t d = 64 << i / 6, n = 512 << i % 6, heads = 2048 / d;
        attn_forward_args args = fake_args(ATTN_BF16, n, n, d);
        args.flags = ATTN_CAUSAL;
        args.q = args.k = args.v = attn_tensor_bshd(args.q.data, ATTN_BF16, 16384 / n, n, heads, d);
        args.o = attn_tensor_bshd(args.o.data, ATTN_BF16, 16384 / n, n, heads, d);
        const attn_cuda_schedule s = fake_params(context, &args).schedule;
        assert_int_equal(s.columns, 16384 / n * heads);
        assert_int_equal(s.blocks, (n + s.rows - 1) / s.rows);
        const int32_t wide = widths[i / 6][i % 6], each = narrow[i / 6][i % 6];
        assert_int_equal(s.section, each);
        assert_int_equal(s.columns - (s.sections - 1) * s.section, wide);
    }
    attn_context_destroy(context);
}

/* Whole groups of heads, whose keys are the same and count once. */
static void test_sections_of_groups(void **state)
{
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (int64_t n = 512; n <= 65536; n *= 2) {
        attn_forward_args args = fake_args(ATTN_BF16, n, n, 128);
        args.flags = ATTN_CAUSAL;
        args.q.shape[2] = args.o.shape[2] = 68; /* 17 have their keys in common */
        args.q.stride[2] = args.o.stride[2] = 2 * n * 4 * 128;
        const attn_cuda_schedule s = fake_params(context, &args).schedule;
        assert_int_equal(s.columns, 2 * 68);
        assert_int_equal(s.section, n <= 16384 ? 68 : n == 32768 ? 34 : 17);
    }
    attn_context_destroy(context);
}

/* Heads of a group share tiles where that makes fewer of them: as many as divide the group and
 * leave the fewest rows empty. */
static void test_folds(void **state)
{
    static const struct {
        int64_t group, rows;
        int32_t fold, blocks;
    } cases[] = {{1, 17, 1, 1}, {4, 5, 4, 1},  {4, 16, 4, 1},   {4, 130, 4, 5},  {4, 512, 1, 4},
                 {7, 3, 7, 1},  {71, 1, 1, 1}, {128, 1, 64, 1}, {12, 10, 12, 1}, {6, 100, 6, 5}};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t group = cases[i].group, rows = cases[i].rows;
        attn_forward_args args = fake_args(ATTN_BF16, rows, 300, 128);
        args.q = attn_tensor_bshd(args.q.data, ATTN_BF16, 2, rows, 4 * group, 128);
        args.o = attn_tensor_bshd(args.o.data, ATTN_BF16, 2, rows, 4 * group, 128);
        fake.maps = 0;
        const attn_cuda_schedule s = fake_params(context, &args).schedule;
        assert_int_equal(s.fold, cases[i].fold);
        for (int r = 0; r < 64; r++) {
            assert_int_equal(r * s.inverse >> 16, r / s.fold);
        }
        assert_int_equal(s.blocks, cases[i].blocks);
        assert_int_equal(s.heads, 4 * group / s.fold);
        assert_int_equal(s.piece, 64 / s.fold);
        assert_int_equal(s.items, (int64_t)2 * s.heads * s.blocks);
        assert_int_equal(fake.box_rows[0], s.fold * s.piece);
        assert_non_null(fake_kernel());
        assert_int_equal(fake_kernel()->loads == ATTN_CUDA_RAGGED, s.fold > 1);
    }
    attn_context_destroy(context);
}

/* Few rows and many keys: so many splits that one sequence fills a GPU, whatever the batch; merged
 * by a second launch, in a workspace; without one there are none. */
static void test_splits(void **state)
{
    static const struct {
        int64_t heads, kv_heads, rows, keys;
        int32_t splits;
    } cases[] = {{32, 8, 5, 8192, 16},  {32, 8, 16, 65536, 16}, {32, 8, 128, 8192, 4},
                 {32, 8, 512, 8192, 1}, {32, 32, 17, 8192, 4},  {32, 8, 5, 1024, 2},
                 {32, 8, 5, 512, 1},    {8, 8, 512, 512, 1},    {8, 8, 128, 1023, 1}};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        const int64_t rows = cases[i / 2].rows, keys = cases[i / 2].keys, batch = i % 2 ? 64 : 1;
        attn_forward_args args = fake_args(ATTN_BF16, rows, keys, 128);
        args.q = attn_tensor_bshd(args.q.data, ATTN_BF16, batch, rows, cases[i / 2].heads, 128);
        args.o = attn_tensor_bshd(args.o.data, ATTN_BF16, batch, rows, cases[i / 2].heads, 128);
        args.k = args.v =
            attn_tensor_bshd(args.k.data, ATTN_BF16, batch, keys, cases[i / 2].kv_heads, 128);
        uint64_t bytes;
        assert_int_equal(attn_forward_workspace(context, &args, &bytes), ATTN_OK);
        const int before = fake.launches;
        const attn_cuda_schedule whole = fake_params(context, &args).schedule;
        assert_int_equal(whole.splits, 1);
        assert_int_equal(fake.launches - before, 1);
        if (bytes == 0) {
            assert_int_equal(cases[i / 2].splits, 1);
            continue;
        }
        args.workspace = (void *)(uintptr_t)4096, args.workspace_bytes = bytes;
        const attn_cuda_forward_params p = fake_params(context, &args);
        const int64_t parts = p.schedule.items * p.parts.rows;
        assert_int_equal(p.schedule.splits, cases[i / 2].splits);
        assert_int_equal(p.schedule.items, whole.items * p.schedule.splits);
        assert_int_equal(fake.launches - before, 3);
        assert_string_equal(fake.last.kernel, "attn_forward_sm90_bf16_merge");
        assert_int_equal(fake.last.grid, (batch * rows * cases[i / 2].heads + 3) / 4);
        assert_true((char *)p.parts.states >= (char *)args.workspace + 64);
        assert_true((char *)(p.parts.sums + parts * 128) <= (char *)args.workspace + bytes);
        args.workspace_bytes--;
        assert_int_equal(attn_forward(context, &args), ATTN_ERR_WORKSPACE);
    }
    attn_context_destroy(context);
}

/* Codes in K and V, a scale a key: all heads of a group share a tile, keys are split, and both
 * launches get the scales. */
static void test_few(void **state)
{
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args args = fake_args(ATTN_BF16, 1, 3000, 128);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.k.dtype = args.v.dtype = ATTN_I8;
    args.k_scale = args.v_scale = attn_tensor_bshd(fake_memory(4), ATTN_F16, 2, 3000, 4, 1);
    args.workspace = fake_memory(5);
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    args.workspace_bytes = plan.workspace_bytes;
    assert_string_equal(plan.kernel, "attn_forward_few_bf16_i8_d128_r8");
    assert_true(plan.weight_loss == 0x1p-16 && plan.tile_products == 1);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_int_equal(fake.launches, 2);
    assert_string_equal(fake.kernels[0], plan.kernel);
    assert_string_equal(fake.last.kernel, "attn_forward_few_bf16_merge");
    assert_memory_equal(&fake.last.factors[0], &args.k_scale, sizeof(attn_tensor));
    assert_int_equal(fake.last.params.schedule.items, 2 * 4 * 6); /* 3000 keys, 512 to a split */
    args.k_scale.shape[3] = args.v_scale.shape[3] = 4;            /* of groups of columns */
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_string_equal(fake.last.kernel, "attn_forward_codes_bf16");
    attn_context_destroy(context);
}

/* Of what a CTA takes: quotients of items by inverses are exact. */
static void assert_quotients(const attn_cuda_forward_params *params)
{
    const attn_cuda_few *few = &params->few;
    const attn_cuda_divisor all[] = {few->ctas, few->blocks, few->kv_heads, few->group};
    assert_int_equal(few->ctas.by, 12);
    assert_int_equal(few->kv_heads.by, 4);
    assert_true(few->plain && few->nq == 8 && few->keys == 3000);
    for (uint64_t n = 0; n <= (uint64_t)params->schedule.items; n++) {
        for (int i = 0; i < 4; i++) {
            assert_true(all[i].inverse == 0 || n * all[i].inverse >> 32 == n / all[i].by);
        }
    }
    assert_true(few->ctas.inverse > 0 && few->group.by == 1 && few->group.inverse == 0);
}

/* Elements of 16 bits in K and V: the same for few rows, for twice as many with score steps. A mask
 * has as many keys as the pages, if no lengths say that fewer are in use. */
static void test_few_rows(void **state)
{
    attn_context *context;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_forward_args args = fake_args(ATTN_BF16, 8, 3000, 128);
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    args.workspace = fake_memory(5);
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    args.workspace_bytes = plan.workspace_bytes;
    assert_string_equal(plan.kernel, "attn_forward_few_bf16_d128_r8");
    assert_true(plan.weight_loss == 0x1p-8 && plan.tile_products == 1);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_string_equal(fake.last.kernel, "attn_forward_few_bf16_merge");
    assert_int_equal(fake.last.params.schedule.items, 2 * 4 * 12); /* 47 blocks of 64 keys */
    assert_quotients(&fake.last.params);
    args.seqused_q = attn_tensor_bshd(fake_memory(6), ATTN_I32, 2, 1, 1, 1);
    assert_int_equal(attn_forward(context, &args), ATTN_OK);
    assert_false(fake.last.params.few.plain);
    args = fake_args(ATTN_BF16, 16, 3000, 128);
    args.block_table = attn_tensor_bshd(fake_memory(4), ATTN_I32, 2, 3, 1, 1);
    args.k = args.v = attn_tensor_bshd(fake_memory(1), ATTN_BF16, 70, 16, 4, 128);
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_sm90_paged_bf16_d128");
    args.mask = attn_tensor_bshd(fake_memory(6), ATTN_BOOL, 1, 1, 1, 40);
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_ERR_INVALID_ARGUMENT);
    args.mask.shape[3] = 48;
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "attn_forward_few_bf16_d128_r16");
    args.seqused_k = attn_tensor_bshd(fake_memory(5), ATTN_I32, 2, 1, 1, 1);
    args.mask.shape[3] = 40;
    assert_int_equal(attn_forward_plan(context, &args, &plan), ATTN_OK);
    attn_context_destroy(context);
}

/* One query over `keys` keys of 32 heads on 8. */
static attn_forward_args decode_args(int64_t batch, int64_t keys)
{
    attn_forward_args args = fake_args(ATTN_BF16, 1, keys, 128);
    args.q = attn_tensor_bshd(args.q.data, ATTN_BF16, batch, 1, 32, 128);
    args.o = attn_tensor_bshd(args.o.data, ATTN_BF16, batch, 1, 32, 128);
    args.k = args.v = attn_tensor_bshd(args.k.data, ATTN_BF16, batch, keys, 8, 128);
    return args;
}

/* Batches that fill a GPU have CTAs with all splits of their rows: no merge, no workspace, but as
 * many splits as one sequence alone, since bits follow from them. So have calls without a
 * workspace. Others have CTAs with four splits each. Where sequences are equally long CTAs that
 * fill the GPU once go on from one KV head to the next. */
static void test_joined(void **state)
{
    static const struct {
        int64_t batch, keys;
        uint32_t grid, each; /* blocks of a split */
        bool uneven;
    } cases[] = {{64, 1024, 512, 2, false},  {1, 1024, 64, 2, false},  {64, 4096, 512, 4, false},
                 {1, 4096, 128, 4, false},   {8, 4096, 256, 4, false}, {40, 4096, 1280, 4, false},
                 {1, 32768, 128, 32, false}, {64, 1024, 512, 0, true}, {64, 4096, 2048, 0, true},
                 {1, 100, 8, 1, false}};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_forward_args args = decode_args(cases[i].batch, cases[i].keys);
        if (cases[i].uneven) {
            args.seqused_k = attn_tensor_bshd(fake_memory(6), ATTN_I32, cases[i].batch, 1, 1, 1);
        }
        const attn_cuda_forward_params alone = fake_params(context, &args);
        const bool stays = cases[i].batch == 64 && !cases[i].uneven;
        assert_int_equal(fake.last.grid, 8 * cases[i].batch / (stays ? 2 : 1));
        assert_string_equal(fake.last.kernel, stays ? "attn_forward_few_bf16_d128_on"
                                                    : "attn_forward_few_bf16_d128_line");
        assert_int_equal(alone.few.items, 8 * cases[i].batch);
        assert_int_equal(alone.few.ctas.by, 1);
        const uint64_t bytes = fake_workspace(context, &args);
        const int before = fake.launches;
        const attn_cuda_forward_params p = fake_params(context, &args);
        const bool joined = cases[i].grid == 8 * cases[i].batch;
        const int splits = p.schedule.splits;
        assert_int_equal(bytes > 0, !joined);
        assert_int_equal(fake.launches - before, joined ? 1 : 2);
        assert_int_equal(p.few.ctas.by, cases[i].grid / 8 / cases[i].batch);
        assert_int_equal(p.few.run, cases[i].grid == 8 * cases[i].batch * splits ? 1
                                    : joined                                     ? splits
                                                                                 : 4);
        assert_int_equal(p.few.each, cases[i].each);
        assert_int_equal(p.schedule.splits, alone.schedule.splits);
    }
    attn_context_destroy(context);
}

/* Straight rows have kernels of their own where keys are side by side, or in pages of whole tiles
 * of a warp. */
static void test_lines(void **state)
{
    static const struct {
        int64_t page, d;
        const char *kernel; /* behind the type */
        bool alibi;
    } cases[] = {{0, 128, "d128_line", false},   {16, 128, "d128_pages", false},
                 {48, 128, "d128_pages", false}, {24, 128, "d128_r8", false},
                 {0, 64, "d64_line", false},     {0, 120, "d128_r8", false},
                 {0, 128, "d128_r8", true},      {16, 128, "d128_r8", true}};
    attn_context *context;
    (void)state;
    for (int capability = 80; capability <= 90; capability += 10) {
        fake_reset();
        fake.capability = capability;
        assert_int_equal(fake_create(0, &context), ATTN_OK);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const int64_t page = cases[i].page, d = cases[i].d;
            attn_forward_args args = decode_args(1, 4096);
            args.q.shape[3] = args.o.shape[3] = d;
            args.k = args.v =
                attn_tensor_bshd(fake_memory(1), ATTN_BF16, page ? 9 : 1, page ? page : 4096, 8, d);
            if (page) {
                args.block_table = attn_tensor_bshd(fake_memory(4), ATTN_I32, 1, 4096 / 8, 1, 1);
            }
            if (cases[i].alibi) {
                args.alibi_slopes = attn_tensor_bshd(fake_memory(5), ATTN_F32, 1, 32, 1, 1);
            }
            assert_int_equal(attn_forward(context, &args), ATTN_OK);
            char name[64];
            (void)snprintf(name, sizeof name, "attn_forward_few_bf16_%s",
                           capability == 90 ? cases[i].kernel
                           : d == 64        ? "d64_r8"
                                            : "d128_r8");
            assert_string_equal(fake.last.kernel, name);
        }
        attn_context_destroy(context);
    }
}

/* CTAs of codes leave each split for the merge: as many parts as splits, also where a CTA has all
 * of them, and a merge. Rows are straight where a lane can go from tile to tile by a step. */
static void test_codes(void **state)
{
    static const struct {
        int64_t batch, keys;
        int32_t splits, run, each;
    } cases[] = {{1, 1024, 2, 1, 4},     {1, 4096, 8, 1, 4},  {1, 32768, 16, 1, 16},
                 {8, 4096, 8, 1, 4},     {64, 1024, 2, 2, 4}, {8, 32768, 16, 4, 16},
                 {64, 16384, 16, 16, 8}, {1, 100, 1, 1, 1}};
    attn_context *context;
    (void)state;
    fake_reset();
    assert_int_equal(fake_create(0, &context), ATTN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_forward_args args = decode_args(cases[i].batch, cases[i].keys);
        args.k.dtype = args.v.dtype = ATTN_E4M3;
        args.k_scale = args.v_scale =
            attn_tensor_bshd(fake_memory(4), ATTN_F32, cases[i].batch, cases[i].keys, 8, 1);
        assert_int_equal(fake_workspace(context, &args) > 0, cases[i].splits > 1);
        const int before = fake.launches;
        attn_cuda_forward_params p = fake_params(context, &args);
        assert_int_equal(fake.launches - before, cases[i].splits > 1 ? 2 : 1);
        assert_int_equal(p.schedule.splits, cases[i].splits);
        assert_int_equal(p.few.parts, cases[i].splits);
        assert_int_equal(p.few.run, cases[i].run);
        assert_int_equal(p.few.ctas.by, cases[i].splits / cases[i].run);
        assert_int_equal(p.few.each, cases[i].each);
        assert_true(p.few.straight);
        args.k_scale.dtype = ATTN_F16;
        p = fake_params(context, &args);
        assert_false(p.few.straight);
    }
    attn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined),   cmocka_unit_test(test_codes),
        cmocka_unit_test(test_few),      cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_lines),    cmocka_unit_test(test_sections_of_groups),
        cmocka_unit_test(test_sections), cmocka_unit_test(test_folds),
        cmocka_unit_test(test_splits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
