/*
 * test_cache.c: the pool of pages (attn_cache_*): random programs of several threads against plain
 * arrays, forks and copies on write, sizes, and errors that leave everything as it was.
 */
#include "inputs.h"
#include "region.h"

#include <attn/attn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef SLOW
enum { OPERATIONS = 20000 };
#else
enum { OPERATIONS = 1000000 };
#endif
enum { THREADS = 8, D = 4, MOST_KEYS = 96, OWN = 6, PROMPT = 21, PAGES = 32 };

/* A cache over memory that ends at an inaccessible page. */
typedef struct pool {
    attn_cache_config config;
    attn_cache *cache;
    guarded_region memory;
    float *k, *v;
    int64_t columns;
} pool;

static pool pool_open(int64_t pages, int64_t page_size, int64_t sequences)
{
    const size_t floats = (size_t)(pages * page_size * D);
    pool p = {.k = malloc(floats * sizeof(float)), .v = malloc(floats * sizeof(float))};
    uint64_t bytes = 0;
    assert_true(p.k && p.v);
    memset(p.k, 0xFF, floats * sizeof(float));
    memset(p.v, 0xFF, floats * sizeof(float));
    p.config = (attn_cache_config){
        .struct_size = sizeof p.config,
        .k = attn_tensor_bshd(p.k, ATTN_F32, pages, page_size, 1, D),
        .v = attn_tensor_bshd(p.v, ATTN_F32, pages, page_size, 1, D),
        .sequences = sequences,
        .length = MOST_KEYS,
    };
    p.columns = (MOST_KEYS + page_size - 1) / page_size;
    assert_int_equal(attn_cache_bytes(&p.config, &bytes), ATTN_OK);
    assert_true(region_create(&p.memory, bytes, PLACE_GUARD_AFTER));
    assert_int_equal(attn_cache_open(&p.config, p.memory.first, bytes, &p.cache), ATTN_OK);
    return p;
}

static void pool_close(pool *p)
{
    attn_cache_close(p->cache);
    region_free(&p->memory);
    free(p->k);
    free(p->v);
}

/* ---- the model: each sequence an array of rows, of which one number is known --------------- */

typedef struct model {
    int64_t sequence, length;
    float row[MOST_KEYS];
} model;

typedef struct worker {
    pool *p;
    const model *prompt; /* that all threads fork */
    attn_context *context;
    model own[OWN];
    int count;
    uint64_t turn, seed;
    int64_t lacked; /* calls that found no page */
    const char *wrong;
} worker;

static int64_t choice(worker *w, int64_t n)
{
    return (int64_t)(inputs_bits(w->seed, 0, (int64_t)w->turn++) % (uint64_t)n);
}

static float *place(const pool *p, float *pool_rows, const int32_t *table, int64_t key)
{
    const int64_t size = p->config.k.shape[1];
    return pool_rows + (table[key / size] * size + key % size) * D;
}

static bool see(worker *w, const model *m, int32_t *table)
{
    int64_t length = 0;
    attn_forward_args args = {.struct_size = sizeof args};
    return attn_cache_view(w->p->cache, &m->sequence, 1, table, &length, &args) == ATTN_OK &&
           length == m->length;
}

/* Checks that the rows that were given are there, in the order of the array. */
static void check_rows(worker *w, const model *m)
{
    int32_t table[MOST_KEYS];
    if (!see(w, m, table)) {
        w->wrong = "the length of a sequence";
        return;
    }
    for (int64_t key = 0; key < m->length; key++) {
        if (*place(w->p, w->p->k, table, key) != m->row[key] ||
            place(w->p, w->p->v, table, key)[D - 1] != -m->row[key]) {
            w->wrong = "a row of a sequence";
        }
    }
}

/* Checks that attention over the pages has the bits of attention over the array. */
static void check_attention(worker *w, const model *m)
{
    float k[MOST_KEYS * D], v[MOST_KEYS * D], q[D] = {0.1f, 0.2f, -0.3f, 0.1f}, o[D], paged_o[D];
    int32_t table[MOST_KEYS];
    int64_t length;
    for (int64_t i = 0; i < m->length * D; i++) {
        k[i] = m->row[i / D], v[i] = -m->row[i / D];
    }
    attn_forward_args a = {.struct_size = sizeof a, .flags = ATTN_CAUSAL};
    a.q = attn_tensor_bshd(q, ATTN_F32, 1, 1, 1, D),
    a.o = attn_tensor_bshd(o, ATTN_F32, 1, 1, 1, D);
    attn_forward_args paged = a;
    a.k = attn_tensor_bshd(k, ATTN_F32, 1, m->length, 1, D);
    a.v = attn_tensor_bshd(v, ATTN_F32, 1, m->length, 1, D);
    paged.o.data = paged_o;
    if (attn_cache_view(w->p->cache, &m->sequence, 1, table, &length, &paged) != ATTN_OK ||
        attn_forward(w->context, &a) != ATTN_OK || attn_forward(w->context, &paged) != ATTN_OK ||
        memcmp(o, paged_o, sizeof o) != 0) {
        w->wrong = "attention over a sequence";
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

/* True if the call worked; false if it found no page or no sequence. Notes any other error. */
static bool worked(worker *w, attn_status status)
{
    if (status != ATTN_OK && status != ATTN_ERR_OUT_OF_MEMORY) {
        w->wrong = "a status";
    }
    w->lacked += status == ATTN_ERR_OUT_OF_MEMORY;
    return status == ATTN_OK;
}

static void append(worker *w, model *m, int64_t rows)
{
    int32_t table[MOST_KEYS];
    rows = rows < MOST_KEYS - m->length ? rows : MOST_KEYS - m->length;
    if (!worked(w, attn_cache_extend(w->p->cache, m->sequence, rows))) {
        return;
    }
    m->length += rows;
    if (!see(w, m, table)) {
        w->wrong = "the view after an extension";
        return;
    }
    for (int64_t key = m->length - rows; key < m->length; key++) {
        m->row[key] = (float)choice(w, 1 << 20) / 1024;
        for (int c = 0; c < D; c++) {
            place(w->p, w->p->k, table, key)[c] = m->row[key];
            place(w->p, w->p->v, table, key)[c] = -m->row[key];
        }
    }
}

static void begin(worker *w)
{
    model *m = &w->own[w->count];
    const int64_t what = choice(w, 3);
    const model *from = what == 1 || w->count == 0 ? w->prompt : &w->own[choice(w, w->count)];
    if (what == 0) {
        m->length = 0;
        w->count += worked(w, attn_cache_alloc(w->p->cache, &m->sequence));
        return;
    }
    m->length = choice(w, from->length + 1);
    memcpy(m->row, from->row, sizeof m->row);
    w->count += worked(w, attn_cache_fork(w->p->cache, from->sequence, m->length, &m->sequence));
}

static void end(worker *w, int i)
{
    if (attn_cache_free(w->p->cache, w->own[i].sequence) != ATTN_OK) {
        w->wrong = "a free";
    }
    w->own[i] = w->own[--w->count];
}

static void operate(worker *w)
{
    const int64_t what = choice(w, 100);
    if (w->count == 0 || (what < 10 && w->count < OWN)) {
        begin(w);
        return;
    }
    const int i = (int)choice(w, w->count);
    model *m = &w->own[i];
    if (what < 15) {
        end(w, i);
    } else if (what < 25) {
        m->length = choice(w, m->length + 1);
        if (attn_cache_truncate(w->p->cache, m->sequence, m->length) != ATTN_OK) {
            w->wrong = "a truncation";
        }
    } else if (what < 85) {
        append(w, m, 1 + choice(w, 5));
    } else if (what < 98) {
        check_rows(w, m);
    } else {
        check_attention(w, m);
    }
}

static void *run_worker(void *arg)
{
    worker *w = arg;
    for (int64_t n = 0; n < OPERATIONS / THREADS && w->wrong == NULL; n++) {
        operate(w);
    }
    for (int i = 0; i < w->count && w->wrong == NULL; i++) {
        check_rows(w, &w->own[i]);
    }
    while (w->count > 0) {
        end(w, 0);
    }
    return NULL;
}

/* Fewer pages than the sequences of one thread want: threads may run one after the other. */
static void test_random_programs(void **state)
{
    static worker workers[THREADS];
    pthread_t id[THREADS];
    pool p = pool_open(PAGES, 5, THREADS * OWN - 4);
    model prompt = {0};
    int64_t pages, lacked = 0;
    attn_context_config one = {.struct_size = sizeof one, .threads = 1};
    attn_context *context;
    (void)state;
    assert_int_equal(attn_context_create(&one, &context), ATTN_OK);
    assert_int_equal(attn_cache_alloc(p.cache, &prompt.sequence), ATTN_OK);
    workers[0] = (worker){.p = &p, .seed = 99};
    append(&workers[0], &prompt, PROMPT);
    for (int i = 0; i < THREADS; i++) {
        workers[i] =
            (worker){.p = &p, .prompt = &prompt, .context = context, .seed = (uint64_t)i + 1};
        assert_int_equal(pthread_create(&id[i], NULL, run_worker, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(id[i], NULL), 0);
        if (workers[i].wrong != NULL) {
            fail_msg("thread %d: %s is wrong", i, workers[i].wrong);
        }
        lacked += workers[i].lacked;
    }
    workers[0] = (worker){.p = &p};
    check_rows(&workers[0], &prompt);
    assert_null(workers[0].wrong);
    assert_true(lacked > 0); /* or else the programs never met the end of the pages */
    assert_int_equal(attn_cache_free(p.cache, prompt.sequence), ATTN_OK);
    assert_int_equal(attn_cache_free_pages(p.cache, &pages), ATTN_OK);
    assert_int_equal(pages, PAGES);
    attn_context_destroy(context);
    pool_close(&p);
}

/* ---- by hand --------------------------------------------------------------------------------- */

static int64_t free_pages(const pool *p)
{
    int64_t pages = -1;
    assert_int_equal(attn_cache_free_pages(p->cache, &pages), ATTN_OK);
    return pages;
}

/* A fork takes no page; the first of the two to write takes one, the other none. */
static void test_copy_on_write(void **state)
{
    pool p = pool_open(10, 4, 3);
    int64_t a, b;
    (void)state;
    assert_int_equal(attn_cache_alloc(p.cache, &a), ATTN_OK);
    assert_int_equal(attn_cache_extend(p.cache, a, 6), ATTN_OK);
    assert_int_equal(free_pages(&p), 8);
    assert_int_equal(attn_cache_fork(p.cache, a, 6, &b), ATTN_OK);
    assert_int_equal(free_pages(&p), 8);
    assert_int_equal(attn_cache_extend(p.cache, b, 1), ATTN_OK);
    assert_int_equal(free_pages(&p), 7);
    assert_int_equal(attn_cache_extend(p.cache, a, 2), ATTN_OK);
    assert_int_equal(free_pages(&p), 7);
    assert_int_equal(attn_cache_free(p.cache, a), ATTN_OK);
    assert_int_equal(free_pages(&p), 8); /* b still has the first page, and its own */
    assert_int_equal(attn_cache_truncate(p.cache, b, 0), ATTN_OK);
    assert_int_equal(free_pages(&p), 10);
    pool_close(&p);
}

static attn_status note_copy(void *user, int64_t to, int64_t from, int64_t rows)
{
    int64_t *seen = user;
    seen[0]++, seen[1] = to, seen[2] = from, seen[3] = rows;
    return ATTN_OK;
}

/* A pool in memory that the library cannot reach: the caller copies. */
static void test_copies_by_the_caller(void **state)
{
    int64_t seen[4] = {0}, a, b;
    pool p = pool_open(10, 4, 3);
    (void)state;
    p.config.user = seen, p.config.copy = note_copy;
    attn_cache_close(p.cache);
    assert_int_equal(attn_cache_open(&p.config, p.memory.first, p.memory.bytes, &p.cache), ATTN_OK);
    assert_int_equal(attn_cache_alloc(p.cache, &a), ATTN_OK);
    assert_int_equal(attn_cache_extend(p.cache, a, 7), ATTN_OK);
    assert_int_equal(attn_cache_fork(p.cache, a, 6, &b), ATTN_OK);
    assert_int_equal(attn_cache_extend(p.cache, b, 1), ATTN_OK);
    assert_memory_equal(seen, ((int64_t[]){1, 2, 1, 2}), sizeof seen);
    pool_close(&p);
}

static void assert_error(attn_status got, attn_status want, const char *sentence)
{
    assert_int_equal(got, want);
    if (strstr(attn_last_error(), sentence) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", attn_last_error(), sentence);
    }
}

static void test_errors(void **state)
{
    pool p = pool_open(3, 4, 2);
    int64_t a, b, c = -7;
    attn_forward_args args = {.struct_size = sizeof args};
    (void)state;
    assert_int_equal(attn_cache_alloc(p.cache, &a), ATTN_OK);
    assert_int_equal(attn_cache_extend(p.cache, a, 6), ATTN_OK);
    assert_int_equal(attn_cache_fork(p.cache, a, 5, &b), ATTN_OK);
    assert_error(attn_cache_alloc(p.cache, &c), ATTN_ERR_OUT_OF_MEMORY, "all 2 sequences");
    assert_error(attn_cache_fork(p.cache, a, 1, &c), ATTN_ERR_OUT_OF_MEMORY, "all 2 sequences");
    assert_int_equal(c, -7);
    assert_error(attn_cache_extend(p.cache, b, 4), ATTN_ERR_OUT_OF_MEMORY,
                 "2 pages are wanted, 1 of 3 are free");
    assert_int_equal(free_pages(&p), 1);
    assert_error(attn_cache_extend(p.cache, b, -1), ATTN_ERR_INVALID_ARGUMENT, "rows = -1");
    assert_error(attn_cache_extend(p.cache, b, 92), ATTN_ERR_INVALID_ARGUMENT, "in [0, 91]");
    assert_error(attn_cache_truncate(p.cache, b, 6), ATTN_ERR_INVALID_ARGUMENT, "length = 6");
    assert_error(attn_cache_fork(p.cache, a, 7, &c), ATTN_ERR_INVALID_ARGUMENT, "length = 7");
    assert_error(attn_cache_free(p.cache, 2), ATTN_ERR_INVALID_ARGUMENT, "sequence 2 is not");
    assert_int_equal(attn_cache_free(p.cache, b), ATTN_OK);
    assert_error(attn_cache_free(p.cache, b), ATTN_ERR_INVALID_ARGUMENT, "is not in use");
    assert_error(attn_cache_view(p.cache, &b, 1, (int32_t[24]){0}, &c, &args),
                 ATTN_ERR_INVALID_ARGUMENT, "is not in use");
    assert_null(args.block_table.data);
    assert_int_equal(attn_cache_extend(p.cache, a, 6), ATTN_OK);
    assert_int_equal(free_pages(&p), 0);
    pool_close(&p);
}

static void test_wrong_configs(void **state)
{
    pool p = pool_open(3, 4, 2);
    attn_cache_config bad = p.config;
    attn_cache *cache = p.cache;
    uint64_t bytes = 5;
    (void)state;
    assert_error(attn_cache_open(&bad, p.memory.first, p.memory.bytes - 1, &cache),
                 ATTN_ERR_WORKSPACE, "needed are");
    assert_null(cache);
    bad.v.shape[1] = 3;
    assert_error(attn_cache_bytes(&bad, &bytes), ATTN_ERR_INVALID_ARGUMENT, "v.shape[1] = 3");
    assert_int_equal(bytes, 0);
    bad = p.config, bad.sequences = INT64_MAX;
    assert_int_equal(attn_cache_bytes(&bad, &bytes), ATTN_ERR_OVERFLOW);
    bad = p.config, bad.sequences = -1;
    assert_error(attn_cache_bytes(&bad, &bytes), ATTN_ERR_INVALID_ARGUMENT, "must be at least 0");
    bad = p.config, bad.k.stride[1] = 0;
    assert_error(attn_cache_bytes(&bad, &bytes), ATTN_ERR_INVALID_ARGUMENT, "k.stride[1] = 0");
    assert_error(attn_cache_alloc(NULL, NULL), ATTN_ERR_INVALID_ARGUMENT, "cache is NULL");
    attn_cache_close(NULL);
    pool_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_programs),      cmocka_unit_test(test_copy_on_write),
        cmocka_unit_test(test_copies_by_the_caller), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_wrong_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
