/*
 * test_traffic.c: the traffic that `attn plan --io` predicts is that of a simulated cache, fed with
 * the rows that tiled and standard attention touch, by the tiles of the library's walk
 * (core/tiles.h). The counted tiles are the plan's.
 */
#include "core/tiles.h"
#include "machine.h"
#include "plan_io.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a cache of sets, each of which drops what was used longest ago -------------------------- */

enum { LINE = 64, WAYS = 16 };

struct line {
    int64_t address; /* in lines; -1: empty */
    int64_t used;
    bool dirty;
};

struct cache {
    struct line *lines;
    int64_t sets, time;
    double read, written; /* bytes */
};

static struct cache make_cache(double bytes)
{
    struct cache cache = {.sets = (int64_t)bytes / LINE / WAYS};
    cache.lines = malloc((size_t)(cache.sets * WAYS) * sizeof *cache.lines);
    assert_non_null(cache.lines);
    for (int64_t i = 0; i < cache.sets * WAYS; i++) {
        cache.lines[i] = (struct line){-1, 0, false};
    }
    return cache;
}

static void touch_line(struct cache *cache, int64_t address, bool store)
{
    struct line *set = cache->lines + address % cache->sets * WAYS, *oldest = set;
    cache->time++;
    for (int way = 0; way < WAYS; way++) {
        if (set[way].address == address) {
            set[way].used = cache->time, set[way].dirty |= store;
            return;
        }
        oldest = set[way].used < oldest->used ? &set[way] : oldest;
    }
    cache->written += oldest->dirty ? LINE : 0;
    cache->read += store ? 0 : LINE; /* a store of a whole line fetches nothing */
    *oldest = (struct line){address, cache->time, store};
}

/* Rows first .. first + rows - 1 of a matrix at `base`, `bytes` each, `columns` bytes of them. */
static void touch(struct cache *cache, int64_t base, int64_t bytes, int64_t first, int64_t rows,
                  int64_t columns, bool store)
{
    for (int64_t row = first; row < first + rows; row++) {
        for (int64_t at = 0; at < columns; at += LINE) {
            touch_line(cache, (base + row * bytes + at) / LINE, store);
        }
    }
}

/* Writes back the lines that were stored and are still in the cache. */
static void close_cache(struct cache *cache)
{
    for (int64_t i = 0; i < cache->sets * WAYS; i++) {
        cache->written += cache->lines[i].dirty ? LINE : 0;
    }
    free(cache->lines);
}

/* ---- the accesses of one KV head, f32 -------------------------------------------------------- */

/* Places of Q, K, V, O, the matrix of scores and a tile of them. Distances that are no multiple of
 * the cache's size, as of separate allocations. */
struct places {
    int64_t q, k, v, o, matrix, tile;
};

struct head {
    const attn_problem *problem;
    const attn_sequence *sequence;
    traffic_tiles tiles;
    int64_t rows, nk, q_bytes, o_bytes; /* rows: queries x group */
    struct places at;
};

static struct head make_head(const attn_problem *problem, const attn_sequence *sequence,
                             const traffic_tiles *tiles)
{
    struct head head = {
        problem,      sequence,       *tiles,          sequence->nq * problem->group,
        sequence->nk, problem->d * 4, problem->dv * 4, {.q = 0}};
    head.at.k = head.at.q + head.rows * head.q_bytes + 7 * LINE;
    head.at.v = head.at.k + head.nk * head.q_bytes + 11 * LINE;
    head.at.o = head.at.v + head.nk * head.o_bytes + 13 * LINE;
    head.at.tile = head.at.o + head.rows * head.o_bytes + 3 * LINE;
    head.at.matrix = head.at.tile + tiles->strip * tiles->keys * 4 + 5 * LINE;
    return head;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static attn_tile_rows rows_of(const struct head *head, int64_t row, int64_t rows)
{
    const int64_t group = head->problem->group;
    return attn_tile_rows_of(head->problem, head->sequence, NULL, (attn_interval){0, group},
                             (attn_interval){row / group, (row + rows - 1) / group + 1}, 1);
}

/* A strip and a tile of keys: S = Q K^T, the softmax, O += P V. */
static void touch_tile(struct cache *cache, const struct head *head, int64_t row, int64_t rows,
                       attn_interval keys, bool first)
{
    const int64_t count = keys.hi - keys.lo;
    touch(cache, head->at.q, head->q_bytes, row, rows, head->q_bytes, false);
    touch(cache, head->at.k, head->q_bytes, keys.lo, count, head->q_bytes, false);
    touch(cache, head->at.tile, head->tiles.keys * 4, 0, rows, count * 4, true);
    touch(cache, head->at.v, head->o_bytes, keys.lo, count, head->o_bytes, false);
    if (!first) {
        touch(cache, head->at.o, head->o_bytes, row, rows, head->o_bytes, false);
    }
    touch(cache, head->at.o, head->o_bytes, row, rows, head->o_bytes, true);
}

static void touch_block(struct cache *cache, const struct head *head, int64_t row, int64_t rows)
{
    const attn_tile_rows block = rows_of(head, row, rows);
    const traffic_tiles *tiles = &head->tiles;
    attn_walk walk = attn_walk_keys(&block, (attn_interval){0, head->nk}, tiles->keys);
    while (attn_walk_next(&walk)) {
        for (int64_t strip = row; strip < row + rows; strip += tiles->strip) {
            const int64_t count = least(tiles->strip, row + rows - strip);
            const attn_tile_rows own = rows_of(head, strip, count);
            const attn_tile tile = attn_tile_at(&own, walk.tile.keys);
            if (tile.kind != ATTN_TILE_SKIP) {
                touch_tile(cache, head, strip, count, tile.keys, tile.keys.lo <= own.mask.hull.lo);
            }
        }
    }
    /* O / l */
    touch(cache, head->at.o, head->o_bytes, row, rows, head->o_bytes, false);
    touch(cache, head->at.o, head->o_bytes, row, rows, head->o_bytes, true);
}

static void touch_tiled(struct cache *cache, const struct head *head)
{
    for (int64_t row = 0; row < head->rows; row += head->tiles.rows) {
        touch_block(cache, head, row, least(head->tiles.rows, head->rows - row));
    }
}

/* A product by tiles with the matrix on one side: S = Q K^T, or O = P V. */
static void touch_product(struct cache *cache, const struct head *head, bool scores)
{
    const traffic_tiles *tiles = &head->tiles;
    const int64_t left = scores ? head->at.q : head->at.o, right = scores ? head->at.k : head->at.v,
                  bytes = scores ? head->q_bytes : head->o_bytes;
    for (int64_t row = 0; row < head->rows; row += tiles->rows) {
        const int64_t end = least(row + tiles->rows, head->rows);
        for (int64_t key = 0; key < head->nk; key += tiles->keys) {
            const int64_t keys = least(tiles->keys, head->nk - key);
            for (int64_t strip = row; strip < end; strip += tiles->strip) {
                const int64_t rows = least(tiles->strip, end - strip);
                if (scores || key > 0) {
                    touch(cache, left, bytes, strip, rows, bytes, false);
                }
                touch(cache, right, bytes, key, keys, bytes, false);
                touch(cache, head->at.matrix + key * 4, head->nk * 4, strip, rows, keys * 4,
                      scores);
                if (!scores) {
                    touch(cache, left, bytes, strip, rows, bytes, true);
                }
            }
        }
    }
}

static void touch_standard(struct cache *cache, const struct head *head)
{
    touch_product(cache, head, true);
    for (int64_t row = 0; row < head->rows; row++) {
        for (int walk = 0; walk < 3; walk++) { /* maximum, sum, P */
            touch(cache, head->at.matrix, head->nk * 4, row, 1, head->nk * 4, false);
        }
        touch(cache, head->at.matrix, head->nk * 4, row, 1, head->nk * 4, true);
    }
    touch_product(cache, head, false);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void plan_line(const char *line, problem_spec *problem, planned *x)
{
    char error[256];
    int count;
    if (!problem_parse(line, problem, error, sizeof error)) {
        fail_msg("%s: %s", line, error);
    }
    assert_null(plan_io_refuses(problem));
    assert_true(plan_on(&attn_isas(&count)[0], problem, x));
}

static bool within(double predicted, double simulated, double share)
{
    return fabs(predicted - simulated) <= share * simulated;
}

static void compare(const char *line, const char *form, double near, const traffic_bytes *predicted,
                    const struct cache *simulated)
{
    const double reads = predicted->read / simulated->read,
                 all = (predicted->read + predicted->written) /
                       (simulated->read + simulated->written);
    printf("%-44s %8.0f KiB %-8s %8.2f MiB, simulated %8.2f MiB: %.3f\n", line, near / 1024, form,
           (predicted->read + predicted->written) / 1048576,
           (simulated->read + simulated->written) / 1048576, all);
    if (!within(reads, 1, 0.2) || !within(all, 1, 0.2)) {
        fail_msg("%s: %s by %.0f bytes: reads %.3f, all %.3f of the simulated ones", line, form,
                 near, reads, all);
    }
}

static void test_simulated(void **state)
{
    static const struct {
        const char *line;
        traffic_tiles tiles;
        double near; /* KiB */
    } cases[] = {
        /* tiles fit, K and V do not */
        {"hq=1 nq=512 nk=1024 d=64", {128, 16, 64}, 192},
        {"hq=1 n=1024 d=64 causal=1", {128, 16, 64}, 192},
        /* keys of one block serve the next */
        {"hq=1 n=1024 d=64 window_left=127 window_right=0", {64, 16, 64}, 256},
        {"hq=1 n=1024 d=64 causal=1", {64, 16, 64}, 256},
        {"hq=1 nq=512 nk=512 d=64", {64, 16, 64}, 512},
        /* a block does not fit, or not beside two tiles; nor does a tile */
        {"hq=1 nq=512 nk=1024 d=64", {128, 16, 64}, 112},
        {"hq=1 nq=512 nk=1024 d=64", {512, 16, 64}, 128},
        {"hq=1 nq=256 nk=1024 d=64", {64, 16, 512}, 64},
        /* the matrix fits */
        {"hq=1 nq=256 nk=256 d=64", {64, 16, 64}, 1024},
        /* heads of a group, other head dims */
        {"hq=4 hkv=1 nq=256 nk=512 d=128 dv=32 causal=1", {128, 16, 64}, 192},
    };
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        problem_spec problem;
        planned x;
        const double near = cases[n].near * 1024;
        plan_line(cases[n].line, &problem, &x);
        const attn_sequence sequence = attn_problem_sequence(&x.problem, 0);
        const struct head head = make_head(&x.problem, &sequence, &cases[n].tiles);
        struct cache tiled = make_cache(near), standard = make_cache(near);
        touch_tiled(&tiled, &head), close_cache(&tiled);
        touch_standard(&standard, &head), close_cache(&standard);
        const traffic_bytes bytes[] = {plan_io_tiled(&problem, &cases[n].tiles, near),
                                       plan_io_standard(&problem, &cases[n].tiles, near)};
        compare(cases[n].line, "tiled", near, &bytes[0], &tiled);
        compare(cases[n].line, "standard", near, &bytes[1], &standard);
        problem_tensors_free(&x.tensors);
    }
}

/* The visited tiles, by windows and lengths of all kinds. */
static void test_tiles(void **state)
{
    static const char *const lines[] = {
        "b=2 hq=4 hkv=2 nq=300 nk=500 d=32",
        "b=2 hq=4 hkv=2 nq=300 nk=500 d=32 causal=1",
        "hq=2 nq=500 nk=300 d=32 causal=1",
        "hq=2 nq=500 nk=300 d=32 causal=1 top_left=1",
        "hq=6 hkv=2 n=700 d=32 window_left=100 window_right=50",
        "hq=2 n=700 d=32 causal=1 window_left=64 window_right=-1",
        "hq=4 hkv=2 d=32 lens_q=100,0,300 lens_k=200,50,300 causal=1",
        "b=2 hq=2 nq=100 nk=400 d=32 used_k=130,400 causal=1",
        "b=2 hq=2 nq=100 nk=400 d=32 q_origin=300,50 k_origin=0 causal=1",
    };
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        problem_spec problem;
        planned x;
        plan_line(lines[n], &problem, &x);
        const attn_cpu_plan *plan = &x.plan;
        const attn_tile_count count = attn_cpu_count_tiles(plan, &x.problem);
        const traffic_tiles tiles = {plan->schedule.block_rows, plan->table->strip,
                                     plan->table->key_tile};
        const traffic_bytes bytes = plan_io_tiled(&problem, &tiles, 1 << 20);
        if (bytes.tiles != (double)(count.full + count.partial)) {
            fail_msg("%s: %.0f tiles, the plan has %lld", lines[n], bytes.tiles,
                     (long long)(count.full + count.partial));
        }
        problem_tensors_free(&x.tensors);
    }
}

/* Theorem 2: with the best tiles, a near memory four times as large quarters the bytes that are
 * read. */
static void test_law(void **state)
{
    const traffic_shape shape = {.nq = 16384,
                                 .nk = 16384,
                                 .d = 64,
                                 .dv = 64,
                                 .group = 1,
                                 .element = 4,
                                 .real = 4,
                                 .low = -TRAFFIC_FAR,
                                 .high = TRAFFIC_FAR};
    double before = 0;
    (void)state;
    for (double near = 32 << 10; near <= 512 << 10; near *= 4) {
        traffic_bytes bytes;
        (void)traffic_best(&shape, 1, 64, near, &bytes);
        if (before > 0) {
            assert_true(within(before / bytes.read, 4, 0.25));
        }
        before = bytes.read;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulated),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_law),
    };
    return cmocka_run_group_tests_name("traffic", tests, NULL, NULL);
}
