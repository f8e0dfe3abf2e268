/*
 * steps.h: a step of decoding in two ways: new rows and rotation within the call (k_new, v_new,
 * rope_*), and the same done before it.
 */
#ifndef TESTS_OP_STEPS_H
#define TESTS_OP_STEPS_H

#include "problem.h"

/* The rotation as the test knows it. */
typedef struct rotation {
    int64_t dims;
    bool interleaved;
    double base;
} rotation;

/* `whole` has its rows in the cache and Q rotated; `step` gets them by k_new and v_new, its cache
 * holding NaN there. Both are problems of fixed lengths without axes of stride 0. */
typedef struct steps {
    problem_spec problem;
    problem_tensors whole, step;
    attn_tensor q, k_new, v_new; /* of their own */
} steps;

/* r: NULL for no rotation. False without memory. */
bool steps_open(const problem_spec *problem, const rotation *r, steps *s);
void steps_close(steps *s);

/* Runs both on a table. False with a sentence unless outputs and caches have the same bits. */
bool steps_agree(steps *s, const char *table, int threads, char *sentence, size_t size);

/* A dense tensor of the same shape and values; free() its data. */
attn_tensor steps_copy(const attn_tensor *from);

#endif
