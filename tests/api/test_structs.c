/*
 * test_structs.c: programs built with an older or a newer header: every struct that carries its
 * size, shorter and longer than the library knows it.
 */
#include "call.h"

#include <stdlib.h>

/* A struct of the library followed by the fields of a newer header. */
#define NEWER(type)     \
    struct {            \
        type known;     \
        char added[64]; \
    }

/* An older header ends at bias: the memory beyond does not belong to the struct. */
static void test_older_forward_args(void **state)
{
    call c;
    (void)state;
    call_open(&c, CALL_LINE);
    attn_forward_args args = *c.args;
    args.struct_size = offsetof(attn_forward_args, alibi_slopes);
    memset((char *)&args + args.struct_size, 0xA5, sizeof args - args.struct_size);
    assert_int_equal(attn_forward(NULL, &args), ATTN_OK);
    assert_true(call_is_right(&c));
    args.struct_size = sizeof args.struct_size; /* only its size is known */
    assert_int_equal(attn_forward(NULL, &args), ATTN_ERR_INVALID_ARGUMENT);
    assert_string_equal(attn_last_error(), "q.dtype = 0 (none), must be f64, f32, f16 or bf16");
    args.struct_size--;
    assert_int_equal(attn_forward(NULL, &args), ATTN_ERR_INVALID_ARGUMENT);
    assert_true(call_is_untouched(&c));
    call_close(&c);
}

/* Only struct_size bytes may be read. */
static void test_older_forward_args_at_the_end_of_memory(void **state)
{
    call c;
    guarded_region end;
    size_t size = offsetof(attn_forward_args, mask);
    (void)state;
    call_open(&c, CALL_LINE);
    assert_true(region_create(&end, size, PLACE_GUARD_AFTER));
    memcpy(end.first, c.args, size);
    memcpy(end.first, &(uint64_t){size}, sizeof(uint64_t));
    assert_int_equal(attn_forward(NULL, (attn_forward_args *)end.first), ATTN_OK);
    assert_true(call_is_right(&c));
    region_free(&end);
    call_close(&c);
}

static void test_newer_forward_args(void **state)
{
    call c;
    NEWER(attn_forward_args) a = {.added = {0}};
    (void)state;
    call_open(&c, CALL_LINE);
    a.known = *c.args;
    a.known.struct_size = sizeof a;
    assert_int_equal(attn_forward(NULL, &a.known), ATTN_OK);
    assert_true(call_is_right(&c));
    for (size_t i = 0; i < sizeof a.added; i += 21) {
        uint64_t bytes;
        a.added[i] = 1;
        assert_int_equal(attn_forward(NULL, &a.known), ATTN_ERR_UNKNOWN_FIELD);
        assert_int_equal(attn_forward_workspace(NULL, &a.known, &bytes), ATTN_ERR_UNKNOWN_FIELD);
        assert_non_null(strstr(attn_last_error(), "is not 0: this library knows"));
        a.added[i] = 0;
    }
    assert_true(call_is_untouched(&c));
    call_close(&c);
}

/* Structs that the library fills: nothing is written beyond the caller's size, and fields that the
 * library lacks become 0. */
static void assert_filled(attn_status (*fill)(void *to), size_t known, size_t prefix)
{
    unsigned char right[1024], got[1024];
    uint64_t size = known;
    assert_true(known + 64 <= sizeof right);
    memset(right, 0x5A, sizeof right);
    memcpy(right, &size, sizeof size);
    assert_int_equal(fill(right), ATTN_OK);
    for (size = prefix; size <= known + 64; size += size == prefix ? known - prefix : 64) {
        memset(got, 0x5A, sizeof got);
        memcpy(got, &size, sizeof size);
        assert_int_equal(fill(got), ATTN_OK);
        size_t both = size < known ? size : known;
        assert_memory_equal(got + sizeof size, right + sizeof size, both - sizeof size);
        for (size_t i = both; i < sizeof got; i++) {
            assert_int_equal(got[i], i < size ? 0 : 0x5A);
        }
        assert_memory_equal(got, &size, sizeof size);
    }
    for (int i = 0; i < 3; i++) {
        size = (uint64_t[]){0, 7, UINT64_MAX}[i];
        memset(got, 0x5A, sizeof got);
        memcpy(got, &size, sizeof size);
        assert_int_equal(fill(got), ATTN_ERR_INVALID_ARGUMENT);
        assert_int_equal(got[sizeof size], 0x5A);
    }
}

static attn_forward_args *planned;

static attn_status fill_plan(void *to)
{
    return attn_forward_plan(NULL, planned, to);
}

static attn_backward_args *planned_backward;

static attn_status fill_backward_plan(void *to)
{
    return attn_backward_plan(NULL, planned_backward, to);
}

static attn_status fill_info(void *to)
{
    return attn_get_info(NULL, to);
}

static void test_plan(void **state)
{
    call c;
    (void)state;
    call_open(&c, CALL_LINE);
    planned = c.args;
    assert_filled(fill_plan, sizeof(attn_plan), offsetof(attn_plan, threads));
    call_close(&c);
    call_open(&c, CALL_LINE " pass=backward");
    planned_backward = &c.tensors.grad;
    assert_filled(fill_backward_plan, sizeof(attn_plan), offsetof(attn_plan, threads));
    call_close(&c);
}

static void test_info(void **state)
{
    (void)state;
    assert_filled(fill_info, sizeof(attn_info), offsetof(attn_info, cpu_table));
    assert_int_equal(attn_get_info(NULL, NULL), ATTN_ERR_INVALID_ARGUMENT);
}

static void test_context_config(void **state)
{
    NEWER(attn_context_config) config = {.known = {.struct_size = sizeof config, .threads = 2}};
    attn_context *context;
    attn_info info = {.struct_size = sizeof info};
    (void)state;
    assert_int_equal(attn_context_create(&config.known, &context), ATTN_OK);
    attn_context_destroy(context);
    config.added[63] = 1;
    assert_int_equal(attn_context_create(&config.known, &context), ATTN_ERR_UNKNOWN_FIELD);
    assert_null(context);
    config.known.struct_size = offsetof(attn_context_config, cpu);
    memset((char *)&config.known + config.known.struct_size, 0xA5,
           sizeof config.known - config.known.struct_size);
    assert_int_equal(attn_context_create(&config.known, &context), ATTN_OK);
    assert_int_equal(attn_get_info(context, &info), ATTN_OK);
    assert_int_equal(info.threads, 2);
    attn_context_destroy(context);
}

static void test_merge_args(void **state)
{
    float o = 3, lse = 1, to = 0;
    attn_tensor part_o = attn_tensor_bshd(&o, ATTN_F32, 1, 1, 1, 1),
                part_lse = attn_tensor_bshd(&lse, ATTN_F32, 1, 1, 1, 1);
    NEWER(attn_merge_args) a = {.known = {.parts = 1, .part_o = &part_o, .part_lse = &part_lse}};
    (void)state;
    a.known.o = attn_tensor_bshd(&to, ATTN_F32, 1, 1, 1, 1);
    a.known.struct_size = sizeof a;
    a.added[5] = 1;
    assert_int_equal(attn_merge(NULL, &a.known), ATTN_ERR_UNKNOWN_FIELD);
    assert_true(to == 0);
    a.added[5] = 0;
    assert_int_equal(attn_merge(NULL, &a.known), ATTN_OK);
    assert_true(to == 3);
    memset(&a.known.lse, 0xA5, sizeof a.known.lse);
    a.known.struct_size = offsetof(attn_merge_args, lse);
    assert_int_equal(attn_merge(NULL, &a.known), ATTN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_older_forward_args),
        cmocka_unit_test(test_older_forward_args_at_the_end_of_memory),
        cmocka_unit_test(test_newer_forward_args),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_context_config),
        cmocka_unit_test(test_merge_args),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
