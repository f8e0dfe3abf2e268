/*
 * selftest.c: the scalar f32 table with one member replaced by a wrong one. Each of them is a bug
 * that attention kernels have shipped; a harness that lets one of them pass is worth nothing.
 */
#include "selftest.h"
#include "checks.h"
#include "cpu/machine/select.h"
#include "cpu/ukernel/table_grad.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const attn_ukernel *right; /* the table that the wrong members are made of */

/* ---- wrong members --------------------------------------------------------------------------- */

/* The tail is left out: the last key of an odd number of them. */
static void qk_short_tail(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n,
                          int lanes)
{
    right->qk(s, k, at, qt, d, n % 2 && n > 1 ? n - 1 : n, lanes);
}

/* Reads one row of K more than there is. */
static void qk_reads_beyond(void *s, const void *k, int64_t at, const void *qt, int64_t d,
                            int64_t n, int lanes)
{
    volatile float next = ((const float *)k)[(at + n) * d + d - 1];
    (void)next;
    right->qk(s, k, at, qt, d, n, lanes);
}

/* The last lane of a strip that is not full is left out. */
static void qk_short_strip(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n,
                           int lanes)
{
    right->qk(s, k, at, qt, d, n, lanes < right->strip ? lanes - 1 : lanes);
}

/* Sums all products in one chain: right within any error bound, but not scalar's bits. */
static void qk_one_chain(void *s, const void *k, int64_t at, const void *qt, int64_t d, int64_t n,
                         int lanes)
{
    (void)lanes;
    for (int64_t i = 0; i < n * right->strip; i++) {
        float sum = 0;
        for (int64_t c = 0; c < d; c++) {
            sum = fmaf(((const float *)k)[(at + i / right->strip) * d + c],
                       ((const float *)qt)[c * right->strip + i % right->strip], sum);
        }
        ((float *)s)[i] = sum;
    }
}

/* The maximum never changes once there is one. */
static void softmax_stale_maximum(void *p, int64_t done, void *s, int64_t n, double c,
                                  const attn_running *state, int lanes)
{
    float before[64];
    memcpy(before, state->m, (size_t)right->strip * sizeof before[0]);
    right->softmax(p, done, s, n, c, state, lanes);
    for (int lane = 0; lane < right->strip; lane++) {
        ((float *)state->m)[lane] =
            before[lane] > -INFINITY ? before[lane] : ((float *)state->m)[lane];
    }
}

/* The sum of earlier blocks is not rescaled. */
static void softmax_no_rescale(void *p, int64_t done, void *s, int64_t n, double c,
                               const attn_running *state, int lanes)
{
    float before[64];
    memcpy(before, state->l, (size_t)right->strip * sizeof before[0]);
    right->softmax(p, done, s, n, c, state, lanes);
    for (int lane = 0; lane < right->strip; lane++) {
        float a = ((float *)state->alpha)[lane];
        ((float *)state->l)[lane] += before[lane] * (1 - a);
    }
}

/* Nor is the output. */
static void pv_no_rescale(void *ot, const void *v, int64_t at, const void *p, int64_t dv_pad,
                          int64_t n, const void *alpha, int lanes)
{
    float one[64];
    (void)alpha;
    for (int lane = 0; lane < 64; lane++) {
        one[lane] = 1;
    }
    right->pv(ot, v, at, p, dv_pad, n, one, lanes);
}

/* The sign of an infinity is lost. */
static bool clean_v_without_signs(void *to, const void *v, int64_t at, int64_t n, int64_t dv_pad,
                                  const attn_specials *found)
{
    const attn_specials both = {found->plus, found->plus};
    const bool any = right->clean_v(to, v, at, n, dv_pad, &both);
    memcpy(found->minus, found->plus, (size_t)dv_pad * sizeof *found->plus);
    return any;
}

/* What is noted stays. */
static bool grad_clean_x_leaves_it(void *x, int64_t cols, const attn_specials *found)
{
    static float copy[64 * 1024];
    const uint64_t bytes = right->grad->x_bytes(cols);
    memcpy(copy, x, bytes);
    const bool any = right->grad->clean_x(x, cols, found);
    memcpy(x, copy, bytes);
    return any;
}

/* The upper bound is taken as included. */
static void mask_one_too_many(void *s, int64_t n, const void *lo, const void *hi, int lanes)
{
    float more[64];
    for (int lane = 0; lane < right->strip; lane++) {
        more[lane] = ((const float *)hi)[lane] + 1;
    }
    right->mask(s, n, lo, more, lanes);
}

/* The cap comes after the bias. */
static void score_cap_last(void *s, int64_t n, const attn_score_tile *tile, int lanes)
{
    attn_score_tile first = *tile, then = {.scale = 1, .softcap = tile->softcap};
    first.softcap = 0;
    right->score(s, n, &first, lanes);
    right->score(s, n, &then, lanes);
}

/* Writes one element before the first row. */
static void store_writes_before(void *const *row, int64_t stride, int32_t dtype, const void *ot,
                                int64_t dv, const void *divisor, int lanes)
{
    right->store(row, stride, dtype, ot, dv, divisor, lanes);
    if (stride > 0) {
        memset((char *)row[0] - 2, 0, 2);
    }
}

static bool finite_forgets_a_lane(const void *ot, int64_t dv, int lanes)
{
    return right->finite(ot, dv, lanes > 1 ? lanes - 1 : lanes);
}

/* B106: dS from the probability after dropout. */
static void grad_softmax_dropped_twice(void *s, void *dp, int64_t n, const attn_grad_tile *tile,
                                       int lanes)
{
    right->grad->softmax(s, dp, n, tile, lanes);
    for (int64_t i = 0; tile->keep && i < n * right->strip; i++) {
        ((float *)dp)[i] *= ((const float *)tile->keep)[i];
    }
}

/* The last row of a block is left out. */
static void grad_rows_forget_one(void *g, const void *p, int64_t at, const void *x, int64_t cols,
                                 int64_t n, int first, int last)
{
    static float less[ATTN_ROW_BLOCK * ATTN_KEY_BLOCK];
    const int strip = (last - 1) / right->strip, tile = right->strip * ATTN_KEY_BLOCK;
    memcpy(less, p, (size_t)((strip + 1) * tile) * sizeof less[0]);
    for (int64_t key = 0; key < n; key++) {
        less[strip * tile + (at + key) * right->strip + (last - 1) % right->strip] = 0;
    }
    right->grad->rows(g, less, at, x, cols, n, first, last);
}

/* B107: the same words for all heads. */
static void grad_drop_one_head(void *tile, int64_t done, int64_t n, const attn_drop_tile *lanes,
                               bool times)
{
    attn_drop_tile same = *lanes;
    for (int lane = 0; lane < right->strip; lane++) {
        same.stream[lane] = lanes->stream[0];
    }
    right->grad->drop(tile, done, n, &same, times);
}

/* ---- the self-test --------------------------------------------------------------------------- */

/* The check of this name must fail. */
static bool catches(const char *check_name, const char *name, const attn_ukernel *wrong,
                    uint64_t seed)
{
    kernel_kit kit;
    if (!kit_open(&kit, wrong, right, ATTN_F32, seed)) {
        return false;
    }
    kit.quiet = true;
    for (int i = 0; i < checks_count; i++) {
        if (strcmp(checks[i].name, check_name) == 0) {
            check_run(&checks[i], &kit);
        }
    }
    kit_close(&kit);
    if (kit.failures == 0) {
        printf("FAIL self-test: %s was not caught\n", name);
    }
    return kit.failures > 0;
}

int selftest(uint64_t seed)
{
    int count, caught = 0, wrongs = 0;
    right = attn_isas(&count)[0].f32;
#define WRONG(member, function)                              \
    do {                                                     \
        attn_ukernel wrong = *right;                         \
        wrong.member = function;                             \
        caught += catches(#member, #function, &wrong, seed); \
        wrongs++;                                            \
    } while (0)
    WRONG(qk, qk_short_tail);
    WRONG(qk, qk_reads_beyond);
    WRONG(qk, qk_short_strip);
    WRONG(qk, qk_one_chain);
    WRONG(softmax, softmax_stale_maximum);
    WRONG(softmax, softmax_no_rescale);
    WRONG(pv, pv_no_rescale);
    WRONG(clean_v, clean_v_without_signs);
    WRONG(mask, mask_one_too_many);
    WRONG(score, score_cap_last);
    WRONG(store, store_writes_before);
    WRONG(finite, finite_forgets_a_lane);
#define WRONG_GRAD(member, function)                                 \
    do {                                                             \
        attn_ukernel_grad grad = *right->grad;                       \
        attn_ukernel wrong = *right;                                 \
        grad.member = function, wrong.grad = &grad;                  \
        caught += catches("grad_" #member, #function, &wrong, seed); \
        wrongs++;                                                    \
    } while (0)
    WRONG_GRAD(softmax, grad_softmax_dropped_twice);
    WRONG_GRAD(rows, grad_rows_forget_one);
    WRONG_GRAD(clean_x, grad_clean_x_leaves_it);
    WRONG_GRAD(drop, grad_drop_one_head);
    printf("self-test: %d of %d wrong kernels caught\n", caught, wrongs);
    return wrongs - caught;
}
