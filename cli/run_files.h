/*
 * run_files.h: arrays in files as the tensors of a call, for `attn run`. A file is PATH.npy,
 * PATH.safetensors (the tensor's name is then that of its part: q, k, v, mask, ...), or
 * PATH.safetensors:NAME. Every function exits with CLI_USAGE and one sentence if a file is not what
 * it should be.
 */
#ifndef CLI_RUN_FILES_H
#define CLI_RUN_FILES_H

#include "array_file.h"

#include <attn/attn.h>
#include <stdbool.h>

/* Opens an input. name: that of its part, used if the spec names no tensor. */
void run_open(const char *spec, const char *name, array_file *f);

/* True if spec is a .safetensors file without the name of a tensor. */
bool run_is_bundle(const char *spec);

/* The view (batch, sequence, head, dim) of an array (b, s, h, d), (s, h, d) or (s, d); with bhsd,
 * of (b, h, s, d) or (h, s, d). */
attn_tensor run_sequences(const array_file *f, bool bhsd, const char *name);

/* The view (batch, head, query, key) of a mask or bias. Fewer axes are the last ones, as NumPy
 * broadcasts; three axes are refused where the first could be meant as the batch. */
attn_tensor run_scores(const array_file *f, const attn_tensor *q, const char *name);

/* The view (batch, head, 1, 1) of an array (h) or (b, h). */
attn_tensor run_heads(const array_file *f, const char *name);

/* The view (count, 1, 1, 1) of an array of lengths. */
attn_tensor run_list(const array_file *f, const char *name);

/* An output: memory of its own, and where it goes. */
typedef struct run_output {
    const char *spec; /* NULL: not wanted */
    const char *name;
    array_file array;
    void *memory;
} run_output;

/* Exits unless all that are wanted can be written, each to a place of its own. */
void run_check_outputs(const run_output *outputs, int count);

/* Memory for an output with the axes of q, the last one being dim long, or left out if dim is -1;
 * as a tensor. */
attn_tensor run_make_output(run_output *out, const array_file *q, bool bhsd, int64_t dim,
                            int32_t dtype);

/* Writes those that are wanted, each file as a whole or not at all; outputs for one .safetensors
 * file go into it together. Returns an exit status. */
int run_write_outputs(const run_output *outputs, int count);

#endif
