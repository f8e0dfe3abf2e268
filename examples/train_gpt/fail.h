/*
 * fail.h: how this program says that it cannot go on: one line on stderr and an exit status.
 */
#ifndef TRAIN_GPT_FAIL_H
#define TRAIN_GPT_FAIL_H

#include <stddef.h>

enum { EXIT_INPUT = 2, EXIT_INTERNAL = 3 }; /* bad usage or input; anything else */

/* "train_gpt: sentence", then exit(status). */
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Zeroed memory for `count` things of `size` bytes, on a cache line of its own; ends the program if
 * there is none. */
void *allocate(size_t count, size_t size);

#endif
