/*
 * steps.h: a step of decoding in two ways: new rows and rotation within the call (k_new, v_new,
 * rope_*), and both done before it, new rows of a quantised cache by attn_quantize.
 */
#ifndef TESTS_OP_STEPS_H
#define TESTS_OP_STEPS_H

#include "problem.h"

/* The rotation of a test. */
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

/* r: the rotation, or NULL. False without memory. */
bool steps_open(const problem_spec *problem, const rotation *r, steps *s);
void steps_close(steps *s);

/* Runs both on a table. False with a sentence unless outputs and caches have the same bits. */
bool steps_agree(steps *s, const char *table, int threads, char *sentence, size_t size);

/* Makes a dense tensor of equal shape and values. The caller frees its data. */
attn_tensor steps_copy(const attn_tensor *from);

#endif
