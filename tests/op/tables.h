/*
 * tables.h: the kernel tables that tests run on, and contexts for them. Contexts are kept until the
 * program ends, so later calls find whatever earlier ones left behind.
 */
#ifndef TESTS_OP_TABLES_H
#define TESTS_OP_TABLES_H

#include "errors.h"

/* Names of the tables that this build has and this machine runs and that give scalar's bits, scalar
 * first; tables_own_bits: those that give bits of their own. Either list may be asked for first.
 * What the machine lacks is printed as skipped, once. tables_that_agree: those that give the same
 * bits for this type and these flags. */
const char *const *tables_names(int *count);
const char *const *tables_own_bits(int *count);
const char *const *tables_that_agree(int32_t dtype, uint64_t flags, int *count);

/* The best of tables_names. */
const char *tables_usual(void);

/* What the errors of a call on a table (NULL: one with scalar's bits) may be. */
errors_limits tables_allowed(const char *table, int32_t dtype, uint64_t flags);

/* A context with this table (NULL: the best) and this many threads. Ends the program if there is
 * none. */
attn_context *tables_context(const char *table, int threads);

#endif
