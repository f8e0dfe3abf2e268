/*
 * grad_runs.c: see grad_runs.h.
 */
#include "grad_runs.h"
#include "grad_errors.h"
#include "outputs.h"
#include "region.h"
#include "tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned char *grad_runs_copy(const attn_backward_args *args, size_t *bytes)
{
    const attn_tensor *tensors[ORACLE_GRADIENTS];
    grad_errors_tensors(args, tensors);
    return outputs_copy_these(tensors, ORACLE_GRADIENTS, bytes);
}

bool grad_runs_once(const attn_backward_args *args, const char *table, int threads,
                    enum runs_poison poison, char *sentence, size_t size)
{
    attn_context *context = tables_context(table, threads);
    const attn_tensor *tensors[ORACLE_GRADIENTS];
    attn_backward_args backward = *args;
    guarded_region workspace;
    attn_status status = attn_backward_workspace(context, &backward, &backward.workspace_bytes);
    if (status != ATTN_OK ||
        !region_create(&workspace, backward.workspace_bytes, PLACE_GUARD_AFTER)) {
        snprintf(sentence, size, "workspace: %s", attn_last_error());
        return false;
    }
    runs_fill(&workspace, poison);
    backward.workspace = workspace.first;
    grad_errors_tensors(&backward, tensors);
    outputs_poison_these(tensors, ORACLE_GRADIENTS);
    status = attn_backward(context, &backward);
    region_free(&workspace);
    if (status != ATTN_OK) {
        snprintf(sentence, size, "%s", attn_last_error());
    }
    return status == ATTN_OK;
}

/* True if the gradients have the bits of `first`; a NULL *first takes theirs. */
static bool same_bits(const attn_backward_args *args, unsigned char **first)
{
    size_t bytes;
    unsigned char *bits = grad_runs_copy(args, &bytes);
    if (*first == NULL) {
        *first = bits;
        return bits != NULL;
    }
    bool same = bits != NULL && memcmp(*first, bits, bytes) == 0;
    free(bits);
    return same;
}

static bool agree(const attn_backward_args *args, bool all, char *sentence, size_t size)
{
    unsigned char *first = NULL;
    int count, run = 0;
    const attn_forward_args *forward = args->forward;
    const char *const *names = tables_that_agree(forward->q.dtype, forward->flags, &count);
    bool ok = true;
    for (int table = 0; table < count; table++) {
        for (int n = 0; ok && n < (all ? runs_counts(names[table]) : 1); n++) {
            const int threads = all ? runs_threads[n] : 1;
            ok = grad_runs_once(args, names[table], threads,
                                (enum runs_poison)(run++ % RUNS_POISONS), sentence, size);
            if (ok && !same_bits(args, &first)) {
                snprintf(sentence, size, "%s with %d threads gives other bits than the first run",
                         names[table], threads);
                ok = false;
            }
        }
    }
    free(first);
    return ok;
}

bool grad_runs_agree(const attn_backward_args *args, char *sentence, size_t size)
{
    return agree(args, true, sentence, size);
}

bool grad_runs_tables_agree(const attn_backward_args *args, char *sentence, size_t size)
{
    return agree(args, false, sentence, size);
}

bool grad_runs_own_bits(const attn_backward_args *args, char *sentence, size_t size)
{
    int count;
    const char *const *names = tables_own_bits(&count);
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        unsigned char *first = NULL;
        ok = runs_once(args->forward, names[i], 2, RUNS_NOISE, sentence, size);
        for (int n = 0; ok && n < 2; n++) {
            ok = grad_runs_once(args, names[i], 1 + 2 * n, n ? RUNS_ZEROS : RUNS_ONES, sentence,
                                size);
            if (ok && !same_bits(args, &first)) {
                snprintf(sentence, size, "%s gives other bits with 3 threads than with 1",
                         names[i]);
                ok = false;
            }
        }
        free(first);
        ok = ok && grad_runs_judge(args, names[i], false, sentence, size) <= 1;
    }
    return ok;
}

double grad_runs_judge(const attn_backward_args *args, const char *table, bool random,
                       char *sentence, size_t size)
{
    grad_errors errors;
    const attn_forward_args *forward = args->forward;
    double worst = 0, allowed = tables_allowed(table, forward->q.dtype, forward->flags).grad_c;
    int length =
        snprintf(sentence, size, "%s, c (at most %.3g):", table ? table : "usual bits", allowed);
    grad_errors_measure(args, &errors);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        worst = isnan(errors.c[n]) ? errors.c[n] : fmax(worst, errors.c[n] / allowed);
        length += snprintf(sentence + length, size - (size_t)length, " %s %.3g",
                           grad_errors_name((enum oracle_gradient)n), errors.c[n]);
    }
    if (random && !grad_errors_proportional(&errors)) {
        snprintf(sentence + length, size - (size_t)length, ", but one is off as a whole");
        worst = (double)INFINITY;
    }
    return worst;
}
