/*
 * append.h: a judge of new rows and rotation within a call: the bits of the same done before it.
 */
#ifndef TESTS_HUNT_APPEND_H
#define TESTS_HUNT_APPEND_H

#include "draw.h"

/* Draws a step of decoding. The line is the problem's, the sentence has the rotation. False: it
 * gives other bits. */
bool append_judge(dice *d, char *line, size_t line_size, char *sentence, size_t size);

#endif
