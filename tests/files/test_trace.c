/*
 * test_trace.c: the walk of `attn trace` gives float64 attention for tiles of any size, whole or in
 * parts, and tells each tile once with numbers that follow from each other.
 */
#include "oracle.h"
#include "problem.h"
#include "trace_walk.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 12, AREA = MOST * MOST };

/* A problem of one head, its numbers as double, and the results of both sides. */
struct fixture {
    problem_tensors tensors;
    trace_head head;
    double scores[AREA], q[AREA], k[AREA], v[AREA], d_o[AREA];
    double o[AREA], lse[MOST], exact_o[AREA], exact_lse[MOST];
};

static void read_numbers(double *to, const attn_tensor *tensor)
{
    const int64_t columns = tensor->shape[3];
    for (int64_t at = 0; at < tensor->shape[1] * columns; at++) {
        to[at] = oracle_element(tensor, 0, at / columns, 0, at % columns);
    }
}

static void setup(struct fixture *fixture, const char *line)
{
    problem_spec problem;
    char error[256];
    assert_true(problem_parse(line, &problem, error, sizeof error));
    assert_true(problem_tensors_create(&problem, PLACE_PLAIN, &fixture->tensors));
    const attn_forward_args *args = &fixture->tensors.args;
    const oracle_result exact = {.o = fixture->exact_o, .lse = fixture->exact_lse};
    fixture->head = (trace_head){.nq = problem.nq,
                                 .nk = problem.nk,
                                 .d = problem.d,
                                 .dv = problem.dv,
                                 .scores = fixture->scores,
                                 .q = fixture->q,
                                 .k = fixture->k,
                                 .v = fixture->v,
                                 .scale = 1 / sqrt((double)problem.d)};
    read_numbers(fixture->q, &args->q), read_numbers(fixture->k, &args->k);
    read_numbers(fixture->v, &args->v);
    if (problem.pass != PASS_FORWARD) {
        read_numbers(fixture->d_o, &fixture->tensors.grad.d_o);
        fixture->head.d_o = fixture->d_o;
    }
    assert_true(oracle_scores(args, 0, 0, fixture->scores));
    oracle_forward(args, &exact, NULL, 0);
}

static bool close_to(double x, double exact)
{
    return x == exact || fabs(x - exact) <= 1e-13 * (1 + fabs(exact));
}

static void assert_exact(const struct fixture *fixture, const trace_sums *sums)
{
    const trace_head *head = &fixture->head;
    for (int64_t i = 0; i < head->nq; i++) {
        assert_true(close_to(sums->lse[i], fixture->exact_lse[i]));
        for (int64_t c = 0; c < head->dv; c++) {
            assert_true(close_to(sums->o[i * head->dv + c], fixture->exact_o[i * head->dv + c]));
        }
    }
}

/* ---- the listener: each position once, and numbers that follow from each other --------------- */

struct seen {
    const trace_head *head;
    int times[AREA], tiles, skipped, partial;
};

static void mark(struct seen *seen, const trace_place *place)
{
    int visible = 0;
    for (int64_t i = place->row; i < place->row + place->rows; i++) {
        for (int64_t j = place->key; j < place->key + place->keys; j++) {
            seen->times[i * seen->head->nk + j]++;
            visible += seen->head->scores[i * seen->head->nk + j] != -INFINITY;
        }
    }
    assert_int_equal(place->kind, visible == 0                           ? TRACE_SKIP
                                  : visible == place->rows * place->keys ? TRACE_FULL
                                                                         : TRACE_PARTIAL);
    seen->tiles++, seen->skipped += place->kind == TRACE_SKIP,
        seen->partial += place->kind == TRACE_PARTIAL;
}

static void see_tile(void *user, const trace_tile *tile)
{
    struct seen *seen = user;
    const trace_place *place = &tile->place;
    mark(seen, place);
    for (int64_t r = 0; r < place->rows && place->kind != TRACE_SKIP; r++) {
        double highest = -INFINITY;
        for (int64_t j = 0; j < place->keys; j++) {
            highest = fmax(highest, tile->scores[r * place->keys + j]);
        }
        assert_true(tile->tile_maximum[r] == highest);
        assert_true(tile->maximum[r] >= highest); /* maximum of all tiles so far, never of this one
                                                   * alone */
        assert_true(tile->alpha[r] >= 0 && tile->alpha[r] <= 1);
        double weighed = tile->before[r * seen->head->dv] * tile->alpha[r];
        for (int64_t j = 0; j < place->keys; j++) {
            const double s = tile->scores[r * place->keys + j];
            weighed += s == -INFINITY ? 0
                                      : exp(s - tile->maximum[r]) *
                                            seen->head->v[(place->key + j) * seen->head->dv];
        }
        assert_true(close_to(tile->after[r * seen->head->dv], weighed));
    }
}

static void see_grad_tile(void *user, const trace_grad_tile *tile)
{
    struct seen *seen = user;
    mark(seen, &tile->place);
    for (int64_t at = 0; tile->p != NULL && at < tile->place.rows * tile->place.keys; at++) {
        const double delta = tile->delta[at / tile->place.keys];
        assert_true(close_to(tile->ds[at], tile->p[at] * (tile->dp[at] - delta)));
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_forward(void **state)
{
    static const char *const lines[] = {
        "nq=9 nk=11 hq=1 d=5 dv=3",
        "nq=12 nk=12 hq=1 d=4 causal=1",
        "nq=10 nk=4 hq=1 d=4 causal=1", /* rows without a key */
        "nq=8 nk=12 hq=1 d=4 window_left=2 window_right=0",
        "nq=8 nk=8 hq=1 d=4 softcap=2 alibi=h bias=hqk mask=qk",
    };
    (void)state;
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
        struct fixture fixture;
        setup(&fixture, lines[n]);
        const trace_sums sums = {fixture.o, fixture.lse};
        for (int64_t rows = 1; rows < MOST; rows += 2) {
            for (int64_t keys = 1; keys <= MOST; keys++) {
                struct seen seen = {.head = &fixture.head};
                const trace_listener listener = {&seen, see_tile, see_grad_tile};
                assert_true(
                    trace_forward(&fixture.head, rows, keys, 0, fixture.head.nk, &listener, &sums));
                for (int64_t at = 0; at < fixture.head.nq * fixture.head.nk; at++) {
                    assert_int_equal(seen.times[at], 1);
                }
                assert_exact(&fixture, &sums);
            }
        }
        problem_tensors_free(&fixture.tensors);
    }
}

/* 12 x 12 causal in tiles of 4 x 4: 3 below, 3 on, 3 above the diagonal. */
static void test_kinds(void **state)
{
    struct fixture fixture;
    (void)state;
    setup(&fixture, "n=12 hq=1 d=4 causal=1");
    struct seen seen = {.head = &fixture.head};
    const trace_listener listener = {&seen, see_tile, see_grad_tile};
    assert_true(trace_forward(&fixture.head, 4, 4, 0, 12, &listener,
                              &(trace_sums){fixture.o, fixture.lse}));
    assert_int_equal(seen.tiles, 9);
    assert_int_equal(seen.skipped, 3);
    assert_int_equal(seen.partial, 3);
    problem_tensors_free(&fixture.tensors);
}

static void test_merge(void **state)
{
    struct fixture fixture;
    double o[3][AREA], lse[3][MOST], weight[3 * MOST];
    (void)state;
    setup(&fixture, "nq=9 nk=12 hq=1 d=4 causal=1");
    struct seen seen = {.head = &fixture.head};
    const trace_listener listener = {&seen, see_tile, see_grad_tile};
    const trace_sums whole = {fixture.o, fixture.lse};
    trace_sums parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = (trace_sums){o[i], lse[i]};
        assert_true(trace_forward(&fixture.head, 4, 2, 4 * i, 4 * i + 4, &listener, &parts[i]));
    }
    trace_merge(&fixture.head, parts, 3, weight, &whole);
    assert_exact(&fixture, &whole);
    for (int i = 0; i < 9; i++) {
        assert_true(close_to(weight[i] + weight[9 + i] + weight[18 + i], 1));
    }
    problem_tensors_free(&fixture.tensors);
}

static void test_backward(void **state)
{
    static const char *const lines[] = {"nq=7 nk=11 hq=1 d=5 dv=3 pass=backward",
                                        "n=12 hq=1 d=4 causal=1 pass=backward"};
    (void)state;
    for (size_t n = 0; n < 2; n++) {
        struct fixture fixture;
        oracle_gradients exact;
        setup(&fixture, lines[n]);
        const trace_head *head = &fixture.head;
        const trace_sums sums = {fixture.exact_o, fixture.exact_lse};
        oracle_backward(&fixture.tensors.grad, &exact);
        for (int64_t tile = 1; tile <= MOST; tile++) {
            double dq[AREA] = {0}, dk[AREA] = {0}, dv[AREA] = {0};
            struct seen seen = {.head = head};
            const trace_listener listener = {&seen, see_tile, see_grad_tile};
            const double *const got[] = {dq, dk, dv};
            const int64_t counts[] = {head->nq * head->d, head->nk * head->d, head->nk * head->dv};
            assert_true(trace_backward(head, tile, 13 - tile, &sums, &listener,
                                       &(trace_grads){dq, dk, dv}));
            for (int which = 0; which < 3; which++) {
                for (int64_t at = 0; at < counts[which]; at++) {
                    assert_true(close_to(got[which][at], (double)exact.of[which][at]));
                }
            }
        }
        oracle_gradients_free(&exact);
        problem_tensors_free(&fixture.tensors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forward), cmocka_unit_test(test_kinds),
                                       cmocka_unit_test(test_merge),
                                       cmocka_unit_test(test_backward)};
    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
