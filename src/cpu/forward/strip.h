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

/* Writes the strip's rows of O, LSE and row maximum. */
void attn_strip_finish(const attn_forward_item *item, int strip_index);

#endif
