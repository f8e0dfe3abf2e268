/*
 * both.h: tensors of any strides, and a call on them by the CPU and by this machine's GPU, whose
 * memory must be equal after it.
 */
#ifndef TESTS_CUDA_BOTH_H
#define TESTS_CUDA_BOTH_H

#include "gpu.h"
#include "gpu_copy.h"
#include "inputs.h"
#include "trial.h"

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

/* ---- tensors --------------------------------------------------------------------------------- */

static _Alignas(64) char room[48 << 20];
static size_t used;

static inline uint64_t draw(void)
{
    static int64_t index;
    return inputs_bits(11, INPUTS_Q, index++);
}

/* The orders of axes in memory, from the innermost on, columns between neighbours, and gaps. */
static const struct {
    int axes[4];
    int64_t apart, gap;
    bool reversed;
} layouts[] = {{{3, 2, 1, 0}, 1, 0, false},
               {{3, 1, 2, 0}, 1, 3, false},
               {{3, 2, 1, 0}, 2, 1, true},
               {{0, 2, 3, 1}, 1, 0, false},
               {{1, 3, 0, 2}, 3, 5, true}};
enum { LAYOUTS = COUNT(layouts) };

static inline attn_tensor make(int32_t dtype, const int64_t *n, uint64_t layout)
{
    const size_t size = (size_t)attn_dtype_size(dtype);
    attn_tensor t = attn_tensor_bshd(NULL, (attn_dtype)dtype, n[0], n[1], n[2], n[3]);
    int64_t step = layouts[layout % LAYOUTS].apart, last = 0;
    for (int i = 0; i < 4; i++) {
        const int a = layouts[layout % LAYOUTS].axes[i];
        t.stride[a] = step;
        last += (n[a] - 1) * step;
        step = step * n[a] + layouts[layout % LAYOUTS].gap;
    }
    used = (used + 63) / 64 * 64 + size * (layout % 3); /* any alignment */
    assert_true(used + (size_t)(last + 1) * size <= sizeof room);
    t.data = room + used;
    memset(t.data, 0xFF, (size_t)(last + 1) * size);
    used += (size_t)(last + 1) * size;
    for (int a = 0; a < 4 && layouts[layout % LAYOUTS].reversed; a++) {
        t.data = (char *)t.data + (n[a] - 1) * t.stride[a] * (int64_t)size;
        t.stride[a] = -t.stride[a];
    }
    return t;
}

static inline int64_t count(const attn_tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

/* Stores value(index) in each element. */
static inline void fill(const attn_tensor *t, double (*value)(uint64_t bits))
{
    const int64_t *n = t->shape;
    for (int64_t at = 0; at < count(t); at++) {
        inputs_store(t, at / n[3] / n[2] / n[1], at / n[3] / n[2] % n[1], at / n[3] % n[2],
                     at % n[3], value(draw()));
    }
}

/* ---- both devices ---------------------------------------------------------------------------- */

enum { MOST = 4 };

/* A call's tensors: `of` points into its arguments, in the GPU's copies of them too. */
typedef struct both {
    attn_tensor *here[MOST], *there[MOST];
    gpu_copy copies[MOST];
    void *wanted[MOST];
    void **stream;
    int tensors;
} both;

static inline void put_all(both *b)
{
    for (int i = 0; i < b->tensors; i++) {
        b->copies[i] = gpu_copy_tensor(b->here[i]);
        *b->there[i] = b->copies[i].there;
    }
}

/* Keeps what the CPU has written. */
static inline void keep_all(both *b)
{
    for (int i = 0; i < b->tensors; i++) {
        b->wanted[i] = malloc(b->copies[i].bytes + 1);
        assert_non_null(b->wanted[i]);
        if (b->copies[i].bytes > 0) {
            memcpy(b->wanted[i], b->copies[i].first, b->copies[i].bytes);
        }
    }
}

static inline void assert_ok(attn_status status)
{
    if (status != ATTN_OK) {
        fail_msg("%s", attn_last_error());
    }
}

/* Captures the call with other bytes in its tensors, puts them right, and launches the graph. */
static inline void run_graph(both *b, attn_context *gpu,
                             attn_status (*call)(attn_context *, const void *), const void *args)
{
    static char others[1 << 20];
    char *first[MOST], *right[MOST];
    for (int i = 0; i < b->tensors; i++) {
        const gpu_copy *copy = &b->copies[i];
        if (copy->bytes > 0 && copy->bytes <= sizeof others) {
            first[i] = (char *)copy->there.data - ((char *)copy->here.data - copy->first);
            right[i] = malloc(copy->bytes);
            assert_non_null(right[i]);
            gpu_get(right[i], first[i], copy->bytes);
            gpu_put(first[i], others, copy->bytes);
        } else {
            first[i] = NULL;
        }
    }
    gpu_capture(*b->stream);
    assert_ok(call(gpu, args));
    void *graph = gpu_captured(*b->stream);
    for (int i = 0; i < b->tensors; i++) {
        if (first[i] != NULL) {
            gpu_put(first[i], right[i], b->copies[i].bytes);
            free(right[i]);
        }
    }
    gpu_launch(graph, *b->stream);
    gpu_wait();
    gpu_graph_free(graph);
}

/* Runs the call on the GPU: its memory is the CPU's, gaps included. */
static inline void compare(both *b, attn_context *gpu,
                           attn_status (*call)(attn_context *, const void *), const void *args,
                           bool graph)
{
    static void *stream;
    stream = stream ? stream : gpu_stream();
    *b->stream = graph ? stream : NULL;
    if (graph) {
        run_graph(b, gpu, call, args);
    } else {
        assert_ok(call(gpu, args));
        gpu_wait();
    }
    for (int i = 0; i < b->tensors; i++) {
        gpu_copy_back(&b->copies[i]);
        if (b->copies[i].bytes > 0) {
            assert_memory_equal(b->copies[i].first, b->wanted[i], b->copies[i].bytes);
        }
        assert_true(gpu_margins_intact(&b->copies[i]));
        gpu_copy_free(&b->copies[i]);
        free(b->wanted[i]);
    }
}

#endif
