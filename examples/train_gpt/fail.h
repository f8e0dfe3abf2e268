/*
 * fail.h: the end of the program on an error: one line on stderr and an exit status. Memory,
 * without which it ends.
 */
#ifndef TRAIN_GPT_FAIL_H
#define TRAIN_GPT_FAIL_H

#include <stddef.h>
#include <stdint.h>

enum { EXIT_INPUT = 2, EXIT_INTERNAL = 3 }; /* bad usage or input; anything else */

/* Prints "train_gpt: sentence" and exits with status. */
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Zeroed memory for `count` things of `size` bytes, on a cache line of its own. Ends the program
 * without memory. */
void *allocate(size_t count, size_t size);

/* Makes room for `least` bytes; old contents are lost then. */
void reserve(void **memory, uint64_t *bytes, uint64_t least);

#endif
