/*
 * runs.h: one set of arguments run in every way that must not matter: each kernel table of
 * tables_that_agree, the numbers of threads below, workspaces of exactly the size asked for that
 * hold 0xFF, 0x00 or noise and end at an inaccessible page.
 */
#ifndef TESTS_OP_RUNS_H
#define TESTS_OP_RUNS_H

#include <attn/attn.h>
#include <stdbool.h>
#include <stddef.h>

enum runs_poison { RUNS_ONES, RUNS_ZEROS, RUNS_NOISE, RUNS_POISONS };

/* How many threads run each problem, forward and backward. Sanitizers and emulators have no time
 * for all of them. */
#ifdef SLOW
enum { RUNS_COUNTS = 2 };
#else
enum { RUNS_COUNTS = 4 };
#endif
extern const int runs_threads[RUNS_COUNTS];

struct region;

/* The content before a run. */
void runs_fill(const struct region *r, enum runs_poison poison);

/* One run. Outputs are poisoned first. False with a sentence if the call fails. */
bool runs_once(const attn_forward_args *args, const char *table, int threads,
               enum runs_poison poison, char *sentence, size_t size);

/* All of them. False with a sentence unless all calls succeed with the same bits; the last run's
 * outputs stay. */
bool runs_agree(const attn_forward_args *args, char *sentence, size_t size);

/* The same on one table, which may be one that is taken on request only. */
bool runs_agree_on(const attn_forward_args *args, const char *table, char *sentence, size_t size);

#endif
