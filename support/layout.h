/*
 * layout.h: strides of a problem's tensors, by enum problem_layout. Not here: memory.
 */
#ifndef SUPPORT_LAYOUT_H
#define SUPPORT_LAYOUT_H

#include <attn/attn.h>
#include <stdbool.h>

enum role { ROLE_Q, ROLE_K, ROLE_V, ROLE_O, ROLE_ROW, ROLE_SCORES, ROLE_LIST };

/* Sets the strides of a tensor by its extents. */
void layout_apply(attn_tensor *t, int layout, enum role role);

/* Gives axes of one element a huge stride: they may have any. */
void layout_loosen(attn_tensor *t);

/* A tensor of these extents, without strides and memory. */
attn_tensor layout_shaped(int64_t n0, int64_t n1, int64_t n2, int64_t n3, int32_t dtype);

/* False if sizes in bytes come near 2^63, gaps included. */
bool layout_fits(const attn_tensor *t);

/* Number of elements from the lowest address to the highest, and number below index (0, 0, 0,
 * 0). */
int64_t layout_span(const attn_tensor *t, int64_t *below);

#endif
