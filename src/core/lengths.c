/*
 * lengths.c: validation of the arguments that say where sequences lie: lengths, pages, padding,
 * origins. Their values are read here, but for those in a GPU's memory.
 */
#include "core/error.h"
#include "core/kv.h"
#include <stdio.h>

enum { INDEX_TYPES = 1 << ATTN_I32 | 1 << ATTN_I64 };

static attn_status check_index(const char *name, const attn_tensor *t, int64_t count)
{
    TRY(attn_check_tensor(name, t, INDEX_TYPES, false));
    if (t->shape[0] != count || t->shape[1] != 1 || t->shape[2] != 1 || t->shape[3] != 1) {
        char want[64];
        (void)snprintf(want, sizeof want, "(%lld, 1, 1, 1)", (long long)count);
        return attn_refuse_shape(name, t, want);
    }
    return ATTN_OK;
}

static attn_status check_cu_seqlens(const char *name, const attn_problem *p, const attn_tensor *t,
                                    int64_t total)
{
    TRY(check_index(name, t, p->batch + 1));
    int64_t before = 0;
    for (int64_t b = 0; b <= p->batch && !p->device; b++) {
        int64_t at = attn_index_at(t, b);
        if (at < before || at > total) {
            return attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s[%lld] = %lld, must be in [%lld, %lld]",
                             name, (long long)b, (long long)at, (long long)before,
                             (long long)total);
        }
        before = at;
    }
    return ATTN_OK;
}

static attn_status check_varlen(attn_problem *p)
{
    if (p->paged && attn_tensor_present(&p->cu_k)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "block_table and cu_seqlens_k are given: both say where keys lie");
    }
    if (!p->paged && attn_tensor_present(&p->cu_q) != attn_tensor_present(&p->cu_k)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "cu_seqlens_q and cu_seqlens_k must be given together");
    }
    p->varlen = attn_tensor_present(&p->cu_q);
    if (!p->varlen) {
        return ATTN_OK;
    }
    if (p->q.shape[0] != 1) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "q.shape[0] = %lld, must be 1 with cu_seqlens_q",
                         (long long)p->q.shape[0]);
    }
    if (p->cu_q.shape[0] < 1) {
        return attn_refuse_shape("cu_seqlens_q", &p->cu_q, "(B + 1, 1, 1, 1)");
    }
    p->batch = p->cu_q.shape[0] - 1;
    TRY(check_cu_seqlens("cu_seqlens_q", p, &p->cu_q, p->q.shape[1]));
    return p->paged ? ATTN_OK : check_cu_seqlens("cu_seqlens_k", p, &p->cu_k, p->k.shape[1]);
}

static attn_status check_length(const char *name, int64_t b, int64_t n, int64_t most)
{
    return n >= 0 && n <= most
               ? ATTN_OK
               : attn_fail(ATTN_ERR_INVALID_ARGUMENT, "%s[%lld] = %lld, must be in [0, %lld]", name,
                           (long long)b, (long long)n, (long long)most);
}

static attn_status check_seqused(const attn_problem *p)
{
    if (attn_tensor_present(&p->used_q)) {
        TRY(check_index("seqused_q", &p->used_q, p->batch));
        for (int64_t b = 0; b < p->batch && !p->device; b++) {
            TRY(check_length("seqused_q", b, attn_index_at(&p->used_q, b),
                             attn_declared_length(&p->cu_q, &p->q, b)));
        }
    }
    if (attn_tensor_present(&p->used_k)) {
        TRY(check_index("seqused_k", &p->used_k, p->batch));
        for (int64_t b = 0; b < p->batch && !p->device; b++) {
            TRY(check_length("seqused_k", b, attn_index_at(&p->used_k, b),
                             attn_declared_keys(p, b)));
        }
    }
    return ATTN_OK;
}

/* Counts the rows of the pages. */
static attn_status check_pages(attn_problem *p)
{
    p->keys = p->k.shape[1];
    if (!p->paged) {
        return ATTN_OK;
    }
    TRY(attn_check_tensor("block_table", &p->table, INDEX_TYPES, false));
    if (p->table.shape[2] != 1 || p->table.shape[3] != 1) {
        return attn_refuse_shape("block_table", &p->table, "(B, pages, 1, 1)");
    }
    if (p->k.shape[1] < 1) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "k.shape[1] = %lld, must be a page of at least 1 row with block_table",
                         (long long)p->k.shape[1]);
    }
    if (__builtin_mul_overflow(p->table.shape[1], p->k.shape[1], &p->keys)) {
        return attn_fail(ATTN_ERR_OVERFLOW,
                         "block_table.shape[1] = %lld pages of k.shape[1] = %lld rows",
                         (long long)p->table.shape[1], (long long)p->k.shape[1]);
    }
    return ATTN_OK;
}

static attn_status check_table(const attn_problem *p)
{
    if (p->paged && p->table.shape[0] != p->batch) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "block_table.shape[0] = %lld, must be the %lld sequences",
                         (long long)p->table.shape[0], (long long)p->batch);
    }
    return ATTN_OK;
}

/* The entries of pages in use. */
static attn_status check_entries(const attn_problem *p)
{
    const int64_t size = p->k.shape[1], most = p->k.shape[0] - 1;
    for (int64_t b = 0; p->paged && b < p->batch; b++) {
        const attn_sequence s = attn_problem_lengths(p, b);
        const int64_t end = s.nk > 0 ? (s.k_first + s.nk - 1) / size + 1 : 0;
        for (int64_t page = s.k_first / size; page < end; page++) {
            const int64_t entry = attn_kv_entry(&p->table, b, page);
            if (entry < 0 || entry > most) {
                return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                                 "block_table[%lld][%lld] = %lld, must be in [0, %lld]",
                                 (long long)b, (long long)page, (long long)entry, (long long)most);
            }
        }
    }
    return ATTN_OK;
}

static attn_status check_left_padding(const attn_problem *p)
{
    if (!attn_tensor_present(&p->pad_k)) {
        return ATTN_OK;
    }
    if (attn_tensor_present(&p->cu_k)) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "leftpad_k and cu_seqlens_k are given: both say where sequences begin");
    }
    TRY(check_index("leftpad_k", &p->pad_k, p->batch));
    for (int64_t b = 0; b < p->batch && !p->device; b++) {
        TRY(check_length("leftpad_k", b, attn_index_at(&p->pad_k, b),
                         attn_used_length(&p->used_k, attn_declared_keys(p, b), b)));
    }
    return ATTN_OK;
}

attn_status attn_check_origin(const char *name, const attn_tensor *t, int64_t batch, int64_t rows,
                              bool device, int64_t *end)
{
    *end = rows;
    if (!attn_tensor_present(t)) {
        return ATTN_OK;
    }
    TRY(check_index(name, t, t->shape[0] == 1 ? 1 : batch));
    for (int64_t b = 0; b < t->shape[0] && !device; b++) {
        int64_t at = attn_index_at(t, b);
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

/* Origins, and whether dropout can count the positions. */
static attn_status check_positions(const attn_problem *p)
{
    int64_t q_end = 0, k_end = 0;
    TRY(attn_check_origin("q_origin", &p->q_origin, p->batch, p->q.shape[1], p->device, &q_end));
    TRY(attn_check_origin("k_origin", &p->k_origin, p->batch, p->keys, p->device, &k_end));
    const bool q_placed = attn_tensor_present(&p->q_origin);
    if (p->top_left && (q_placed || attn_tensor_present(&p->k_origin))) {
        return attn_fail(ATTN_ERR_INVALID_ARGUMENT,
                         "flags has ATTN_TOP_LEFT and %s is given: both say where the diagonal is",
                         q_placed ? "q_origin" : "k_origin");
    }
    return attn_dropout_fits(&p->dropout, "q", q_end, "k", k_end);
}

attn_status attn_check_lengths(attn_problem *p, int meaning)
{
    TRY(check_pages(p));
    TRY(check_varlen(p));
    TRY(check_table(p));
    TRY(check_seqused(p));
    TRY(check_left_padding(p));
    if (!(meaning & ATTN_OF_SHAPES)) {
        TRY(check_entries(p));
    }
    return check_positions(p);
}
