/*
 * tables.c: see tables.h.
 */
#include "tables.h"
#include "cpu/features.h"
#include "cpu/select.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TABLES = 8, MAX_THREADS = 16 };

static struct {
    const char *usual[MAX_TABLES], *own_bits[MAX_TABLES];
    int usual_count, own_bits_count;
} tables;

static void find_tables(void)
{
    int all;
    const attn_isa *isas = attn_isas(&all);
    uint32_t features = attn_cpu_features();
    for (int i = 0; i < all && tables.usual_count < MAX_TABLES; i++) {
        if ((isas[i].needs & ~features) != 0) {
            printf("SKIPPED table %s: this CPU or emulator lacks it\n", isas[i].name);
        } else if (isas[i].same_bits) {
            tables.usual[tables.usual_count++] = isas[i].name;
        } else {
            tables.own_bits[tables.own_bits_count++] = isas[i].name;
        }
    }
}

const char *const *tables_names(int *count)
{
    if (tables.usual_count == 0) {
        find_tables();
    }
    *count = tables.usual_count;
    return tables.usual;
}

const char *tables_usual(void)
{
    int count;
    const char *const *names = tables_names(&count);
    return names[count - 1];
}

const char *const *tables_own_bits(int *count)
{
    (void)tables_names(count);
    *count = tables.own_bits_count;
    return tables.own_bits;
}

static attn_context *cache[2 * MAX_TABLES + 1][MAX_THREADS + 1];

static void close_all(void)
{
    for (int i = 0; i <= 2 * MAX_TABLES; i++) {
        for (int n = 0; n <= MAX_THREADS; n++) {
            attn_context_destroy(cache[i][n]);
        }
    }
}

/* The row of the cache: first the usual tables, then those with bits of their own, last the best table. */
static int place_of(const char *table)
{
    for (int i = 0; i < MAX_TABLES; i++) {
        if (table != NULL && tables.usual[i] == table) {
            return i;
        }
        if (table != NULL && tables.own_bits[i] == table) {
            return MAX_TABLES + i;
        }
    }
    return 2 * MAX_TABLES;
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
