/*
 * ladder.h: attention in steps, from the textbook to the form that the library computes, each a
 * function short enough to be read at a glance. All compute O = softmax(scale Q K^T + mask) V of
 * one head. Not here: the last step, attn_forward.
 *
 * Traffic is counted as if Q, K, V, O and the matrix of scores were far away, and a row or a tile
 * of them near: a count for each number that a step fetches or stores, with nothing kept for later
 * but the row or the tile at hand.
 */
#ifndef LADDER_H
#define LADDER_H

#include <stdint.h>

/* Bytes between far and near memory so far. */
typedef struct ladder_traffic {
    double read, written;
} ladder_traffic;

/* Rows lie one behind the other: q [nq][d], k [nk][d], v [nk][dv], o [nq][dv]. */
typedef struct ladder_head {
    int64_t nq, nk, d, dv;
    const float *q, *k, *v;
    float *o;
    float scale;
    int causal;    /* row i sees keys 0 .. i + nk - nq, else all */
    float *scores; /* [nq][nk], for the steps that store the matrix; NULL: no room for it */
    ladder_traffic *traffic;
} ladder_head;

/* The number of keys that row i sees: the first ones. */
int64_t ladder_visible(const ladder_head *head, int64_t row);

/* Returns scale q_row . k_key; counts no traffic. */
float ladder_score(const ladder_head *head, int64_t row, int64_t key);

/* Counts numbers that are fetched or stored. */
void ladder_read(const ladder_head *head, int64_t numbers);
void ladder_write(const ladder_head *head, int64_t numbers);

/* Computes a row of O: the row's probabilities, in head->scores, times V. */
void ladder_weigh(const ladder_head *head, int64_t row);

/* The steps. A row without a visible key gives zeros. */
void ladder_standard(const ladder_head *head); /* exp as it is: overflows where scores are large */
void ladder_safe(const ladder_head *head);     /* three passes: maximum, sum, probabilities */
void ladder_online(const ladder_head *head);   /* two passes: the sum follows the maximum */
void ladder_one_pass(const ladder_head *head); /* O follows too: no matrix of scores */
void ladder_tiles(const ladder_head *head);    /* a tile of keys serves a block of rows */

/* Published forms, each with a flaw that shows on some input. */
void ladder_block_maximum(const ladder_head *head); /* the maximum of the block at hand */
void ladder_epsilon(const ladder_head *head);       /* 1e-6 added to the sum of each block */
void ladder_empty_row(const ladder_head *head);     /* no rule for rows without a key */

#endif
