/*
 * fake_calls.c: calls of tests on a pretended GPU (fake_driver.h), which must succeed.
 */
#include "fake_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

attn_cuda_forward_params fake_params(attn_context *context, const attn_forward_args *args)
{
    assert_int_equal(attn_forward(context, args), ATTN_OK);
    return fake.last.params;
}

uint64_t fake_workspace(attn_context *context, attn_forward_args *args)
{
    uint64_t bytes = 0;
    assert_int_equal(attn_forward_workspace(context, args, &bytes), ATTN_OK);
    args->workspace = bytes > 0 ? fake_memory(5) : NULL, args->workspace_bytes = bytes;
    return bytes;
}
