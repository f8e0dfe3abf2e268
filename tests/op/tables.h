/*
 * tables.h: the kernel tables that tests run on, and contexts for them. Contexts are kept until the
 * program ends, so later calls meet the traces of earlier ones.
 */
#ifndef TESTS_OP_TABLES_H
#define TESTS_OP_TABLES_H

#include "errors.h"

#include <stdbool.h>

/* Names of the tables of this build that this machine runs and that give scalar's bits, scalar
 * first; tables_own_bits: those with bits of their own. Either list may be asked for first. Tables
 * that the machine lacks are printed as skipped, once. tables_that_agree: those that give the same
 * bits for this type and these flags. */
const char *const *tables_names(int *count);
const char *const *tables_own_bits(int *count);
const char *const *tables_that_agree(int32_t dtype, uint64_t flags, int *count);

/* The best of tables_names. */
const char *tables_usual(void);

/* Limits of a call's errors on a table (NULL: one with scalar's bits). */
errors_limits tables_allowed(const char *table, int32_t dtype, uint64_t flags);

/* True if the table computes bf16 with results below the smallest normal number flushed to 0. */
bool tables_flush(const char *table);

/* A context with this table (NULL: the best) and this many threads. Ends the program on failure. */
attn_context *tables_context(const char *table, int threads);

#endif
