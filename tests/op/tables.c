/*
 * tables.c: see tables.h.
 */
#include "tables.h"
#include "cpu/features.h"
#include "cpu/select.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TABLES = 8, MAX_THREADS = 16 };

const char *const *tables_names(int *count)
{
    static const char *names[MAX_TABLES];
    static int found;
    if (found == 0) {
        int all;
        const attn_isa *isas = attn_isas(&all);
        uint32_t features = attn_cpu_features();
        for (int i = 0; i < all; i++) {
            if ((isas[i].needs & ~features) == 0) {
                names[found++] = isas[i].name;
            } else {
                printf("SKIPPED table %s: this CPU or emulator lacks it\n", isas[i].name);
            }
        }
    }
    *count = found;
    return names;
}

static attn_context *cache[MAX_TABLES + 1][MAX_THREADS + 1]; /* the last row: the best table */

static void close_all(void)
{
    for (int i = 0; i <= MAX_TABLES; i++) {
        for (int n = 0; n <= MAX_THREADS; n++) {
            attn_context_destroy(cache[i][n]);
        }
    }
}

static int place_of(const char *table)
{
    int count;
    const char *const *names = tables_names(&count);
    for (int i = 0; i < count; i++) {
        if (names[i] == table) {
            return i;
        }
    }
    return MAX_TABLES;
}

bool tables_round_bf16(const char *table)
{
    const attn_isa *isa = attn_select(attn_cpu_features(), table);
    return isa != NULL && isa->bf16 != isa->f32;
}

attn_context *tables_context(const char *table, int threads)
{
    static int registered;
    attn_context **context = &cache[place_of(table)][threads];
    if (*context == NULL) {
        attn_context_config config = {.struct_size = sizeof config, .threads = threads, .cpu = table};
        if (attn_context_create(&config, context) != ATTN_OK) {
            fprintf(stderr, "no context for table %s: %s\n", table ? table : "(best)", attn_last_error());
            exit(1);
        }
        if (!registered) {
            registered = atexit(close_all) == 0;
        }
    }
    return *context;
}
