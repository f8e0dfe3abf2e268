/*
 * lines.h: the main function of tests that try files of problem lines against the oracle.
 */
#ifndef TESTS_OP_LINES_H
#define TESTS_OP_LINES_H

#include "problem.h"

#include <stdbool.h>
#include <stddef.h>

/* Tries one problem. Says why it failed, or gives its error as a share of the bound. */
typedef bool lines_try(const problem_spec *problem, double *error, char *sentence, size_t size);

/* PROGRAM [--every=N] FILE...: all problems of the files, or one in N where an emulator is too slow
 * for all. PASS_BACKWARD reads each as a backward pass, which needs an LSE. Returns the exit
 * status. */
int lines_main(int argc, char **argv, enum problem_pass pass, lines_try *attempt);

#endif
