/*
 * runs.c: see runs.h.
 */
#include "runs.h"
#include "inputs.h"
#include "outputs.h"
#include "region.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(region *r, enum runs_poison poison)
{
    memset(r->first, poison == RUNS_ZEROS ? 0 : 0xFF, r->bytes);
    for (size_t i = 0; poison == RUNS_NOISE && i < r->bytes; i++) {
        r->first[i] = (unsigned char)inputs_bits(1, 0, (int64_t)i);
    }
}

bool runs_once(const attn_forward_args *args, const char *table, int threads, enum runs_poison poison, char *sentence,
               size_t size)
{
    attn_context *context = tables_context(table, threads);
    attn_forward_args a = *args;
    region workspace;
    attn_status status = attn_forward_workspace(context, &a, &a.workspace_bytes);
    if (status != ATTN_OK || !region_create(&workspace, a.workspace_bytes, PLACE_GUARD_AFTER)) {
        snprintf(sentence, size, "workspace: %s", attn_last_error());
        return false;
    }
    fill(&workspace, poison);
    a.workspace = workspace.first;
    outputs_poison(&a);
    status = attn_forward(context, &a);
    region_free(&workspace);
    if (status != ATTN_OK) {
        snprintf(sentence, size, "%s", attn_last_error());
    }
    return status == ATTN_OK;
}

/* The first run's bits, and whether later ones are the same. */
struct bits {
    unsigned char *bytes;
    size_t count;
};

static bool same_bits(struct bits *first, const attn_forward_args *args)
{
    size_t count;
    unsigned char *bytes = outputs_copy(args, &count);
    if (bytes == NULL) {
        return false;
    }
    if (first->bytes == NULL) {
        *first = (struct bits){bytes, count};
        return true;
    }
    bool same = count == first->count && memcmp(bytes, first->bytes, count) == 0;
    free(bytes);
    return same;
}

bool runs_agree(const attn_forward_args *args, char *sentence, size_t size)
{
    static const int threads[] = {1, 2, 3, 7};
    struct bits first = {NULL, 0};
    int count, turn = 0;
    const char *const *names = tables_names(&count);
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        for (int n = 0; ok && n < 4; n++, turn++) {
            ok = runs_once(args, names[i], threads[n], (enum runs_poison)(turn % RUNS_POISONS), sentence, size);
            if (ok && !same_bits(&first, args)) {
                snprintf(sentence, size,
                         "%s with %d threads and workspace filled in manner %d gives other bits than "
                         "%s with 1 thread",
                         names[i], threads[n], turn % RUNS_POISONS, names[0]);
                ok = false;
            }
        }
    }
    free(first.bytes);
    return ok;
}
