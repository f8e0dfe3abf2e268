/*
 * tables.h: the kernel tables that tests run on, and contexts for them. Contexts are kept until the program ends, so
 * later calls find whatever earlier ones left behind.
 */
#ifndef TESTS_OP_TABLES_H
#define TESTS_OP_TABLES_H

#include <attn/attn.h>

/* Names of the tables that this build has, this machine runs and nobody has to ask for: one class of bits. Scalar comes
 * first. The machine's tables of another class, which are taken on request only, are tables_on_request; either list may
 * be asked for first. What the machine lacks is printed as skipped, once. */
const char *const *tables_names(int *count);
const char *const *tables_on_request(int *count);

/* A context with this table (NULL: the best) and this many threads. Ends the program if there is none. */
attn_context *tables_context(const char *table, int threads);

#endif
