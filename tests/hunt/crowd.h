/*
 * crowd.h: a judge of calls that run at once: problems on threads of the host's, on one context,
 * have the bits that they have one after the other (P1).
 */
#ifndef TESTS_HUNT_CROWD_H
#define TESTS_HUNT_CROWD_H

#include "draw.h"

/* Draws some problems and a table. The line is the first problem that differs. False with a
 * sentence: its bits do. */
bool crowd_judge(dice *d, char *line, size_t line_size, char *sentence, size_t size);

#endif
