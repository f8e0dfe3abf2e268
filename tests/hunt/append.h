/*
 * append.h: a judge of new rows and rotation within a call: the call has the bits of one after
 * which both were done before.
 */
#ifndef TESTS_HUNT_APPEND_H
#define TESTS_HUNT_APPEND_H

#include "draw.h"

/* Draws a step of decoding. The line is the problem's, and the sentence has the rotation. False:
 * the bits differ. */
bool append_judge(dice *d, char *line, size_t line_size, char *sentence, size_t size);

#endif
