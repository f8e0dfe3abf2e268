/*
 * tables.h: the kernel tables that tests run on, and contexts for them. Contexts are kept until the program ends, so
 * later calls find whatever earlier ones left behind.
 */
#ifndef TESTS_OP_TABLES_H
#define TESTS_OP_TABLES_H

#include <attn/attn.h>
#include <stdbool.h>

/* Names of the tables that this build has and this machine runs, scalar first. Others are printed as skipped, once. */
const char *const *tables_names(int *count);

/* True if this table rounds probabilities of bf16 inputs to bf16 unless ATTN_PRECISE is set: its own class of bits. */
bool tables_round_bf16(const char *table);

/* A context with this table (NULL: the best) and this many threads. Ends the program if there is none. */
attn_context *tables_context(const char *table, int threads);

#endif
