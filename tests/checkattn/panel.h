/*
 * panel.h: matrices in the kit's type with rows and columns anywhere, as the packing members take
 * them.
 */
#ifndef TESTS_CHECKATTN_PANEL_H
#define TESTS_CHECKATTN_PANEL_H

#include "kit.h"

/* rows x cols as (1, rows, 1, cols), in a locked slot: rows with gaps, columns with this stride. */
attn_tensor panel_matrix(kernel_kit *kit, enum slot slot, int64_t rows, int64_t cols,
                         enum values kind, int64_t col_stride);

const void *panel_row(const attn_tensor *t, int64_t row);

/* The rows from this one on, for the packing members. */
attn_rows panel_rows(const attn_tensor *t, int64_t first);

double panel_element(const attn_tensor *t, int64_t row, int64_t col);

/* Strides of columns, for a check's turn. */
int64_t panel_stride(int64_t turn);

/* Head dimensions around the widths of vectors, granules, chunks and the usual models. */
extern const int64_t panel_dims[];
extern const int panel_dims_count;

/* Steps between numbers of keys: all numbers for some dimensions, a part for the others. */
#ifdef SLOW
enum { PANEL_STEP_ALL = SLOW, PANEL_STEP = 7 * SLOW };
#else
enum { PANEL_STEP_ALL = 1, PANEL_STEP = 7 };
#endif

#endif
