/*
 * strip.h: the two ends of a strip: rows of Q in, O and LSE out. Not here: keys and tiles
 * (forward.c).
 */
#ifndef ATTN_CPU_FORWARD_STRIP_H
#define ATTN_CPU_FORWARD_STRIP_H

#include "cpu/forward/item.h"

/* Sets up the strip's block of rows, packs its rows of Q if one of them sees a key, and resets
 * it. */
void attn_strip_start(attn_forward_item *item, int strip_index);

/* Sets the running state before the first key. */
void attn_strip_reset(const attn_forward_item *item, int strip_index);

/* Prefetches the strip's rows of the second O: their stores would wait for each line, since nothing
 * else has read them. */
void attn_strip_prefetch(const attn_forward_item *item, int strip_index);

/* Adds V^T P over n keys of the panel at hand, from `at` on, to sums that are rows; behind the last
 * keys it may store O. alpha as in pv. */
void attn_strip_add_rows(attn_forward_item *item, int strip_index, int64_t at, int64_t n,
                         const void *alpha, bool last);

/* True if the strip's sums are finite. Stores O if they are rows and are. */
bool attn_strip_is_finite(attn_forward_item *item, int strip_index);

/* Writes the strip's rows of O, unless they are stored, LSE and row maximum. */
void attn_strip_finish(const attn_forward_item *item, int strip_index);

#endif
