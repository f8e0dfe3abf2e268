/*
 * fuzz_cache.c: bytes as calls of attn_cache_*.
 *
 * The bytes choose pools of pages, up to two fields of the config that are replaced by any value,
 * and then calls with any numbers. Beside the cache stands a model of it: the marks of each
 * sequence's rows, written to K, V and their scales through the cache's own view. After each call
 * every sequence reads back its marks, whatever was forked, copied or dropped, and pages that are
 * named by no sequence are as many as the cache says.
 */
#include "views.h"

#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 4, LENGTH = 24, PAGES = 12, CALLS = 60 };

typedef struct model {
    bool used;
    int64_t length;
    uint8_t mark[LENGTH]; /* of each row */
} model;

typedef struct trial {
    views all;
    attn_cache_config config;
    attn_cache *cache;
    model sequence[SEQUENCES];
    uint8_t next; /* mark */
} trial;

/* ---- pools ----------------------------------------------------------------------------------- */

static void create_pool(trial *t, input *in, attn_tensor *pool, attn_tensor *scale,
                        const int64_t rows[3])
{
    const int32_t types[] = {ATTN_F64, ATTN_F32,  ATTN_F16,  ATTN_BF16,
                             ATTN_I8,  ATTN_E4M3, ATTN_E5M2, ATTN_I4X2};
    const int32_t dtype = types[below(in, 8)];
    const int64_t shape[4] = {rows[0], rows[1], rows[2], 1 + below(in, 3)};
    const bool own = flip(in);
    const int64_t factors[4] = {own ? rows[0] : 1, own ? rows[1] : 1, rows[2], 1};
    views_create(&t->all, in, pool, true, dtype, shape);
    if (dtype >= ATTN_I8) {
        views_create(&t->all, in, scale, own, ATTN_F32, factors);
    }
}

static void create(trial *t, input *in)
{
    attn_cache_config *c = &t->config;
    memset(t, 0, sizeof *t);
    c->struct_size = sizeof *c;
    int64_t rows[3];
    rows[0] = below(in, PAGES + 1), rows[1] = 1 + below(in, 5), rows[2] = 1 + below(in, 2);
    create_pool(t, in, &c->k, &c->k_scale, rows);
    create_pool(t, in, &c->v, &c->v_scale, rows);
    c->sequences = below(in, SEQUENCES + 1), c->length = below(in, LENGTH + 1);
}

static void change(trial *t, input *in)
{
    const int64_t value = wild(in);
    switch (below(in, 5)) {
    case 0:
        t->config.sequences = value;
        break;
    case 1:
        t->config.length = value;
        break;
    case 2:
        t->config.struct_size =
            (uint64_t)value < sizeof t->config ? (uint64_t)value & ~(uint64_t)7 : 0;
        break;
    default:
        views_change(t->all.list[below(in, t->all.count)].tensor, in);
        break;
    }
}

/* ---- the model beside the cache -------------------------------------------------------------- */

/* The first byte of row `key` of a sequence, in a tensor that has pages. */
static char *byte_of(const attn_tensor *pool, const int32_t *pages, int64_t page_size, int64_t key)
{
    const int64_t size = (int64_t)attn_dtype_size(pool->dtype), row = key % page_size,
                  page = pages[key / page_size];
    REQUIRE(page >= 0 && page < pool->shape[0]);
    const int64_t at =
        (page > 0 ? page * pool->stride[0] : 0) + (row > 0 ? row * pool->stride[1] : 0);
    return (char *)pool->data + at * size;
}

/* Writes or checks a row's mark in each tensor that has the row. */
static void mark(const trial *t, const int32_t *pages, int64_t key, uint8_t value, bool write)
{
    const attn_cache_config *c = &t->config;
    const attn_tensor *const pools[] = {&c->k, &c->v, &c->k_scale, &c->v_scale};
    for (int i = 0; i < 4; i++) {
        if (pools[i]->data && (i < 2 || pools[i]->shape[0] == c->k.shape[0]) &&
            pools[i]->shape[1] == c->k.shape[1]) {
            char *at = byte_of(pools[i], pages, c->k.shape[1], key);
            if (write) {
                *at = (char)value;
            }
            REQUIRE(*at == (char)value);
        }
    }
}

/* The table's row of a sequence in use; its length is the model's. */
static void look(const trial *t, int64_t sequence, int32_t *pages)
{
    attn_forward_args args = {.struct_size = sizeof args};
    int64_t length = -1;
    REQUIRE(attn_cache_view(t->cache, &sequence, 1, pages, &length, &args) == ATTN_OK);
    REQUIRE(length == t->sequence[sequence].length && args.k.data == t->config.k.data);
}

static void check_model(const trial *t)
{
    const int64_t page_size = t->config.k.shape[1];
    bool named[PAGES] = {false};
    int32_t pages[LENGTH];
    int64_t free_pages, count = 0;
    for (int64_t s = 0; s < t->config.sequences; s++) {
        const model *m = &t->sequence[s];
        if (m->used) {
            look(t, s, pages);
        }
        for (int64_t key = 0; m->used && key < m->length; key++) {
            mark(t, pages, key, m->mark[key], false);
            count += !named[pages[key / page_size]];
            named[pages[key / page_size]] = true;
        }
    }
    REQUIRE(attn_cache_free_pages(t->cache, &free_pages) == ATTN_OK);
    REQUIRE(free_pages == t->config.k.shape[0] - count);
}

static bool in_use(const trial *t, int64_t sequence)
{
    return sequence >= 0 && sequence < t->config.sequences && t->sequence[sequence].used;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int64_t draw_number(input *in)
{
    return below(in, 8) == 0 ? wild(in) : below(in, LENGTH / 2);
}

static int64_t draw_sequence(input *in)
{
    return below(in, 16) == 0 ? wild(in) : below(in, SEQUENCES);
}

static void call_alloc(trial *t)
{
    int64_t made = -7;
    const bool ok = attn_cache_alloc(t->cache, &made) == ATTN_OK;
    REQUIRE(ok ? made >= 0 && made < t->config.sequences && !t->sequence[made].used : made == -7);
    if (ok) {
        t->sequence[made] = (model){.used = true};
    }
}

static void call_fork(trial *t, int64_t sequence, int64_t length)
{
    int64_t made = -7;
    const bool ok = attn_cache_fork(t->cache, sequence, length, &made) == ATTN_OK;
    REQUIRE(ok ? in_use(t, sequence) && !in_use(t, made) : made == -7);
    if (ok) {
        REQUIRE(length >= 0 && length <= t->sequence[sequence].length);
        t->sequence[made] = t->sequence[sequence];
        t->sequence[made].length = length;
    }
}

static void call_extend(trial *t, int64_t sequence, int64_t rows)
{
    if (attn_cache_extend(t->cache, sequence, rows) != ATTN_OK) {
        return;
    }
    REQUIRE(in_use(t, sequence) && rows >= 0);
    model *m = &t->sequence[sequence];
    int32_t pages[LENGTH];
    m->length += rows;
    REQUIRE(m->length <= t->config.length);
    look(t, sequence, pages);
    for (int64_t key = m->length - rows; key < m->length; key++) {
        m->mark[key] = t->next++;
        mark(t, pages, key, m->mark[key], true);
    }
}

static void call_drop(trial *t, int64_t sequence, int64_t length, bool all)
{
    const attn_status status =
        all ? attn_cache_free(t->cache, sequence) : attn_cache_truncate(t->cache, sequence, length);
    REQUIRE(
        (status == ATTN_OK) ==
        (in_use(t, sequence) && (all || (length >= 0 && length <= t->sequence[sequence].length))));
    if (status == ATTN_OK) {
        t->sequence[sequence].used = !all;
        t->sequence[sequence].length = all ? 0 : length;
    }
}

static void call(trial *t, input *in)
{
    const int64_t which = below(in, 8), sequence = draw_sequence(in), number = draw_number(in);
    if (which == 0) {
        call_alloc(t);
    } else if (which < 3) {
        call_fork(t, sequence, number);
    } else if (which < 6) {
        call_extend(t, sequence, number);
    } else {
        call_drop(t, sequence, number, which == 7);
    }
    check_model(t);
}

/* A config that was changed is opened in memory of exactly its size, if that is little. */
static void check(trial *t, input *in, bool changed)
{
    uint64_t bytes = 0;
    const attn_status status = attn_cache_bytes(&t->config, &bytes);
    REQUIRE(changed || status == ATTN_OK);
    if (bytes > 1 << 20) {
        return;
    }
    void *memory = malloc(bytes + 1);
    REQUIRE(memory != NULL);
    const attn_status opened = attn_cache_open(&t->config, memory, bytes, &t->cache);
    REQUIRE(opened == status && (t->cache != NULL) == (status == ATTN_OK));
    for (int n = 0; n < CALLS && !changed && in->at < in->end; n++) {
        call(t, in);
    }
    attn_cache_close(t->cache);
    free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    trial t;
    create(&t, &in);
    const int64_t changes = below(&in, 4) == 0 ? 1 + below(&in, 2) : 0;
    for (int64_t n = 0; n < changes; n++) {
        change(&t, &in);
    }
    check(&t, &in, changes > 0);
    views_free(&t.all);
    return 0;
}
