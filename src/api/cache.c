/*
 * cache.c: a pool of pages with the tables of its sequences (attn_cache_*), in the caller's memory.
 * Each page counts the sequences that name it; a sequence writes only to pages that no other one
 * names. One lock guards everything: the work under it takes less time than a step of decoding. Not
 * here: attention.
 */
#include "api/args.h"
#include "core/arena.h"
#include "core/codes.h"
#include "system/system.h"
#include <stddef.h>
#include <string.h>

struct attn_cache {
    attn_cache_config config;
    attn_lock lock;
    int64_t page_size, columns; /* of the table */
    int64_t free_pages, free_sequences;
    int32_t *free_page;     /* [pages]: a stack */
    int32_t *shares;        /* [pages]: sequences that have the page */
    int64_t *free_sequence; /* [sequences]: a stack */
    int64_t *length;        /* [sequences]; -1: free */
    int32_t *table;         /* [sequences][columns] */
};

/* ---- memory ---------------------------------------------------------------------------------- */

/* Scales and shifts lie in the pages of their codes, or are shared by all pages. */
static attn_status check_factors(const attn_cache_config *config)
{
    static const attn_code_names k = {"k", "k_scale", "k_shift"}, v = {"v", "v_scale", "v_shift"};
    const int64_t k_columns = config->k.shape[3] * attn_code_columns(config->k.dtype),
                  v_columns = config->v.shape[3] * attn_code_columns(config->v.dtype);
    TRY(attn_check_factors(&k, &config->k, &config->k_scale, &config->k_shift, k_columns, true));
    return attn_check_factors(&v, &config->v, &config->v_scale, &config->v_shift, v_columns, true);
}

static attn_status check_config(const attn_cache_config *config)
{
    const attn_tensor *k = &config->k, *v = &config->v;
    TRY(attn_check_tensor("k", k, ATTN_FLOAT_TYPES | ATTN_CODE_TYPES, true));
    TRY(attn_check_tensor("v", v, ATTN_FLOAT_TYPES | ATTN_CODE_TYPES, true));
    TRY(attn_check_extents("v", v, "k", k, 3));
    if (k->shape[0] > INT32_MAX || k->shape[1] < 1) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "k.shape = (%lld, %lld, ..), must be below 2^31 pages of at least 1 row",
                         (long long)k->shape[0], (long long)k->shape[1]);
    }
    if (config->sequences < 0 || config->length < 0 || config->length > INT64_MAX / 2) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "sequences = %lld and length = %lld must be at least 0, length below 2^62",
                         (long long)config->sequences, (long long)config->length);
    }
    return check_factors(config);
}

static int64_t pages_for(const attn_cache *cache, int64_t length)
{
    return length / cache->page_size + (length % cache->page_size != 0);
}

/* Places the arrays behind the struct. With `base` NULL it only counts their bytes. */
static attn_status lay_out(attn_cache *cache, char *base, uint64_t *bytes)
{
    attn_arena arena = {0};
    const int64_t pages = cache->config.k.shape[0], sequences = cache->config.sequences;
    cache->page_size = cache->config.k.shape[1];
    cache->columns = pages_for(cache, cache->config.length);
    (void)attn_arena_take(&arena, 1, 1, sizeof *cache);
    const uint64_t at[] = {
        attn_arena_take(&arena, 1, pages, sizeof(int32_t)),
        attn_arena_take(&arena, 1, pages, sizeof(int32_t)),
        attn_arena_take(&arena, 1, sequences, sizeof(int64_t)),
        attn_arena_take(&arena, 1, sequences, sizeof(int64_t)),
        attn_arena_take(&arena, sequences, cache->columns, sizeof(int32_t)),
    };
    if (base) {
        cache->free_page = (int32_t *)(void *)(base + at[0]);
        cache->shares = (int32_t *)(void *)(base + at[1]);
        cache->free_sequence = (int64_t *)(void *)(base + at[2]);
        cache->length = (int64_t *)(void *)(base + at[3]);
        cache->table = (int32_t *)(void *)(base + at[4]);
    }
    return attn_arena_room(&arena, "bookkeeping", bytes);
}

attn_status attn_cache_bytes(const attn_cache_config *config, uint64_t *bytes)
{
    attn_cache cache = {.page_size = 0};
    if (bytes == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "bytes is NULL");
    }
    *bytes = 0;
    TRY(attn_copy_args(&cache.config, sizeof cache.config, config, "attn_cache_config"));
    TRY(check_config(&cache.config));
    return lay_out(&cache, NULL, bytes);
}

attn_status attn_cache_open(const attn_cache_config *config, void *memory, uint64_t bytes,
                            attn_cache **cache)
{
    attn_cache made = {.page_size = 0};
    uint64_t needed = 0;
    if (cache == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "cache is NULL");
    }
    *cache = NULL;
    TRY(attn_copy_args(&made.config, sizeof made.config, config, "attn_cache_config"));
    TRY(check_config(&made.config));
    TRY(lay_out(&made, NULL, &needed));
    if (memory == NULL || bytes < needed) {
        return memory == NULL
                   ? attn_fail(ATTN_ERR_WORKSPACE, "memory is NULL, needed are %llu bytes",
                               (unsigned long long)needed)
                   : attn_fail(ATTN_ERR_WORKSPACE, "memory of %llu bytes, needed are %llu",
                               (unsigned long long)bytes, (unsigned long long)needed);
    }
    char *base = (char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    TRY(lay_out(&made, base, &needed));
    made.free_pages = made.config.k.shape[0], made.free_sequences = made.config.sequences;
    for (int64_t i = 0; i < made.free_pages; i++) {
        made.free_page[i] = (int32_t)(made.free_pages - 1 - i), made.shares[i] = 0;
    }
    for (int64_t i = 0; i < made.free_sequences; i++) {
        made.free_sequence[i] = made.free_sequences - 1 - i, made.length[i] = -1;
    }
    attn_cache *const at = (attn_cache *)(void *)base;
    memcpy(at, &made, sizeof made);
    if (!attn_lock_init(&at->lock)) {
        return attn_fail(ATTN_ERR_OUT_OF_MEMORY, "a mutex cannot be made");
    }
    *cache = at;
    return ATTN_OK;
}

void attn_cache_close(attn_cache *cache)
{
    if (cache) {
        attn_lock_destroy(&cache->lock);
    }
}

/* ---- pages, with the lock held --------------------------------------------------------------- */

static int32_t *table_row(const attn_cache *cache, int64_t sequence)
{
    return cache->table + sequence * cache->columns;
}

static attn_status check_sequence(const attn_cache *cache, int64_t sequence)
{
    return sequence >= 0 && sequence < cache->config.sequences && cache->length[sequence] >= 0
               ? ATTN_OK
               : attn_fail(ATTN_ERR_INVALID_ARGUMENT, "sequence %lld is not in use",
                           (long long)sequence);
}

static int32_t take_page(attn_cache *cache)
{
    const int32_t page = cache->free_page[--cache->free_pages];
    cache->shares[page] = 1;
    return page;
}

static void drop_page(attn_cache *cache, int32_t page)
{
    if (--cache->shares[page] == 0) {
        cache->free_page[cache->free_pages++] = page;
    }
}

static void shorten(attn_cache *cache, int64_t sequence, int64_t length)
{
    const int64_t kept = pages_for(cache, length);
    for (int64_t i = pages_for(cache, cache->length[sequence]); i > kept; i--) {
        drop_page(cache, table_row(cache, sequence)[i - 1]);
    }
    cache->length[sequence] = length;
}

static void copy_rows(const attn_tensor *pool, int64_t to, int64_t from, int64_t rows)
{
    const size_t size = (size_t)attn_element_size(pool->dtype);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t head = 0; head < pool->shape[2]; head++) {
            for (int64_t c = 0; c < pool->shape[3]; c++) {
                memcpy(attn_at(pool, to, row, head, c), attn_at(pool, from, row, head, c), size);
            }
        }
    }
}

/* Copies the first rows of a page. */
static attn_status copy_page(const attn_cache_config *config, int64_t to, int64_t from,
                             int64_t rows)
{
    const attn_tensor *const paged[] = {&config->k,       &config->v,       &config->k_scale,
                                        &config->k_shift, &config->v_scale, &config->v_shift};
    if (config->copy) {
        const attn_status status = config->copy(config->user, to, from, rows);
        return status ? attn_fail(status, "copy of page %lld failed", (long long)from) : ATTN_OK;
    }
    for (int i = 0; i < 6; i++) {
        if (attn_tensor_present(paged[i]) && paged[i]->shape[0] == config->k.shape[0]) {
            const int64_t most = paged[i]->shape[1];
            copy_rows(paged[i], to, from, rows < most ? rows : most);
        }
    }
    return ATTN_OK;
}

/* Replaces a shared page of the sequence by a page of its own with the sequence's rows. */
static attn_status own_page(attn_cache *cache, int32_t *entry, int64_t rows)
{
    const int32_t page = take_page(cache), shared = *entry;
    const attn_status status = copy_page(&cache->config, page, shared, rows);
    *entry = status == ATTN_OK ? page : shared;
    drop_page(cache, status == ATTN_OK ? shared : page);
    return status;
}

static attn_status extend(attn_cache *cache, int64_t sequence, int64_t rows)
{
    const int64_t length = cache->length[sequence], part = length % cache->page_size;
    if (rows < 0 || rows > cache->config.length - length) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "rows = %lld, must be in [0, %lld]: the sequence has %lld keys",
                         (long long)rows, (long long)(cache->config.length - length),
                         (long long)length);
    }
    int32_t *entries = table_row(cache, sequence);
    const int64_t have = pages_for(cache, length), want = pages_for(cache, length + rows);
    const bool shared = rows > 0 && part > 0 && cache->shares[entries[have - 1]] > 1;
    if (want - have + shared > cache->free_pages) {
        return attn_fail(ATTN_ERR_OUT_OF_MEMORY, "%lld pages are wanted, %lld of %lld are free",
                         (long long)(want - have + shared), (long long)cache->free_pages,
                         (long long)cache->config.k.shape[0]);
    }
    if (shared) {
        TRY(own_page(cache, &entries[have - 1], part));
    }
    for (int64_t i = have; i < want; i++) {
        entries[i] = take_page(cache);
    }
    cache->length[sequence] = length + rows;
    return ATTN_OK;
}

static attn_status take_sequence(attn_cache *cache, int64_t *sequence)
{
    if (cache->free_sequences == 0) {
        return attn_fail(ATTN_ERR_OUT_OF_MEMORY, "all %lld sequences are in use",
                         (long long)cache->config.sequences);
    }
    *sequence = cache->free_sequence[--cache->free_sequences];
    cache->length[*sequence] = 0;
    return ATTN_OK;
}

static attn_status fork_sequence(attn_cache *cache, int64_t sequence, int64_t length,
                                 int64_t *forked)
{
    TRY(check_sequence(cache, sequence));
    if (length < 0 || length > cache->length[sequence]) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "length = %lld, must be in [0, %lld]",
                         (long long)length, (long long)cache->length[sequence]);
    }
    TRY(take_sequence(cache, forked));
    for (int64_t i = 0; i < pages_for(cache, length); i++) {
        const int32_t page = table_row(cache, sequence)[i];
        table_row(cache, *forked)[i] = page;
        cache->shares[page]++;
    }
    cache->length[*forked] = length;
    return ATTN_OK;
}

static attn_status view(const attn_cache *cache, const int64_t *sequences, int64_t count,
                        int32_t *table, int64_t *lengths)
{
    for (int64_t i = 0; i < count; i++) {
        TRY(check_sequence(cache, sequences[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        lengths[i] = cache->length[sequences[i]];
        const int64_t pages = pages_for(cache, lengths[i]);
        for (int64_t page = 0; page < cache->columns; page++) {
            table[i * cache->columns + page] =
                page < pages ? table_row(cache, sequences[i])[page] : -1;
        }
    }
    return ATTN_OK;
}

/* ---- the public functions: each of them under the lock --------------------------------------- */

static attn_status enter(attn_cache *cache, const void *needed, const char *name)
{
    if (cache == NULL || needed == NULL) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s is NULL", cache ? name : "cache");
    }
    attn_lock_take(&cache->lock);
    return ATTN_OK;
}

static attn_status leave(attn_cache *cache, attn_status status)
{
    attn_lock_give(&cache->lock);
    return status;
}

attn_status attn_cache_alloc(attn_cache *cache, int64_t *sequence)
{
    TRY(enter(cache, sequence, "sequence"));
    return leave(cache, take_sequence(cache, sequence));
}

attn_status attn_cache_free(attn_cache *cache, int64_t sequence)
{
    TRY(enter(cache, cache, "cache"));
    const attn_status status = check_sequence(cache, sequence);
    if (status == ATTN_OK) {
        shorten(cache, sequence, 0);
        cache->length[sequence] = -1;
        cache->free_sequence[cache->free_sequences++] = sequence;
    }
    return leave(cache, status);
}

attn_status attn_cache_fork(attn_cache *cache, int64_t sequence, int64_t length, int64_t *forked)
{
    TRY(enter(cache, forked, "forked"));
    return leave(cache, fork_sequence(cache, sequence, length, forked));
}

attn_status attn_cache_extend(attn_cache *cache, int64_t sequence, int64_t rows)
{
    TRY(enter(cache, cache, "cache"));
    const attn_status status = check_sequence(cache, sequence);
    return leave(cache, status == ATTN_OK ? extend(cache, sequence, rows) : status);
}

attn_status attn_cache_truncate(attn_cache *cache, int64_t sequence, int64_t length)
{
    TRY(enter(cache, cache, "cache"));
    attn_status status = check_sequence(cache, sequence);
    if (status == ATTN_OK && (length < 0 || length > cache->length[sequence])) {
        status = attn_fail(ATTN_ERR_INVALID_ARGUMENT, "length = %lld, must be in [0, %lld]",
                           (long long)length, (long long)cache->length[sequence]);
    } else if (status == ATTN_OK) {
        shorten(cache, sequence, length);
    }
    return leave(cache, status);
}

/* Checks that the caller's struct has all fields that a view sets; v_shift is the last one. */
static attn_status check_args(const attn_forward_args *args)
{
    const uint64_t least = offsetof(attn_forward_args, v_shift) + sizeof args->v_shift;
    attn_forward_args known;
    TRY(attn_copy_args(&known, sizeof known, args, "attn_forward_args"));
    return known.struct_size >= least
               ? ATTN_OK
               : attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                           "args.struct_size = %llu, but its fields up to v_shift take %llu bytes",
                           (unsigned long long)known.struct_size, (unsigned long long)least);
}

attn_status attn_cache_view(attn_cache *cache, const int64_t *sequences, int64_t count,
                            int32_t *table, int64_t *lengths, attn_forward_args *args)
{
    const char *absent = !sequences ? "sequences" : !table ? "table" : !lengths ? "lengths" : NULL;
    if (count < 0) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "count = %lld is negative", (long long)count);
    }
    if (count > 0 && absent) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s is NULL, but count = %lld", absent,
                         (long long)count);
    }
    TRY(check_args(args));
    TRY(enter(cache, args, "args"));
    const attn_status status = view(cache, sequences, count, table, lengths);
    if (status == ATTN_OK) {
        args->k = cache->config.k, args->v = cache->config.v;
        args->k_scale = cache->config.k_scale, args->k_shift = cache->config.k_shift;
        args->v_scale = cache->config.v_scale, args->v_shift = cache->config.v_shift;
        /* NULL, allowed for no sequences, would be an absent tensor */
        table = table ? table : cache->table, lengths = lengths ? lengths : cache->length;
        args->block_table = attn_tensor_bshd(table, ATTN_I32, count, cache->columns, 1, 1);
        args->seqused_k = attn_tensor_bshd(lengths, ATTN_I64, count, 1, 1, 1);
    }
    return leave(cache, status);
}

attn_status attn_cache_free_pages(attn_cache *cache, int64_t *pages)
{
    TRY(enter(cache, pages, "pages"));
    *pages = cache->free_pages;
    return leave(cache, ATTN_OK);
}
