/*
 * runs.h: one set of arguments run in every way that must not matter: each kernel table of
 * tables_that_agree, the numbers of threads below, and workspaces of exactly the required size that
 * hold 0xFF, 0x00 or noise and end at an inaccessible page.
 */
#ifndef TESTS_OP_RUNS_H
#define TESTS_OP_RUNS_H

#include <attn/attn.h>
#include <stdbool.h>
#include <stddef.h>

enum runs_poison { RUNS_ONES, RUNS_ZEROS, RUNS_NOISE, RUNS_POISONS };

/* Numbers of threads for each problem, forward and backward. The full build tries all of them, on
 * the same problems. */
#ifdef ONLY_THREADS
enum { RUNS_COUNTS = 1 };
#elif defined(FEW_THREADS)
enum { RUNS_COUNTS = 2 };
#else
enum { RUNS_COUNTS = 4 };
#endif
extern const int runs_threads[RUNS_COUNTS];

/* So many of them, from the first on, for a table: two for scalar, which is slow. */
int runs_counts(const char *table);

struct guarded_region;

/* Content of the workspace before a run. */
void runs_fill(const struct guarded_region *region, enum runs_poison poison);

/* Runs once. Poisons the outputs first. False with a sentence if the call fails. */
bool runs_once(const attn_forward_args *args, const char *table, int threads,
               enum runs_poison poison, char *sentence, size_t size);

/* Runs in all ways. False with a sentence unless all calls succeed with the same bits; the last
 * run's outputs stay. */
bool runs_agree(const attn_forward_args *args, char *sentence, size_t size);

/* Runs on one table, which may be one that needs a request. */
bool runs_agree_on(const attn_forward_args *args, const char *table, char *sentence, size_t size);

#endif
