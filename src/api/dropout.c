/*
 * dropout.c: the mask of dropout on its own (attn_dropout_mask), from the same words as the
 * kernels'.
 */
#include "api/args.h"
#include "api/context.h"
#include "core/error.h"
#include "cpu/machine/host.h"

typedef struct mask_job {
    attn_tensor keep;
    attn_dropout dropout;
} mask_job;

/* All keys of one row. */
static void mask_task(void *arg, int64_t index, int32_t thread)
{
    const mask_job *m = arg;
    const int64_t heads = m->keep.shape[1], rows = m->keep.shape[2], keys = m->keep.shape[3];
    const int64_t i = index % rows, h = index / rows % heads, b = index / rows / heads;
    const uint64_t stream = attn_dropout_stream(&m->dropout, b, heads, h);
    uint32_t word[4];
    (void)thread;
    for (int64_t j = 0; j < keys; j++) {
        if (j % 4 == 0) {
            attn_dropout_words(&m->dropout, stream, (uint32_t)i, (uint32_t)(j / 4), word);
        }
        *attn_at(&m->keep, b, h, i, j) = (char)(!m->dropout.on || word[j % 4] > m->dropout.last);
    }
}

static attn_status check(const attn_dropout_mask_args *a, attn_dropout *dropout, int64_t *rows)
{
    const attn_tensor *t = &a->keep;
    attn_status status = attn_check_tensor("keep", t, 1 << ATTN_BOOL, true);
    if (status == ATTN_OK) {
        attn_host host;
        attn_host_leave(&host); /* rounds the threshold */
        status = attn_dropout_init(dropout, a->dropout_p, a->dropout_seed, a->dropout_offset);
        attn_host_return(&host);
    }
    if (status == ATTN_OK) {
        status = attn_dropout_fits(dropout, "keep", t->shape[2], "keep", t->shape[3]);
    }
    if (status == ATTN_OK && (__builtin_mul_overflow(t->shape[0], t->shape[1], rows) ||
                              __builtin_mul_overflow(*rows, t->shape[2], rows))) {
        status = attn_fail(ATTN_ERR_OVERFLOW, "the rows of keep do not fit in 64 bits");
    }
    return status;
}

attn_status attn_dropout_mask(attn_context *context, const attn_dropout_mask_args *args)
{
    attn_dropout_mask_args a;
    mask_job m;
    int64_t rows = 0;
    attn_status status = attn_copy_args(&a, sizeof a, args, "attn_dropout_mask_args");
    if (status == ATTN_OK) {
        status = attn_context_get(context, &context);
    }
    if (status == ATTN_OK && context->cuda) {
        status = attn_fail(ATTN_ERR_UNSUPPORTED,
                           "attn_dropout_mask runs on the CPU only; the context is for %s",
                           attn_cuda_name(context->cuda));
    }
    if (status == ATTN_OK) {
        status = check(&a, &m.dropout, &rows);
    }
    if (status == ATTN_OK && a.keep.shape[3] > 0) {
        m.keep = a.keep;
        context->executor.parallel_for(context->executor.user, rows, mask_task, &m);
    }
    return status;
}
