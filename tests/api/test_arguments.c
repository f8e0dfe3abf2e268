/*
 * test_arguments.c: arguments at the ends of what is allowed, call by call: pools of pages, merge,
 * the dropout mask, lengths, types.
 */
#include "trial.h"

#include <string.h>

#define REFUSED(call, status, sentence)                                   \
    do {                                                                  \
        assert_int_equal(call, ATTN_ERR_##status);                        \
        if (strstr(attn_last_error(), sentence) == NULL) {                \
            fail_msg("\"%s\" lacks \"%s\"", attn_last_error(), sentence); \
        }                                                                 \
    } while (0)

enum { PAGES = 3, ROWS = 4, HEADS = 2, D = 8 };

/* A pool of codes: scales of each page, and of all of them. */
struct pool {
    int8_t codes[2][PAGES][ROWS][HEADS][D];
    float k_scale[PAGES][1][HEADS], v_scale[HEADS];
    attn_cache_config config;
    unsigned char memory[4096];
    attn_cache *cache;
};

static void pool_open(struct pool *p)
{
    memset(p, 1, sizeof *p);
    p->config =
        (attn_cache_config){.struct_size = sizeof p->config,
                            .k = attn_tensor_bshd(p->codes[0], ATTN_I8, PAGES, ROWS, HEADS, D),
                            .v = attn_tensor_bshd(p->codes[1], ATTN_I8, PAGES, ROWS, HEADS, D),
                            .k_scale = attn_tensor_bshd(p->k_scale, ATTN_F32, PAGES, 1, HEADS, 1),
                            .v_scale = attn_tensor_bshd(p->v_scale, ATTN_F32, 1, 1, HEADS, 1),
                            .sequences = 2,
                            .length = 9};
    assert_int_equal(attn_cache_open(&p->config, p->memory, sizeof p->memory, &p->cache), ATTN_OK);
}

static void test_pool_configs(void **state)
{
    static struct pool p;
    attn_cache *cache;
    uint64_t bytes;
    (void)state;
    pool_open(&p);
    attn_cache_config bad = p.config;
    REFUSED(attn_cache_bytes(&bad, NULL), INVALID_ARGUMENT, "bytes is NULL");
    REFUSED(attn_cache_open(&bad, p.memory, 4096, NULL), INVALID_ARGUMENT, "cache is NULL");
    REFUSED(attn_cache_open(&bad, NULL, 4096, &cache), WORKSPACE, "memory is NULL");
    bad.length = -1;
    REFUSED(attn_cache_bytes(&bad, &bytes), INVALID_ARGUMENT, "length = -1");
    bad.length = INT64_MAX / 2 + 1;
    REFUSED(attn_cache_bytes(&bad, &bytes), INVALID_ARGUMENT, "length = ");
    bad = p.config, bad.k.shape[1] = bad.v.shape[1] = 0;
    REFUSED(attn_cache_bytes(&bad, &bytes), INVALID_ARGUMENT, "of at least 1 row");
    bad = p.config, bad.k.shape[2] = bad.v.shape[2] = 0;
    bad.k.shape[0] = bad.v.shape[0] = INT64_C(1) << 31;
    REFUSED(attn_cache_bytes(&bad, &bytes), INVALID_ARGUMENT, "below 2^31 pages");
    attn_cache_close(p.cache);
}

static void test_pool_calls(void **state)
{
    static struct pool p;
    int64_t a, b, pages, length;
    int32_t table[3];
    attn_forward_args args = {.struct_size = sizeof args};
    (void)state;
    pool_open(&p);
    assert_int_equal(attn_cache_alloc(p.cache, &a), ATTN_OK);
    assert_int_equal(attn_cache_extend(p.cache, a, 6), ATTN_OK);
    REFUSED(attn_cache_alloc(p.cache, NULL), INVALID_ARGUMENT, "sequence is NULL");
    REFUSED(attn_cache_extend(p.cache, -1, 1), INVALID_ARGUMENT, "sequence -1 is not in use");
    REFUSED(attn_cache_extend(p.cache, a, -1), INVALID_ARGUMENT, "rows = -1");
    REFUSED(attn_cache_free(p.cache, 2), INVALID_ARGUMENT, "sequence 2 is not in use");
    REFUSED(attn_cache_truncate(p.cache, -1, 0), INVALID_ARGUMENT, "is not in use");
    REFUSED(attn_cache_truncate(p.cache, a, -1), INVALID_ARGUMENT, "length = -1");
    REFUSED(attn_cache_truncate(p.cache, a, 7), INVALID_ARGUMENT, "must be in [0, 6]");
    REFUSED(attn_cache_fork(p.cache, a, -1, &b), INVALID_ARGUMENT, "length = -1");
    REFUSED(attn_cache_fork(p.cache, a, 7, &b), INVALID_ARGUMENT, "must be in [0, 6]");
    REFUSED(attn_cache_fork(p.cache, a, 6, NULL), INVALID_ARGUMENT, "forked is NULL");
    REFUSED(attn_cache_view(p.cache, &a, -1, table, &length, &args), INVALID_ARGUMENT,
            "count = -1 is negative");
    REFUSED(attn_cache_view(p.cache, NULL, 1, table, &length, &args), INVALID_ARGUMENT,
            "sequences is NULL, but count = 1");
    REFUSED(attn_cache_view(p.cache, &a, 1, NULL, &length, &args), INVALID_ARGUMENT,
            "table is NULL, but count = 1");
    REFUSED(attn_cache_view(p.cache, &a, 1, table, NULL, &args), INVALID_ARGUMENT,
            "lengths is NULL, but count = 1");
    REFUSED(attn_cache_view(p.cache, &a, 1, table, &length, NULL), INVALID_ARGUMENT, "args");
    args.struct_size = 0;
    REFUSED(attn_cache_view(p.cache, &a, 1, table, &length, &args), INVALID_ARGUMENT,
            "attn_forward_args.struct_size = 0 is not");
    args.struct_size = sizeof args - sizeof args.v_shift; /* as of a header without shifts */
    REFUSED(attn_cache_view(p.cache, &a, 1, table, &length, &args), INVALID_ARGUMENT, "v_shift");
    args.struct_size = sizeof args;
    assert_int_equal(attn_cache_view(p.cache, NULL, 0, NULL, NULL, &args), ATTN_OK);
    assert_int_equal(args.block_table.shape[0], 0);
    args.q = attn_tensor_bshd(NULL, ATTN_F32, 0, 1, HEADS, D), args.o = args.q;
    assert_int_equal(attn_forward(NULL, &args), ATTN_OK); /* a batch of none */
    /* a fork that grows gets the page's rows and its scales; a growth by nothing gets nothing */
    assert_int_equal(attn_cache_fork(p.cache, a, 6, &b), ATTN_OK);
    assert_int_equal(attn_cache_extend(p.cache, b, 0), ATTN_OK);
    assert_int_equal(attn_cache_free_pages(p.cache, &pages), ATTN_OK);
    assert_int_equal(pages, 1);
    assert_int_equal(attn_cache_view(p.cache, &a, 1, table, &length, &args), ATTN_OK);
    const int32_t shared = table[1];
    p.codes[0][shared][1][1][3] = 77, p.k_scale[shared][0][1] = 5;
    assert_int_equal(attn_cache_extend(p.cache, b, 1), ATTN_OK);
    assert_int_equal(attn_cache_view(p.cache, &b, 1, table, &length, &args), ATTN_OK);
    assert_true(table[1] != shared && length == 7);
    assert_int_equal(p.codes[0][table[1]][1][1][3], 77);
    assert_true(p.k_scale[table[1]][0][1] == 5);
    attn_cache_close(p.cache);
}

static attn_status fail_to_copy(void *user, int64_t to, int64_t from, int64_t rows)
{
    *(int64_t *)user += to != from && rows == 2;
    return ATTN_ERR_DEVICE;
}

/* A copy that fails leaves the pool as it was. */
static void test_failing_copy(void **state)
{
    static struct pool p;
    int64_t a, b, pages, length, copies = 0;
    int32_t table[3], before;
    attn_forward_args args = {.struct_size = sizeof args};
    (void)state;
    pool_open(&p);
    attn_cache_close(p.cache);
    p.config.copy = fail_to_copy, p.config.user = &copies;
    assert_int_equal(attn_cache_open(&p.config, p.memory, sizeof p.memory, &p.cache), ATTN_OK);
    assert_int_equal(attn_cache_alloc(p.cache, &a), ATTN_OK);
    assert_int_equal(attn_cache_extend(p.cache, a, ROWS + 2), ATTN_OK);
    assert_int_equal(attn_cache_fork(p.cache, a, ROWS + 2, &b), ATTN_OK);
    assert_int_equal(attn_cache_view(p.cache, &b, 1, table, &length, &args), ATTN_OK);
    before = table[1];
    REFUSED(attn_cache_extend(p.cache, b, 1), DEVICE, "copy of page");
    assert_int_equal(copies, 1);
    assert_int_equal(attn_cache_view(p.cache, &b, 1, table, &length, &args), ATTN_OK);
    assert_int_equal(attn_cache_free_pages(p.cache, &pages), ATTN_OK);
    assert_true(table[1] == before && length == ROWS + 2 && pages == PAGES - 2);
    attn_cache_close(p.cache);
}

static void test_merge_arguments(void **state)
{
    float o[2][24], lse[2][12];
    (void)state;
    memset(o, 0, sizeof o), memset(lse, 0, sizeof lse);
    attn_tensor part_o[2], part_lse[2];
    for (int i = 0; i < 2; i++) {
        part_o[i] = attn_tensor_bshd(o[i], ATTN_F32, 1, 2, 3, 4);
        part_lse[i] = attn_tensor_bshd(lse[i], ATTN_F32, 1, 2, 3, 1);
    }
    const attn_merge_args good = {.struct_size = sizeof good,
                                  .parts = 2,
                                  .part_o = part_o,
                                  .part_lse = part_lse,
                                  .o = part_o[0]};
    attn_merge_args m = good;
    assert_int_equal(attn_merge(NULL, &m), ATTN_OK);
    part_lse[1].shape[3] = 2;
    REFUSED(attn_merge(NULL, &m), INVALID_ARGUMENT, "part_lse[1].shape[3] = 2, must be 1");
    part_lse[1].shape[3] = 1, part_lse[1].shape[2] = 2;
    REFUSED(attn_merge(NULL, &m), INVALID_ARGUMENT, "part_lse[1].shape[2] = 2 but o.shape[2] = 3");
    part_lse[1].shape[2] = 3;
    m.o.stride[1] = 24, m.o.shape[1] = 2; /* the first part's memory in another order */
    REFUSED(attn_merge(NULL, &m), INVALID_ARGUMENT, "overlap");
    for (int i = 0; i < 2; i++) { /* nothing to write, however many rows */
        part_o[i].shape[3] = 0, part_lse[i].stride[0] = part_lse[i].stride[1] = 0;
        part_o[i].shape[0] = part_o[i].shape[1] = INT64_C(1) << 40;
        part_lse[i].shape[0] = part_lse[i].shape[1] = INT64_C(1) << 40;
    }
    m.o = part_o[0];
    assert_int_equal(attn_merge(NULL, &m), ATTN_OK);
}

static void test_masks_of_nothing(void **state)
{
    uint8_t keep[4] = {9, 9, 9, 9};
    (void)state;
    attn_dropout_mask_args a = {.struct_size = sizeof a, .dropout_p = 0.5};
    for (int axis = 0; axis < 4; axis++) {
        a.keep = attn_tensor_bshd(keep, ATTN_BOOL, 1, 1, 1, 1);
        a.keep.shape[axis] = 0;
        assert_int_equal(attn_dropout_mask(NULL, &a), ATTN_OK);
    }
    assert_int_equal(keep[0], 9);
    a.keep = attn_tensor_bshd(keep, ATTN_BOOL, INT64_C(1) << 40, INT64_C(1) << 40, 1, 0);
    REFUSED(attn_dropout_mask(NULL, &a), OVERFLOW, "the rows of keep do not fit in 64 bits");
}

static void test_lengths_and_types(void **state)
{
    int32_t pad[2] = {0, 0};
    (void)state;
    op_trial t = trial_open("hq=2 d=8 lens_q=3,2 lens_k=4,5");
    attn_forward_args *a = t.args, good = *a;
    a->leftpad_k = attn_tensor_bshd(pad, ATTN_I32, 2, 1, 1, 1);
    REFUSED(attn_forward(NULL, a), INVALID_ARGUMENT, "both say where sequences begin");
    *a = good, a->v.dtype = ATTN_F16;
    REFUSED(attn_forward(NULL, a), INVALID_ARGUMENT, "v.dtype = 3 (f16)");
    *a = good, a->k.dtype = a->v.dtype = ATTN_I4X2, a->k.shape[3] = INT64_MAX;
    REFUSED(attn_forward(NULL, a), OVERFLOW, "of 2 columns each leaves 64 bits");
    *a = good;
    trial_close(&t);
    t = trial_open("hq=2 d=8 b=2 nq=3 nk=12 page=4"), a = t.args, good = *a;
    a->block_table.shape[3] = 2;
    REFUSED(attn_forward(NULL, a), INVALID_ARGUMENT, "block_table");
    *a = good, a->rope_dims = -2, a->rope_base = 10;
    REFUSED(attn_forward(NULL, a), INVALID_ARGUMENT, "rope_dims = -2");
    *a = good, a->rope_dims = 3, a->rope_base = 10;
    REFUSED(attn_forward(NULL, a), INVALID_ARGUMENT, "rope_dims = 3, must be even");
    *a = good, a->rope_dims = 2, a->rope_base = 1e301;
    REFUSED(attn_forward(NULL, a), INVALID_ARGUMENT, "rope_base");
    *a = good;
    trial_close(&t);
}

/* The backward pass names the option that it lacks. */
static void test_forward_only(void **state)
{
    (void)state;
    op_trial t = trial_open("hq=2 d=8 nq=3 nk=4");
    attn_forward_args *f = t.args, good = *f;
    attn_backward_args b = {.struct_size = sizeof b, .forward = f};
    f->v_new = f->v;
    REFUSED(attn_backward(NULL, &b), UNSUPPORTED, "v_new is for attn_forward only");
    *f = good, f->rope_cos = f->rope_sin = f->v;
    REFUSED(attn_backward(NULL, &b), UNSUPPORTED, "rope_cos is for attn_forward only");
    *f = good, f->rope_base = 10;
    REFUSED(attn_backward(NULL, &b), UNSUPPORTED, "rope_base is for attn_forward only");
    *f = good, f->leftpad_k = f->v;
    REFUSED(attn_backward(NULL, &b), UNSUPPORTED, "leftpad_k is for attn_forward only");
    *f = good, f->v.dtype = ATTN_I8;
    REFUSED(attn_backward(NULL, &b), UNSUPPORTED, "v.dtype = 9 (i8)");
    *f = good;
    trial_close(&t);
}

/* Each flag of speed chooses its kernels, where there are tiles. */
static void test_flags_choose_kernels(void **state)
{
    attn_context *tiles = NULL;
    attn_context_config config = {.struct_size = sizeof config, .cpu = "amx"};
    attn_plan plan = {.struct_size = sizeof plan};
    (void)state;
    if (attn_context_create(&config, &tiles) != ATTN_OK) {
        skip();
    }
    op_trial t = trial_open("hq=1 nq=64 d=32");
    assert_int_equal(attn_forward_plan(tiles, t.args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "amx_f32");
    t.args->flags |= ATTN_BF16X3;
    assert_int_equal(attn_forward_plan(tiles, t.args, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "amx_bf16x3");
    t.args->flags |= ATTN_PRECISE;
    assert_int_equal(attn_forward_plan(tiles, t.args, &plan), ATTN_OK);
    assert_null(strstr(plan.kernel, "amx"));
    trial_close(&t);
    attn_context_destroy(tiles);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_configs),         cmocka_unit_test(test_pool_calls),
        cmocka_unit_test(test_failing_copy),         cmocka_unit_test(test_merge_arguments),
        cmocka_unit_test(test_masks_of_nothing),     cmocka_unit_test(test_lengths_and_types),
        cmocka_unit_test(test_flags_choose_kernels), cmocka_unit_test(test_forward_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
