/*
 * check_limit.h: the time that a call on a GPU may take in `attn check`.
 */
#ifndef CLI_CHECK_LIMIT_H
#define CLI_CHECK_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

/* Sets the limit of the calls that follow, those of a problem line. The string is kept. */
void check_limit_set(int64_t seconds, bool json, const char *line);

/* Stand around a call. One that takes longer cannot be stopped: its line is printed as failed, and
 * the process ends with CLI_CHECK_FAILED. */
void check_limit_start(void);
void check_limit_stop(void);

#endif
