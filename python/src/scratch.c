/*
 * scratch.c: a call with memory for its tiles. On CPUs a block is kept from call to call: fresh
 * memory costs a page fault every 4 KiB.
 */
#include "fields.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct block {
    uint64_t bytes;
    _Alignas(64) char memory[];
} block;

enum { FIRST_BYTES = 1 << 20, KEPT_BYTES = 64 << 20 };

/* The block that no call uses; NULL: there is none. */
static _Atomic(block *) kept;

static block *make(uint64_t bytes)
{
    block *made = bytes <= INT64_MAX ? malloc(sizeof *made + (size_t)bytes) : NULL;
    if (made)
        made->bytes = bytes;
    return made;
}

/* Keeps a block for later calls, in place of the one that is kept. */
static void put(block *used)
{
    if (used && used->bytes <= KEPT_BYTES)
        used = atomic_exchange(&kept, used);
    free(used);
}

void scratch_give(core_call *call, void *memory, uint64_t bytes)
{
    call->forward.workspace = call->backward.workspace = memory;
    call->forward.workspace_bytes = call->backward.workspace_bytes = bytes;
}

static void hand_in(core_call *call, block *scratch)
{
    scratch_give(call, scratch ? scratch->memory : NULL, scratch ? scratch->bytes : 0);
}

static attn_status run(core_call *call)
{
    attn_context *context = context_of(call->context);
    return call->is_backward ? attn_backward(context, &call->backward)
                             : attn_forward(context, &call->forward);
}

attn_status scratch_ask(core_call *call, uint64_t *bytes)
{
    attn_context *context = context_of(call->context);
    return call->is_backward ? attn_backward_workspace(context, &call->backward, bytes)
                             : attn_forward_workspace(context, &call->forward, bytes);
}

attn_status scratch_run(core_call *call)
{
    if (call->views[call->field_view[F_Q]].device.type == DL_CUDA)
        return run(call); /* with memory of the GPU */
    block *scratch = atomic_exchange(&kept, NULL);
    if (!scratch)
        scratch = make(FIRST_BYTES);
    hand_in(call, scratch);
    attn_status status = run(call);
    uint64_t bytes = 0;
    if (status == ATTN_ERR_WORKSPACE && !(status = scratch_ask(call, &bytes))) {
        free(scratch);
        scratch = make(bytes);
        hand_in(call, scratch); /* without a block the library allocates, or says that it cannot */
        status = run(call);
    }
    put(scratch);
    return status;
}
