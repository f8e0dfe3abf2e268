/*
 * words.h: the words of a problem line as a table. Private to problem_read.c (which reads lines)
 * and problem_print.c (which writes them): a new word is one line in words.c and a member of struct
 * problem.
 */
#ifndef SUPPORT_WORDS_H
#define SUPPORT_WORDS_H

#include "problem.h"

enum { PROBLEM_MAX_LINE = 16384 };

/* SIZE, INTEGER: int64_t. THREADS: int32_t. NAME: int32_t. AXES, CPU: a string. TYPED_AXES: a
 * string and its type (word_type). LIST: int64_t[PROBLEM_MAX_SEQS]. */
enum word_kind { SIZE, INTEGER, THREADS, SEED, REAL, BOOLEAN, NAME, AXES, TYPED_AXES, LIST, CPU };

struct name {
    const char *name;
    int32_t value;
};

struct word {
    const char *name;
    enum word_kind kind;
    size_t at;                /* the member of struct problem_spec */
    size_t has;               /* the member that says whether the word was given; 0 = none */
    const struct name *names; /* NAME: the alternatives, up to a NULL; TYPED_AXES: the types */
    const char *axes;         /* AXES, TYPED_AXES: the letters */
};

extern const struct word problem_words[];
extern const int problem_words_count;
extern const struct name problem_floats[];

/* TYPED_AXES: the member that has the type; *usual = the type that goes without saying. */
size_t word_type(const struct word *word, int32_t *usual);

/* Sets the meaning of a line without words. -1 in b, hkv, nq, nk, dv and 0 in o_dtype: follows from
 * other words. */
void problem_defaults(problem_spec *problem);

#endif
