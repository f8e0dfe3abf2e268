/*
 * run_files.h: arrays in files as the tensors of a call, for `attn run`. A file is PATH.npy,
 * PATH.safetensors (with the part's name as the tensor's: q, k, v, mask, ...), or
 * PATH.safetensors:NAME. Every function exits with CLI_USAGE and one sentence if a file is unfit.
 */
#ifndef CLI_RUN_FILES_H
#define CLI_RUN_FILES_H

#include "array_file.h"

#include <attn/attn.h>
#include <stdbool.h>

/* Opens an input. name: the part's, used if the spec names no tensor. */
void run_open(const char *spec, const char *name, array_file *file);

/* True if spec is a .safetensors file without a tensor's name. */
bool run_is_bundle(const char *spec);

/* The view (batch, sequence, head, dim) of an array (b, s, h, d), (s, h, d) or (s, d); with bhsd,
 * of (b, h, s, d) or (h, s, d). */
attn_tensor run_sequences(const array_file *file, bool bhsd, const char *name);

/* The view (batch, sequence, head, 1) of an array with the axes of q without the last. */
attn_tensor run_rows(const array_file *file, bool bhsd, const char *name);

/* The view (batch, head, query, key) of a mask or bias. Fewer axes are the last ones, as NumPy
 * broadcasts. Three axes are refused where the first could mean the batch. */
attn_tensor run_scores(const array_file *file, const attn_tensor *q, const char *name);

/* The view (batch, head, 1, 1) of an array (h) or (b, h). */
attn_tensor run_heads(const array_file *file, const char *name);

/* The view (count, 1, 1, 1) of an array of lengths. */
attn_tensor run_list(const array_file *file, const char *name);

/* An output: its memory and its file. */
typedef struct run_output {
    const char *spec; /* NULL: not wanted */
    const char *name;
    array_file array;
    void *memory;
} run_output;

/* Exits unless all that are wanted can be written, each to a place of its own, none of them an
 * input's (specs; NULL: not given). */
void run_check_outputs(const run_output *outputs, const char *const *inputs, int count);

/* Makes the array of an output. */
void run_make_array(run_output *out, int ndim, const int64_t *shape, int32_t dtype);

/* Writes the wanted outputs, each file as a whole or not at all; outputs for one .safetensors file
 * go into it together. Returns an exit status. */
int run_write_outputs(const run_output *outputs, int count);

#endif
