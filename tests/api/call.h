/*
 * call.h: a valid forward call and its right result, for tests of the way of calling rather than of
 * the result. Includes cmocka and its headers.
 */
#ifndef TESTS_API_CALL_H
#define TESTS_API_CALL_H

#include "outputs.h"
#include "problem.h"
#include "region.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A line for which the answer does not matter, with enough work for a few threads. */
#define CALL_LINE "b=2 hq=4 hkv=2 nq=70 nk=90 d=16 dtype=f32 causal=1 lse=1 row_max=1"

typedef struct call {
    problem_tensors tensors;
    attn_forward_args *args; /* of tensors */
    unsigned char *right;    /* the bits of the right outputs */
    size_t bytes;
} call;

/* Makes the tensors between guard pages, finds the right bits on one thread and has them judged by
 * the oracle; leaves the outputs poisoned. */
void call_open(call *c, const char *line);
void call_close(call *c);

/* True if the outputs hold the right bits and nothing else was written; poisons them again. */
bool call_is_right(call *c);

/* True if no byte of the outputs or inputs was written since the last poison. */
bool call_is_untouched(const call *c);

#endif
