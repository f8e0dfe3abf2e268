/*
 * views.h: tensors of a fuzzer's call. Each lies in a buffer of exactly its size, so that ASan sees
 * one byte too many; any field of it can be replaced by any value.
 */
#ifndef TESTS_FUZZ_VIEWS_H
#define TESTS_FUZZ_VIEWS_H

#include "bytes.h"

enum { VIEWS_MOST = 32 };

typedef struct view {
    attn_tensor *tensor;
    char *buffer, *before; /* before: a copy of the buffer */
    size_t bytes;
    bool output;
} view;

typedef struct views {
    view list[VIEWS_MOST];
    int count;
} views;

/* Makes *tensor a view of a fresh buffer that repeats the input. The input says which axes run
 * backwards, and the strides of axes of extent 1, which may be any number. */
void views_create(views *all, input *in, attn_tensor *tensor, bool output, int32_t dtype,
                  const int64_t shape[4]);

/* Sets element (i, j) of the first two axes of a tensor of i32 or i64. */
void views_set(const attn_tensor *tensor, int64_t i, int64_t j, int64_t value);

/* Replaces a field by any value. */
void views_change(attn_tensor *tensor, input *in);

/* Every element of the tensor, or of each view, lies in its buffer. */
bool views_hold(const views *all, const attn_tensor *tensor);
bool views_inside(const views *all);

/* No view leaves the address space: what overlaps there cannot be told. */
bool views_have_addresses(const views *all);

/* A call reads and writes no more than some thousand elements of the views. */
bool views_affordable(const views *all);

void views_remember(views *all);
/* No buffer of an input, nor of an output if `outputs`, differs from what was remembered. */
bool views_unchanged(const views *all, bool outputs);

void views_free(views *all);

#endif
