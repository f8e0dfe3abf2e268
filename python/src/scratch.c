/*
 * scratch.c: a call with memory for its tiles, and memory of results. On CPUs blocks are kept from
 * call to call: fresh memory costs a page fault every 4 KiB.
 */
#include "fields.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct block {
    _Alignas(64) uint64_t bytes;
    _Alignas(64) char memory[];
} block;

enum { FIRST_BYTES = 1 << 20, KEPT_BYTES = 64 << 20, PLACES = 16 };

/* The block for tiles that no call uses; NULL: there is none. */
static _Atomic(block *) kept;

/* Blocks of results that have died, together at most KEPT_BYTES; a size is a hint. */
static struct place {
    _Atomic(block *) block;
    _Atomic uint64_t size;
} results[PLACES];
static _Atomic uint64_t results_bytes;

static block *make(uint64_t bytes)
{
    block *made = NULL;
    if (bytes <= INT64_MAX - 2 * sizeof *made)
        made = aligned_alloc(64, (sizeof *made + (size_t)bytes + 63) / 64 * 64);
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

/* ---- Results --------------------------------------------------------------------------------- */

static bool fits(uint64_t size, uint64_t bytes)
{
    return size >= bytes && size / 2 <= bytes;
}

static block *leave(int i)
{
    block *found = atomic_exchange(&results[i].block, NULL);
    if (found)
        atomic_fetch_sub(&results_bytes, found->bytes);
    return found;
}

void scratch_free(void *memory)
{
    block *used = (block *)((char *)memory - offsetof(block, memory));
    uint64_t bytes =
        used->bytes; /* of a block that may be another thread's as soon as it is kept */
    bool room = atomic_fetch_add(&results_bytes, bytes) + bytes <= KEPT_BYTES;
    for (int i = 0; i < PLACES && room; i++) {
        block *none = NULL;
        if (atomic_load(&results[i].block))
            continue;
        atomic_store(&results[i].size, bytes);
        if (atomic_compare_exchange_strong(&results[i].block, &none, used))
            return;
    }
    atomic_fetch_sub(&results_bytes, bytes);
    free(used);
}

void *scratch_allocate(uint64_t bytes)
{
    static _Atomic unsigned oldest;
    for (int i = 0; i < PLACES; i++) {
        block *found = fits(atomic_load(&results[i].size), bytes) ? leave(i) : NULL;
        if (found && fits(found->bytes, bytes))
            return found->memory;
        if (found)
            scratch_free(found->memory);
    }
    /* Sizes that nobody asks for any more leave, one block for each that is missed. */
    free(leave((int)(atomic_fetch_add(&oldest, 1) % PLACES)));
    block *made = make(bytes);
    return made ? made->memory : NULL;
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

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
