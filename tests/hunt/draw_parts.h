/*
 * draw_parts.h: a problem line under way, and its parts, for draw.c and draw_kinds.c.
 */
#ifndef TESTS_HUNT_DRAW_PARTS_H
#define TESTS_HUNT_DRAW_PARTS_H

#include "draw.h"

#include <stddef.h>

enum { MOST_SEQUENCES = 5 };

#define PICK(d, list) list[dice_roll(d, (int64_t)(sizeof list / sizeof list[0]))]

/* A line under way. */
struct line {
    dice *d;
    char *text;
    size_t size, used;
    int64_t sequences, most_nq, most_nk; /* longest lengths */
    int64_t head_dim, v_dim;
    bool varlen;
    bool far; /* scores may be far apart */
};

__attribute__((format(printf, 2, 3))) void put(struct line *l, const char *format, ...);

/* Writes a list with one number for each sequence. */
void put_list(struct line *l, const char *name, const int64_t *values);

/* Draws a small number, or one beside the end of a strip, tile, block or segment. */
int64_t draw_length(dice *d, bool may_be_long);

/* Draws some of the letters, or 1. */
const char *draw_axes(dice *d, const char *letters, char axes[5]);

const char *draw_type(dice *d);

/* Writes b, nq and nk, or the lengths of sequences. */
void put_lengths(struct line *l, bool varlen, int64_t *nq, int64_t *nk);

/* Writes heads and head dimensions; fewer where there are many scores. */
void put_heads(struct line *l);

void put_scores(struct line *l, bool gradients);

/* Writes codes for K and V. False where NaN are sown and the codes are integers, which have
 * none. */
bool put_codes(struct line *l);

#endif
