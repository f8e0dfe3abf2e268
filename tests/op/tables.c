/*
 * tables.c: see tables.h.
 */
#include "tables.h"
#include "cpu/forward/plan.h"
#include "cpu/machine/features.h"
#include "cpu/machine/select.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TABLES = 8, MAX_THREADS = 16 };

/* Tables with scalar's bits come first. */
static const char *tables[MAX_TABLES];
static int usual_count, all_count;

static bool has_scalar_bits(const attn_isa *isa)
{
    return (isa->f32->bits | isa->f16->bits | isa->bf16->bits) == ATTN_BITS_SCALAR;
}

static void find_tables(bool same_bits)
{
    int all;
    const attn_isa *isas = attn_isas(&all);
    uint32_t features = attn_cpu_features();
    for (int i = 0; i < all && all_count < MAX_TABLES; i++) {
        if (has_scalar_bits(&isas[i]) != same_bits) {
            continue;
        }
#if defined(ONLY_EMULATED) || defined(ONLY_THREADS)
        /* avx2 stands for scalar, which gives its bits in other builds, and is slow */
        if (strcmp(isas[i].name, "scalar") == 0 && (features & ATTN_CPU_AVX2) != 0) {
            continue;
        }
#endif
        if ((isas[i].needs & ~features) != 0) {
            fprintf(stderr, "SKIPPED table %s: this CPU or emulator lacks it\n", isas[i].name);
        } else {
            tables[all_count++] = isas[i].name;
        }
    }
}

const char *const *tables_names(int *count)
{
    if (all_count == 0) {
        find_tables(true);
        usual_count = all_count;
        find_tables(false);
    }
    *count = usual_count;
    return tables;
}

const char *tables_usual(void)
{
    int count;
    const char *const *names = tables_names(&count);
    return names[count - 1];
}

const char *const *tables_own_bits(int *count)
{
    int usual;
    const char *const *names = tables_names(&usual);
    *count = all_count - usual;
    return names + usual;
}

/* The microkernels of a table for a type and flags. */
static const attn_ukernel *table_of(const char *name, int32_t dtype, uint64_t flags)
{
    int count;
    const attn_isa *isas = attn_isas(&count);
    const attn_problem problem = {.q.dtype = dtype,
                                  .precise = (flags & ATTN_PRECISE) != 0,
                                  .bf16x3 = (flags & ATTN_BF16X3) != 0};
    const attn_ukernel *table = NULL;
    for (int i = 0; i < count; i++) {
        table = strcmp(name, isas[i].name) == 0 ? attn_cpu_table(&isas[i], 0, &problem) : table;
    }
    return table;
}

const char *const *tables_that_agree(int32_t dtype, uint64_t flags, int *count)
{
    const char *const *names = tables_names(count);
    while (*count < all_count && table_of(names[*count], dtype, flags)->bits == ATTN_BITS_SCALAR) {
        ++*count;
    }
    return names;
}

errors_limits tables_allowed(const char *table, int32_t dtype, uint64_t flags)
{
    if (table == NULL) {
        return errors_allowed(0, 0);
    }
    const attn_losses losses = table_of(table, dtype, flags)->losses;
    return errors_allowed(losses.inputs, losses.weights);
}

bool tables_flush(const char *table)
{
    return table_of(table, ATTN_BF16, 0)->flushes;
}

static attn_context *cache[MAX_TABLES + 1][MAX_THREADS + 1];

static void close_all(void)
{
    for (int i = 0; i <= MAX_TABLES; i++) {
        for (int n = 0; n <= MAX_THREADS; n++) {
            attn_context_destroy(cache[i][n]);
        }
    }
}

/* The row of the cache: a table's place in the list, or the last for the best table. */
static int place_of(const char *table)
{
    for (int i = 0; i < all_count; i++) {
        if (tables[i] == table) {
            return i;
        }
    }
    return MAX_TABLES;
}

attn_context *tables_context(const char *table, int threads)
{
    static int registered;
    attn_context **context = &cache[place_of(table)][threads];
    if (*context == NULL) {
        attn_context_config config = {
            .struct_size = sizeof config, .threads = threads, .cpu = table};
        if (attn_context_create(&config, context) != ATTN_OK) {
            fprintf(stderr, "no context for table %s: %s\n", table ? table : "(best)",
                    attn_last_error());
            exit(1);
        }
        if (!registered) {
            registered = atexit(close_all) == 0;
        }
    }
    return *context;
}
