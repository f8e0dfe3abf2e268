/*
 * accuracy.h: the table of `attn check --accuracy`.
 */
#ifndef CLI_ACCURACY_H
#define CLI_ACCURACY_H

#include <stdint.h>

/* Prints the table, which takes minutes. Returns an exit status. */
int accuracy_table(int64_t seeds);

#endif
