/*
 * lengths.c: validation of the arguments that place sequences: lengths, pages, padding, origins.
 * Their values are read here, unless they lie in a GPU's memory.
 */
#include "core/dropout_args.h"
#include "core/error.h"
#include "core/kv.h"
#include <stdio.h>

enum { INDEX_TYPES = 1 << ATTN_I32 | 1 << ATTN_I64 };

static attn_status check_index(const char *name, const attn_tensor *tensor, int64_t count)
{
    TRY(attn_check_tensor(name, tensor, INDEX_TYPES, false));
    if (tensor->shape[0] != count || tensor->shape[1] != 1 || tensor->shape[2] != 1 ||
        tensor->shape[3] != 1) {
        char want[64];
        (void)snprintf(want, sizeof want, "(%lld, 1, 1, 1)", (long long)count);
        return attn_refuse_shape(name, tensor, want);
    }
    return ATTN_OK;
}

static attn_status check_cu_seqlens(const char *name, const attn_problem *problem,
                                    const attn_tensor *tensor, int64_t total)
{
    TRY(check_index(name, tensor, problem->batch + 1));
    if (problem->batch > 0 && tensor->stride[0] == 0) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "%s.stride[0] = 0 would make %lld sequences of no rows", name,
                         (long long)problem->batch);
    }
    int64_t before = 0;
    for (int64_t b = 0; b <= problem->batch && !problem->device; b++) {
        int64_t at = attn_index_at(tensor, b);
        if (at < before || at > total) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s[%lld] = %lld, must be in [%lld, %lld]",
                             name, (long long)b, (long long)at, (long long)before,
                             (long long)total);
        }
        before = at;
    }
    return ATTN_OK;
}

static attn_status check_varlen(attn_problem *problem)
{
    if (problem->paged && attn_tensor_present(&problem->cu_k)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "block_table and cu_seqlens_k are given: both say where keys lie");
    }
    if (!problem->paged &&
        attn_tensor_present(&problem->cu_q) != attn_tensor_present(&problem->cu_k)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "cu_seqlens_q and cu_seqlens_k must be given together");
    }
    problem->varlen = attn_tensor_present(&problem->cu_q);
    if (!problem->varlen) {
        return ATTN_OK;
    }
    if (problem->q.shape[0] != 1) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "q.shape[0] = %lld, must be 1 with cu_seqlens_q",
                         (long long)problem->q.shape[0]);
    }
    if (problem->cu_q.shape[0] < 1) {
        return attn_refuse_shape("cu_seqlens_q", &problem->cu_q, "(B + 1, 1, 1, 1)");
    }
    problem->batch = problem->cu_q.shape[0] - 1;
    TRY(check_cu_seqlens("cu_seqlens_q", problem, &problem->cu_q, problem->q.shape[1]));
    return problem->paged
               ? ATTN_OK
               : check_cu_seqlens("cu_seqlens_k", problem, &problem->cu_k, problem->k.shape[1]);
}

static attn_status check_length(const char *name, int64_t b, int64_t n, int64_t most)
{
    return n >= 0 && n <= most
               ? ATTN_OK
               : attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s[%lld] = %lld, must be in [0, %lld]", name,
                           (long long)b, (long long)n, (long long)most);
}

static attn_status check_seqused(const attn_problem *problem)
{
    if (attn_tensor_present(&problem->used_q)) {
        TRY(check_index("seqused_q", &problem->used_q, problem->batch));
        for (int64_t b = 0; b < problem->batch && !problem->device; b++) {
            TRY(check_length("seqused_q", b, attn_index_at(&problem->used_q, b),
                             attn_declared_length(&problem->cu_q, &problem->q, b)));
        }
    }
    if (attn_tensor_present(&problem->used_k)) {
        TRY(check_index("seqused_k", &problem->used_k, problem->batch));
        for (int64_t b = 0; b < problem->batch && !problem->device; b++) {
            TRY(check_length("seqused_k", b, attn_index_at(&problem->used_k, b),
                             attn_declared_keys(problem, b)));
        }
    }
    return ATTN_OK;
}

/* Checks the shape of the table, and counts the rows that its pages give a sequence. */
static attn_status check_pages(attn_problem *problem)
{
    problem->keys = problem->k.shape[1];
    if (!problem->paged) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor("block_table", &problem->table, INDEX_TYPES, false));
    if (problem->table.shape[2] != 1 || problem->table.shape[3] != 1) {
        return attn_refuse_shape("block_table", &problem->table, "(B, pages, 1, 1)");
    }
    if (problem->k.shape[1] < 1) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "k.shape[1] = %lld, must be a page of at least 1 row with block_table",
                         (long long)problem->k.shape[1]);
    }
    if (__builtin_mul_overflow(problem->table.shape[1], problem->k.shape[1], &problem->keys)) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "block_table.shape[1] = %lld pages of k.shape[1] = %lld rows",
                         (long long)problem->table.shape[1], (long long)problem->k.shape[1]);
    }
    if (problem->device && problem->k.shape[0] == 0) {
        problem->keys = 0; /* no entry can be cut to the pages there are */
    }
    return ATTN_OK;
}

static attn_status check_table(const attn_problem *problem)
{
    if (problem->paged && problem->table.shape[0] != problem->batch) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "block_table.shape[0] = %lld, must be the %lld sequences",
                         (long long)problem->table.shape[0], (long long)problem->batch);
    }
    return ATTN_OK;
}

/* Checks the table's entries for pages in use. */
static attn_status check_entries(const attn_problem *problem)
{
    const int64_t size = problem->k.shape[1], most = problem->k.shape[0] - 1;
    for (int64_t b = 0; problem->paged && b < problem->batch; b++) {
        const attn_sequence sequence = attn_problem_lengths(problem, b);
        const int64_t end = sequence.nk > 0 ? (sequence.k_first + sequence.nk - 1) / size + 1 : 0;
        for (int64_t page = sequence.k_first / size; page < end; page++) {
            const int64_t entry = attn_kv_entry(&problem->table, b, page);
            if (entry < 0 || entry > most) {
                return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                                 "block_table[%lld][%lld] = %lld, must be in [0, %lld]",
                                 (long long)b, (long long)page, (long long)entry, (long long)most);
            }
        }
    }
    return ATTN_OK;
}

static attn_status check_left_padding(const attn_problem *problem)
{
    if (!attn_tensor_present(&problem->pad_k)) {
        return ATTN_OK;
    }
    if (attn_tensor_present(&problem->cu_k)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "leftpad_k and cu_seqlens_k are given: both say where sequences begin");
    }
    TRY(check_index("leftpad_k", &problem->pad_k, problem->batch));
    for (int64_t b = 0; b < problem->batch && !problem->device; b++) {
        TRY(check_length("leftpad_k", b, attn_index_at(&problem->pad_k, b),
                         attn_used_length(&problem->used_k, attn_declared_keys(problem, b), b)));
    }
    return ATTN_OK;
}

attn_status attn_check_origin(const char *name, const attn_tensor *tensor, int64_t batch,
                              int64_t rows, bool device, int64_t *end)
{
    *end = rows;
    if (!attn_tensor_present(tensor)) {
        return ATTN_OK;
    }
    TRY(check_index(name, tensor, tensor->shape[0] == 1 ? 1 : batch));
    for (int64_t b = 0; b < tensor->shape[0] && !device; b++) {
        int64_t at = attn_index_at(tensor, b);
        if (at < 0) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s[%lld] = %lld is negative", name,
                             (long long)b, (long long)at);
        }
        if (at > ATTN_POSITIONS - rows) {
            return attn_fail(ATTN_ERR_OVERFLOW,
                             "%s[%lld] = %lld and %lld rows: positions end at 2^60", name,
                             (long long)b, (long long)at, (long long)rows);
        }
        *end = at + rows > *end ? at + rows : *end;
    }
    return ATTN_OK;
}

/* Checks origins, and that dropout can count the positions. */
static attn_status check_positions(const attn_problem *problem)
{
    int64_t q_end = 0, k_end = 0;
    TRY(attn_check_origin("q_origin", &problem->q_origin, problem->batch, problem->q.shape[1],
                          problem->device, &q_end));
    TRY(attn_check_origin("k_origin", &problem->k_origin, problem->batch, problem->keys,
                          problem->device, &k_end));
    const bool q_placed = attn_tensor_present(&problem->q_origin);
    if (problem->top_left && (q_placed || attn_tensor_present(&problem->k_origin))) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "flags has ATTN_TOP_LEFT and %s is given: both say where the diagonal is",
                         q_placed ? "q_origin" : "k_origin");
    }
    return attn_dropout_fits(&problem->dropout, "q", q_end, "k", k_end);
}

attn_status attn_check_lengths(attn_problem *problem, int meaning)
{
    TRY(check_pages(problem));
    TRY(check_varlen(problem));
    TRY(check_table(problem));
    TRY(check_seqused(problem));
    TRY(check_left_padding(problem));
    if (!(meaning & ATTN_OF_SHAPES) && !problem->device) {
        TRY(check_entries(problem));
    }
    return check_positions(problem);
}
