/*
 * accuracy.h: `attn check --accuracy`, from check.c.
 */
#ifndef CLI_ACCURACY_H
#define CLI_ACCURACY_H

#include <stdint.h>

/* Prints the table, in minutes; returns an exit status. */
int accuracy_table(int64_t seeds);

#endif
