/*
 * relations.h: a second judge beside the oracle: relations of docs/contract.md between the results
 * of two calls.
 */
#ifndef TESTS_HUNT_RELATIONS_H
#define TESTS_HUNT_RELATIONS_H

#include "draw.h"

/* Draws a relation and a problem for it. The line is the problem's, and the sentence begins with
 * the relation's name. False: the relation does not hold. */
bool relations_judge(dice *d, char *line, size_t line_size, char *sentence, size_t size);

#endif
