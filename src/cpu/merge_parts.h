/*
 * merge_parts.h: LSE of parts and of all of them, the weights of merge_parts.c and of
 * merge_backward.c.
 */
#ifndef ATTN_CPU_MERGE_PARTS_H
#define ATTN_CPU_MERGE_PARTS_H

#include <attn/attn.h>

double attn_part_lse(const attn_merge_args *args, int64_t part, int64_t b, int64_t i, int64_t h);

/* ln sum exp(lse_p); NaN if any part's is. */
double attn_merged_lse(const attn_merge_args *args, int64_t b, int64_t i, int64_t h);

#endif
