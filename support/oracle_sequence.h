/*
 * oracle_sequence.h: one sequence as the formula of attn.h sees it: the place of its rows, the keys
 * that a row sees, the positions that dropout keeps. Included after <tgmath.h>.
 */
#ifndef SUPPORT_ORACLE_SEQUENCE_H
#define SUPPORT_ORACLE_SEQUENCE_H

#include "codes.h"
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
    const bool one_key = t->shape[3] == 1 && t->dtype != ATTN_B1X8; /* eight keys in one element */
    return t->data == NULL ? absent
                           : oracle_element(t, t->shape[0] == 1 ? 0 : b, t->shape[1] == 1 ? 0 : h,
                                            t->shape[2] == 1 ? 0 : i, one_key ? 0 : j);
}

/* Row i sees keys first_key .. end_key-1 by causality, window and lengths (C3). */
static int64_t first_key(const struct sequence *sequence, int64_t i)
{
    int64_t left = sequence->args->flags & ATTN_WINDOW ? sequence->args->window_left : -1;
    return left >= 0 && left < i + sequence->diagonal ? i + sequence->diagonal - left : 0;
}

static int64_t end_key(const struct sequence *sequence, int64_t i)
{
    int64_t right = sequence->args->flags & ATTN_WINDOW ? sequence->args->window_right : -1,
            end = sequence->nk;
    if (right >= 0 && right < end - 1 - i - sequence->diagonal) {
        end = i + sequence->diagonal + right + 1;
    }
    if ((sequence->args->flags & ATTN_CAUSAL) && i + sequence->diagonal + 1 < end) {
        end = i + sequence->diagonal + 1;
    }
    return i < sequence->nq ? end : 0;
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

/* Element of K, or of V, of a sequence. */
static double key_element(const struct sequence *sequence, bool v, int64_t key, int64_t head,
                          int64_t column)
{
    const attn_forward_args *args = sequence->args;
    const attn_tensor *table = &args->block_table, *t = v ? &args->v : &args->k;
    int64_t row[3] = {sequence->tensor, sequence->k_first + key, head};
    if (table->data != NULL) {
        row[0] = (int64_t)oracle_element(table, sequence->index, row[1] / t->shape[1], 0, 0);
        row[1] %= t->shape[1];
    }
    return codes_type(t->dtype) ? codes_value(t, v ? &args->v_scale : &args->k_scale,
                                              v ? &args->v_shift : &args->k_shift, row, column)
                                : oracle_element(t, row[0], row[1], head, column);
}

static struct sequence sequence_of(const attn_forward_args *args, const oracle_result *result,
                                   int64_t b)
{
    struct sequence sequence = {
        .args = args, .result = result, .index = b, .tensor = args->cu_seqlens_q.data ? 0 : b};
    sequence.q_first = count_at(&args->cu_seqlens_q, b, 0),
    sequence.k_first = count_at(&args->cu_seqlens_k, b, 0);
    sequence.rows = count_at(&args->cu_seqlens_q, b + 1, args->q.shape[1]) - sequence.q_first;
    sequence.nq = count_at(&args->seqused_q, b, sequence.rows);
    const int64_t pages = args->block_table.data ? args->block_table.shape[1] : 1;
    sequence.nk = count_at(&args->cu_seqlens_k, b + 1, args->k.shape[1] * pages) - sequence.k_first;
    const int64_t padding = count_at(&args->leftpad_k, b, 0);
    sequence.nk = count_at(&args->seqused_k, b, sequence.nk) - padding, sequence.k_first += padding;
    sequence.diagonal = args->flags & ATTN_TOP_LEFT ? 0 : sequence.nk - sequence.nq;
    sequence.q_position = position_at(&args->q_origin, b),
    sequence.k_position = position_at(&args->k_origin, b);
    if (args->q_origin.data != NULL || args->k_origin.data != NULL) {
        sequence.diagonal = sequence.q_position - sequence.k_position;
    }
    sequence.d = args->q.shape[3], sequence.dv = args->o.shape[3];
    sequence.scale = args->flags & ATTN_SCALE ? args->softmax_scale
                     : sequence.d > 0         ? 1 / sqrt((double)sequence.d)
                                              : 1;
    return sequence;
}

/* The number of sequences; two more for a varlen call with a sink that all sequences share: the
 * rows before the first one and after the last one (attn.h, cu_seqlens). */
static int64_t sequences_of(const attn_forward_args *args)
{
    int64_t batch = args->cu_seqlens_q.data ? args->cu_seqlens_q.shape[0] - 1 : args->q.shape[0];
    bool outside = args->cu_seqlens_q.data && args->sinks.data && args->sinks.shape[0] == 1;
    return outside ? batch + 2 : batch;
}

/* Sequence b of sequences_of. */
static struct sequence any_sequence_of(const attn_forward_args *args, const oracle_result *result,
                                       int64_t b)
{
    int64_t batch = args->cu_seqlens_q.data ? args->cu_seqlens_q.shape[0] - 1 : args->q.shape[0];
    if (b < batch) {
        return sequence_of(args, result, b);
    }
    struct sequence sequence = {
        .args = args, .result = result, .d = args->q.shape[3], .dv = args->o.shape[3]};
    sequence.q_first = b == batch ? 0 : count_at(&args->cu_seqlens_q, batch, 0);
    sequence.rows =
        (b == batch ? count_at(&args->cu_seqlens_q, 0, 0) : args->q.shape[1]) - sequence.q_first;
    return sequence;
}

/* Z of C11 for row i and key j. */
static double dropout_factor(const struct sequence *sequence, int64_t h, int64_t i, int64_t j)
{
    const attn_forward_args *args = sequence->args;
    bool keep =
        args->dropout_p == 0 ||
        oracle_keeps(args->dropout_p, args->dropout_seed, args->dropout_offset, sequence->index,
                     args->q.shape[2], h, i + sequence->q_position, j + sequence->k_position);
    return !keep ? 0 : args->dropout_p == 0 ? 1 : 1 / (1 - args->dropout_p);
}

#endif
