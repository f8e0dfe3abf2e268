/*
 * device.h: where the model computes: memory, and the operations of the model on it, as a table.
 * The CPU's is made of layers.h, matmul.h, standard.h and adamw_update.h, which say what each
 * operation does; a GPU's (gpu/) does the same in plain CUDA C. Pointers to numbers of the model
 * belong to the device. Operations of a GPU return before they are done; each sees what those
 * before it wrote.
 */
#ifndef TRAIN_GPT_DEVICE_H
#define TRAIN_GPT_DEVICE_H

#include "adamw_update.h"
#include "layers.h"
#include "matmul.h"
#include "standard.h"

typedef struct device {
    const char *name;
    attn_context *(*context)(void); /* a new context of the library */

    void *(*allocate)(size_t count, size_t size); /* zeroed; ends the program without memory */
    void (*release)(void *memory);
    void (*put)(void *to, const void *here, size_t bytes); /* from the host; waits */
    void (*get)(void *here, const void *from, size_t bytes);
    void (*copy)(void *to, const void *from, size_t bytes);
    void (*clear)(void *memory, size_t bytes);
    double (*free_bytes)(void);
    void (*wait)(void); /* until all operations are done; NULL: they are, when they return */

    void (*embed_forward)(int rows, int length, int width, const uint8_t *tokens,
                          const int64_t *first, const real *token, const real *position, real *out);
    void (*embed_backward)(int rows, int length, int width, const uint8_t *tokens,
                           const real *d_out, real *d_token, real *d_position);
    void (*norm_forward)(int rows, int width, const real *x, const real *gain, const real *bias,
                         real *out, real (*stats)[2]);
    void (*norm_backward)(int rows, int width, const real *x, const real *gain,
                          const real (*stats)[2], const real *d_out, real *d_x, real *d_gain,
                          real *d_bias);
    void (*matmul)(int m, int n, int k, matrix a, matrix b, matrix c, bool add);
    void (*gelu_forward)(int64_t count, const real *x, real *out);
    void (*gelu_backward)(int64_t count, const real *x, real *d);
    double (*cross_entropy)(int rows, const uint8_t *targets, real *logits, double *losses);
    double (*magnitude)(int64_t count, const real *x);
    void (*adamw)(int64_t count, const adamw_rule *rule, const real *gradient, real *mean,
                  real *square, real *parameter);

    uint64_t (*standard_scratch_bytes)(attention_shape shape, double dropout_p);
    void (*standard_forward)(const standard_heads *heads, real *o);
    void (*standard_backward)(const standard_heads *heads, const real *d_o, real *d_qkv);
} device;

extern const device device_cpu;

/* GPU 0. Ends the program with a sentence if there is none, or none was built for. */
const device *device_cuda(void);

#endif
