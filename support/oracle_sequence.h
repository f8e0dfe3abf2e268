/*
 * oracle_sequence.h: one sequence as the formula of attn.h sees it: the place of its rows, the keys
 * that a row sees, the positions that dropout keeps. Included after <tgmath.h>.
 */
#ifndef SUPPORT_ORACLE_SEQUENCE_H
#define SUPPORT_ORACLE_SEQUENCE_H

#include "oracle.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct sequence {
    const attn_forward_args *args;
    const oracle_result *result;
    int64_t index, tensor;          /* b, and the index of axis 0 of q, k, v */
    int64_t q_first, k_first;       /* the sequence's first rows in q, o and in k, v */
    int64_t rows, nq, nk;           /* query rows; those in use; keys in use */
    int64_t q_position, k_position; /* of row 0 and key 0 in the whole sequence */
    int64_t diagonal;               /* off */
    int64_t d, dv;
    double scale;
};

static double broadcast(const attn_tensor *t, double absent, int64_t b, int64_t h, int64_t i,
                        int64_t j)
{
    return t->data == NULL ? absent
                           : oracle_element(t, t->shape[0] == 1 ? 0 : b, t->shape[1] == 1 ? 0 : h,
                                            t->shape[2] == 1 ? 0 : i, t->shape[3] == 1 ? 0 : j);
}

/* Row i sees keys first_key .. end_key-1 by causality, window and lengths (C3). */
static int64_t first_key(const struct sequence *q, int64_t i)
{
    int64_t left = q->args->flags & ATTN_WINDOW ? q->args->window_left : -1;
    return left >= 0 && left < i + q->diagonal ? i + q->diagonal - left : 0;
}

static int64_t end_key(const struct sequence *q, int64_t i)
{
    int64_t right = q->args->flags & ATTN_WINDOW ? q->args->window_right : -1, end = q->nk;
    if (right >= 0 && right < end - 1 - i - q->diagonal) {
        end = i + q->diagonal + right + 1;
    }
    if ((q->args->flags & ATTN_CAUSAL) && i + q->diagonal + 1 < end) {
        end = i + q->diagonal + 1;
    }
    return i < q->nq ? end : 0;
}

static int64_t count_at(const attn_tensor *t, int64_t i, int64_t absent)
{
    return t->data == NULL ? absent : (int64_t)oracle_element(t, i, 0, 0, 0);
}

/* q_origin or k_origin of sequence b. */
static int64_t position_at(const attn_tensor *t, int64_t b)
{
    return count_at(t, t->shape[0] > 1 ? b : 0, 0);
}

/* Element of K or V of a sequence. */
static double key_element(const struct sequence *q, const attn_tensor *t, int64_t key, int64_t head,
                          int64_t column)
{
    const attn_tensor *table = &q->args->block_table;
    const int64_t row = q->k_first + key, size = t->shape[1];
    if (table->data == NULL) {
        return oracle_element(t, q->tensor, row, head, column);
    }
    const int64_t page = (int64_t)oracle_element(table, q->index, row / size, 0, 0);
    return oracle_element(t, page, row % size, head, column);
}

static struct sequence sequence_of(const attn_forward_args *x, const oracle_result *result,
                                   int64_t b)
{
    struct sequence q = {
        .args = x, .result = result, .index = b, .tensor = x->cu_seqlens_q.data ? 0 : b};
    q.q_first = count_at(&x->cu_seqlens_q, b, 0), q.k_first = count_at(&x->cu_seqlens_k, b, 0);
    q.rows = count_at(&x->cu_seqlens_q, b + 1, x->q.shape[1]) - q.q_first;
    q.nq = count_at(&x->seqused_q, b, q.rows);
    const int64_t pages = x->block_table.data ? x->block_table.shape[1] : 1;
    q.nk = count_at(&x->cu_seqlens_k, b + 1, x->k.shape[1] * pages) - q.k_first;
    const int64_t padding = count_at(&x->leftpad_k, b, 0);
    q.nk = count_at(&x->seqused_k, b, q.nk) - padding, q.k_first += padding;
    q.diagonal = x->flags & ATTN_TOP_LEFT ? 0 : q.nk - q.nq;
    q.q_position = position_at(&x->q_origin, b), q.k_position = position_at(&x->k_origin, b);
    if (x->q_origin.data != NULL || x->k_origin.data != NULL) {
        q.diagonal = q.q_position - q.k_position;
    }
    q.d = x->q.shape[3], q.dv = x->v.shape[3];
    q.scale = x->flags & ATTN_SCALE ? x->softmax_scale : q.d > 0 ? 1 / sqrt((double)q.d) : 1;
    return q;
}

/* Sequences, and for a varlen call with a sink that is the same for all of them two more: the rows
 * before the first one and after the last one (attn.h, cu_seqlens). */
static int64_t sequences_of(const attn_forward_args *x)
{
    int64_t batch = x->cu_seqlens_q.data ? x->cu_seqlens_q.shape[0] - 1 : x->q.shape[0];
    bool outside = x->cu_seqlens_q.data && x->sinks.data && x->sinks.shape[0] == 1;
    return outside ? batch + 2 : batch;
}

/* Sequence b of them. */
static struct sequence any_sequence_of(const attn_forward_args *x, const oracle_result *result,
                                       int64_t b)
{
    int64_t batch = x->cu_seqlens_q.data ? x->cu_seqlens_q.shape[0] - 1 : x->q.shape[0];
    if (b < batch) {
        return sequence_of(x, result, b);
    }
    struct sequence q = {.args = x, .result = result, .d = x->q.shape[3], .dv = x->v.shape[3]};
    q.q_first = b == batch ? 0 : count_at(&x->cu_seqlens_q, batch, 0);
    q.rows = (b == batch ? count_at(&x->cu_seqlens_q, 0, 0) : x->q.shape[1]) - q.q_first;
    return q;
}

/* Z of C11 for row i and key j. */
static double dropout_factor(const struct sequence *q, int64_t h, int64_t i, int64_t j)
{
    const attn_forward_args *x = q->args;
    bool keep = x->dropout_p == 0 ||
                oracle_keeps(x->dropout_p, x->dropout_seed, x->dropout_offset, q->index,
                             x->q.shape[2], h, i + q->q_position, j + q->k_position);
    return !keep ? 0 : x->dropout_p == 0 ? 1 : 1 / (1 - x->dropout_p);
}

#endif
