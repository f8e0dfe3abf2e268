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

/* Memory that MSan takes for unwritten. */
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#define FORGET(at, bytes) __msan_poison(at, bytes)
#endif
#endif
#ifndef FORGET
#define FORGET(at, bytes) ((void)0)
#endif

#ifdef ONLY_THREADS
const int runs_threads[RUNS_COUNTS] = {3};
#elif defined(FEW_THREADS)
const int runs_threads[RUNS_COUNTS] = {1, 3};
#else
const int runs_threads[RUNS_COUNTS] = {1, 7, 2, 3};
#endif

int runs_counts(const char *table)
{
    return RUNS_COUNTS > 2 && strcmp(table, "scalar") == 0 ? 2 : RUNS_COUNTS;
}

void runs_fill(const guarded_region *region, enum runs_poison poison)
{
    memset(region->first, poison == RUNS_ZEROS ? 0 : 0xFF, region->bytes);
    for (size_t i = 0; poison == RUNS_NOISE && i < region->bytes; i += sizeof(uint64_t)) {
        const uint64_t bits = inputs_bits(1, 0, (int64_t)i);
        const size_t left = region->bytes - i;
        memcpy(region->first + i, &bits, left < sizeof bits ? left : sizeof bits);
    }
    FORGET(region->first, region->bytes);
}

bool runs_once(const attn_forward_args *args, const char *table, int threads,
               enum runs_poison poison, char *sentence, size_t size)
{
    attn_context *context = tables_context(table, threads);
    attn_forward_args forward = *args;
    guarded_region workspace;
    attn_status status = attn_forward_workspace(context, &forward, &forward.workspace_bytes);
    if (status != ATTN_OK ||
        !region_create(&workspace, forward.workspace_bytes, PLACE_GUARD_AFTER)) {
        snprintf(sentence, size, "workspace: %s", attn_last_error());
        return false;
    }
    runs_fill(&workspace, poison);
    forward.workspace = workspace.first;
    outputs_poison(&forward);
    status = attn_forward(context, &forward);
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

/* Runs one table: all numbers of threads, and one content of the workspace after the other. */
static bool table_agrees(const attn_forward_args *args, const char *table, struct bits *first,
                         char *sentence, size_t size)
{
    for (int n = 0; n < runs_counts(table); n++) {
        enum runs_poison poison = (enum runs_poison)(n % RUNS_POISONS);
        if (!runs_once(args, table, runs_threads[n], poison, sentence, size)) {
            return false;
        }
        if (!same_bits(first, args)) {
            snprintf(sentence, size, "%s with %d threads gives other bits than the first run",
                     table, runs_threads[n]);
            return false;
        }
    }
    return true;
}

bool runs_agree(const attn_forward_args *args, char *sentence, size_t size)
{
    struct bits first = {NULL, 0};
    int count;
    const char *const *names = tables_that_agree(args->q.dtype, args->flags, &count);
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        ok = table_agrees(args, names[i], &first, sentence, size);
    }
    free(first.bytes);
    return ok;
}

bool runs_agree_on(const attn_forward_args *args, const char *table, char *sentence, size_t size)
{
    struct bits first = {NULL, 0};
    bool ok = table_agrees(args, table, &first, sentence, size);
    free(first.bytes);
    return ok;
}
