/*
 * progress.h: signs of life on a terminal.
 */
#ifndef SUPPORT_CONSOLE_PROGRESS_H
#define SUPPORT_CONSOLE_PROGRESS_H

/* Writes a line on stderr that the next one overwrites, if stderr is a terminal. format = NULL
 * clears it. */
void cli_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* From two seconds after the start until the stop: "what, 12 s" as such a line. `what` is kept. */
void cli_watch_start(const char *what);
void cli_watch_stop(void);

#endif
