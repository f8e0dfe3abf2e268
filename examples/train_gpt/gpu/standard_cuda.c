/*
 * standard_cuda.c: materialised attention on the GPU, all heads at once: the products of the linear
 * layers and kernels for the softmax, in the steps of standard.c.
 */
#include <math.h>

#include "launch.h"

uint64_t cuda_standard_scratch_bytes(attention_shape shape, double dropout_p)
{
    (void)dropout_p; /* 0 */
    return (uint64_t)shape.batch * (uint64_t)shape.heads * (uint64_t)shape.length *
           (uint64_t)shape.length * sizeof(real);
}

/* Part 0, 1, 2 of qkv, or the only one of o: a length x dim matrix of each head. */
static gpu_matrix rows_of(attention_shape s, const real *rows, int parts, int part)
{
    const int64_t width = (int64_t)s.heads * s.dim, row = parts * width;
    return (gpu_matrix){(real *)rows + part * width, row, 1, s.length * row, s.dim};
}

static gpu_matrix squares_of(attention_shape s, void *squares)
{
    const int64_t square = (int64_t)s.length * s.length;
    return (gpu_matrix){squares, s.length, 1, s.heads * square, square};
}

static gpu_matrix flipped(gpu_matrix a)
{
    return (gpu_matrix){a.data, a.column, a.row, a.sequence, a.head};
}

static void multiply(attention_shape s, int n, int k, gpu_matrix a, gpu_matrix b, gpu_matrix c)
{
    launch_products(
        s.batch,
        (matmul_args){.m = s.length, .n = n, .k = k, .heads = s.heads, .a = a, .b = b, .c = c});
}

static void softmax(attention_shape s, int kernel, real *p, void *ds)
{
    launch(kernel, (gpu_grid){(unsigned)(s.batch * s.heads * s.length), 1, 1, GPT_THREADS},
           &(softmax_args){s.length, 1 / sqrtf((real)s.dim), p, ds});
}

void cuda_standard_forward(const standard_heads *heads, real *o)
{
    const attention_shape s = heads->shape;
    const gpu_matrix q = rows_of(s, heads->qkv, 3, 0), k = rows_of(s, heads->qkv, 3, 1),
                     v = rows_of(s, heads->qkv, 3, 2), p = squares_of(s, heads->probabilities);
    multiply(s, s.length, s.dim, q, flipped(k), p);
    softmax(s, KERNEL_softmax_forward, p.data, NULL);
    multiply(s, s.dim, s.length, p, v, rows_of(s, o, 1, 0));
}

void cuda_standard_backward(const standard_heads *heads, const real *d_o, real *d_qkv)
{
    const attention_shape s = heads->shape;
    const gpu_matrix q = rows_of(s, heads->qkv, 3, 0), k = rows_of(s, heads->qkv, 3, 1),
                     v = rows_of(s, heads->qkv, 3, 2), d_out = rows_of(s, d_o, 1, 0),
                     p = squares_of(s, heads->probabilities), ds = squares_of(s, heads->scratch);
    multiply(s, s.dim, s.length, flipped(p), d_out, rows_of(s, d_qkv, 3, 2));
    multiply(s, s.length, s.dim, d_out, flipped(v), ds);
    softmax(s, KERNEL_softmax_backward, p.data, ds.data);
    multiply(s, s.dim, s.length, ds, k, rows_of(s, d_qkv, 3, 0));
    multiply(s, s.dim, s.length, flipped(ds), q, rows_of(s, d_qkv, 3, 1));
}
