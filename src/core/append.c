/*
 * append.c: validation of the arguments that change the cache: new rows of K and V, and rotation.
 */
#include "core/append.h"
#include "core/error.h"
#include "core/half.h"
#include "core/kv.h"
#include "core/order.h"

#include <string.h>

static attn_status check_new(const char *name, const attn_tensor *tensor,
                             const attn_problem *problem, const char *cache_name,
                             const attn_tensor *cache, int64_t columns)
{
    if (!attn_tensor_present(tensor)) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor(name, tensor, 1 << problem->q.dtype, false));
    TRY(attn_check_tensor(cache_name, cache, 1 << cache->dtype, true));
    const int64_t want[4] = {problem->q.shape[0], problem->q.shape[1], cache->shape[2], columns};
    for (int a = 0; a < 4; a++) {
        if (tensor->shape[a] != want[a]) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s.shape[%d] = %lld, must be %lld", name,
                             a, (long long)tensor->shape[a], (long long)want[a]);
        }
    }
    return ATTN_OK;
}

/* True if sequences may differ in lengths or positions, since a tensor says them. One position for
 * all sequences makes none differ; on a device it counts all the same, as it cannot be read. */
static bool has_lengths(const attn_problem *problem)
{
    const attn_tensor *const tensors[] = {&problem->cu_q, &problem->cu_k, &problem->used_q,
                                          &problem->used_k, &problem->pad_k};
    bool found = attn_tensor_present(&problem->q_origin) &&
                 (problem->device || problem->q_origin.shape[0] > 1);
    for (int i = 0; i < 5; i++) {
        found |= attn_tensor_present(tensors[i]);
    }
    return found;
}

/* Checks that the keys in use of every sequence include its new rows. *end = the end of all
 * positions; on a device, where lengths are not read, that of the first one. */
static attn_status check_rows(const attn_problem *problem, bool append, int64_t *end)
{
    /* without lengths all sequences are alike */
    const int64_t count = !has_lengths(problem) ? problem->batch > 0
                          : problem->device     ? 0
                                                : problem->batch;
    *end = problem->device && problem->q.shape[1] > 0;
    for (int64_t b = 0; b < count; b++) {
        const attn_sequence sequence = attn_problem_sequence(problem, b);
        const int64_t first = attn_first_position(problem, &sequence);
        if (sequence.nq_used > sequence.nk && (append || first < 0)) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                             "sequence %lld has %lld keys in use, fewer than its %lld new rows",
                             (long long)b, (long long)sequence.nk, (long long)sequence.nq_used);
        }
        const int64_t last = sequence.nq_used > 0 ? first + sequence.nq_used : 0;
        *end = last > *end && !problem->device ? last : *end;
    }
    return ATTN_OK;
}

/* Rows [first, end) of a page that a sequence's new rows are written to. */
typedef struct new_page {
    int64_t sequence, column; /* its entry in the table */
    int64_t page, first, end;
} new_page;

/* Finds the first page of new rows at or after column *column of sequence *sequence, and sets both
 * behind it. */
static bool next_page(const attn_problem *problem, int64_t *sequence, int64_t *column,
                      new_page *found)
{
    const int64_t size = problem->k.shape[1];
    for (; *sequence < problem->batch; (*sequence)++, *column = 0) {
        const attn_sequence s = attn_problem_lengths(problem, *sequence);
        const int64_t first = attn_kv_row(&s, s.nk - s.nq_used), end = attn_kv_row(&s, s.nk);
        const int64_t at = attn_clamp(first / size, *column, INT64_MAX), start = at * size;
        if (first < end && start < end) {
            *found =
                (new_page){*sequence, at, attn_kv_entry(&problem->table, *sequence, at),
                           attn_clamp(first - start, 0, size), attn_clamp(end - start, 0, size)};
            *column = at + 1;
            return true;
        }
    }
    return false;
}

/* The page of new rows with a number of the walk, from 0. */
static new_page page_at(const attn_problem *problem, int64_t number)
{
    int64_t sequence = 0, column = 0;
    new_page page = {.sequence = 0};
    while (next_page(problem, &sequence, &column, &page) && number-- > 0) {
    }
    return page;
}

static attn_status refuse_pages(const attn_problem *problem, int64_t a, int64_t b)
{
    const new_page first = page_at(problem, a < b ? a : b),
                   second = page_at(problem, a < b ? b : a);
    return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                     "block_table[%lld][%lld] and [%lld][%lld] are both page %lld: new rows would "
                     "be written over each other",
                     (long long)first.sequence, (long long)first.column, (long long)second.sequence,
                     (long long)second.column, (long long)first.page);
}

/* Checks that no two new rows are written to one row of the pool: rows of the pool in order. A pool
 * whose rows cannot be counted has no elements. */
static attn_status check_rows_of_pages(const attn_problem *problem)
{
    const int64_t size = problem->k.shape[1];
    attn_stretch before = {.end = 0};
    attn_order order;
    int64_t rows;
    if (__builtin_mul_overflow(problem->k.shape[0], size, &rows)) {
        return ATTN_OK;
    }
    attn_order_begin(&order);
    do {
        int64_t sequence = 0, column = 0;
        new_page page;
        for (int64_t i = 0; next_page(problem, &sequence, &column, &page); i++) {
            const uint64_t row = (uint64_t)(page.page * size);
            attn_order_offer(
                &order, (attn_stretch){row + (uint64_t)page.first, row + (uint64_t)page.end, i});
        }
        attn_order_sort(&order);
        for (int i = 0; i < order.count; before = order.held[i++]) {
            if (order.held[i].low < before.end) {
                return refuse_pages(problem, before.number, order.held[i].number);
            }
        }
    } while (attn_order_next(&order));
    return ATTN_OK;
}

/* Checks that no two new rows are written to one row of the pool: a walk over all pages of new rows
 * for each range of the pool that has any, with a bit for each page of the range. Only where a page
 * has rows of several entries the rows themselves are looked at. */
static attn_status check_places(const attn_problem *problem)
{
    enum { RANGE = 1 << 15 };
    uint64_t seen[RANGE / 64];
    for (int64_t low = 0, next; problem->paged && low < INT64_MAX; low = next) {
        int64_t sequence = 0, column = 0;
        new_page page;
        next = INT64_MAX;
        memset(seen, 0, sizeof seen);
        while (next_page(problem, &sequence, &column, &page)) {
            const int64_t at = page.page - low;
            if (at >= RANGE) {
                next = page.page < next ? page.page : next;
            } else if (at >= 0) {
                if (seen[at / 64] >> at % 64 & 1) {
                    return check_rows_of_pages(problem);
                }
                seen[at / 64] |= UINT64_C(1) << at % 64;
            }
        }
    }
    return ATTN_OK;
}

static attn_status check_angles(const char *name, const attn_tensor *tensor, int64_t pairs,
                                int64_t end)
{
    TRY(attn_check_tensor(name, tensor, ATTN_WIDE_TYPES, false));
    if (tensor->shape[1] != pairs || tensor->shape[2] != 1 || tensor->shape[3] != 1) {
        return attn_refuse_shape(name, tensor, "(positions, rope_dims / 2, 1, 1)");
    }
    if (tensor->shape[0] < end) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s.shape[0] = %lld, but a row is at position %lld", name,
                         (long long)tensor->shape[0], (long long)(end - 1));
    }
    return ATTN_OK;
}

static attn_status check_rope(attn_problem *problem, const attn_forward_args *args, int64_t end)
{
    attn_rope *rope = &problem->rope;
    const bool tables = attn_tensor_present(&rope->cos);
    if (tables != attn_tensor_present(&rope->sin)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "rope_cos and rope_sin must be given together");
    }
    if (!(rope->base >= 0 && rope->base <= 1e300) || (tables && rope->base != 0)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "rope_base = %g must be positive and finite, or 0 with tables",
                         rope->base);
    }
    if (!tables && rope->base == 0) {
        rope->dims = 0;
        return args->rope_dims == 0 && !rope->interleaved
                   ? ATTN_OK
                   : attn_fail(
                         ATTN_ERR_INVALID_ARGUMENT,
                         "rope_dims = %lld and ATTN_ROPE_INTERLEAVED need rope_base or tables",
                         (long long)args->rope_dims);
    }
    rope->dims = args->rope_dims == 0 ? problem->d : args->rope_dims;
    if (rope->dims < 0 || rope->dims % 2 != 0 || rope->dims > problem->d) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "rope_dims = %lld, must be even and in [0, %lld]", (long long)rope->dims,
                         (long long)problem->d);
    }
    if (tables) {
        TRY(check_angles("rope_cos", &rope->cos, rope->dims / 2, end));
        TRY(check_angles("rope_sin", &rope->sin, rope->dims / 2, end));
    }
    return ATTN_OK;
}

attn_status attn_check_append(attn_problem *problem, const attn_forward_args *args, int meaning)
{
    const bool append =
        attn_tensor_present(&problem->k_new) || attn_tensor_present(&problem->v_new);
    const bool rotate = attn_tensor_present(&problem->rope.cos) || problem->rope.base != 0;
    int64_t end = 0;
    TRY(check_new("k_new", &problem->k_new, problem, "k", &problem->k, problem->d));
    TRY(check_new("v_new", &problem->v_new, problem, "v", &problem->v, problem->dv));
    if (append || rotate) {
        TRY(check_rows(problem, append, &end));
    }
    if (append && !problem->device && !(meaning & ATTN_OF_SHAPES)) {
        TRY(check_places(problem));
    }
    return check_rope(problem, args, end);
}

/* ---- Rotated rows ---------------------------------------------------------------------------- */

/* Lays a tensor of equal shape without gaps out behind those there are. */
static attn_status place(const attn_tensor *like, void *memory, uint64_t *bytes, attn_tensor *to)
{
    const int64_t *n = like->shape;
    uint64_t size = (uint64_t)attn_element_size(like->dtype);
    bool fits = true, empty = false;
    for (int a = 0; a < 4; a++) {
        fits = fits && !__builtin_mul_overflow(size, n[a] > 0 ? (uint64_t)n[a] : 1, &size);
        empty |= n[a] == 0;
    }
    if (!fits || size > UINT64_MAX / 4) {
        return attn_fail(ATTN_ERR_OVERFLOW, "the workspace does not fit in 64 bits");
    }
    void *data = memory ? (char *)memory + *bytes : NULL;
    *to = attn_tensor_bshd(data, (attn_dtype)like->dtype, n[0], n[1], n[2], n[3]);
    *bytes += empty ? 0 : size;
    return ATTN_OK;
}

attn_status attn_rotated_place(const attn_problem *problem, void *memory, attn_rotated *rotated)
{
    *rotated = (attn_rotated){.bytes = 0};
    if (problem->rope.dims == 0) {
        return ATTN_OK;
    }
    TRY(place(&problem->q, memory, &rotated->bytes, &rotated->q));
    return attn_tensor_present(&problem->k_new)
               ? place(&problem->k_new, memory, &rotated->bytes, &rotated->k)
               : ATTN_OK;
}
