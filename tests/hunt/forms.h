/*
 * forms.h: a third judge beside the oracle: one problem in two forms that mean the same, whose
 * results must have the same bits. Not here: the forms themselves (rewrite.h).
 */
#ifndef TESTS_HUNT_FORMS_H
#define TESTS_HUNT_FORMS_H

#include "draw.h"

/* Draws a table and the second form of a problem, and runs both. Asks for the workspace that the
 * second form needs, refuses it a byte, and lets an allocation fail. False with a sentence that
 * begins with the form. */
bool forms_judge(const problem_spec *spec, dice *d, char *sentence, size_t size);

#endif
