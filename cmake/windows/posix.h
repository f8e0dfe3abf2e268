/*
 * posix.h: stands in for what the tests want of POSIX and mingw-w64 lacks (posix.c). It is included
 * before each of their files; the library does without it.
 */
#ifndef STAND_IN_POSIX_H
#define STAND_IN_POSIX_H

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

enum { _SC_PAGESIZE = 1, _SC_NPROCESSORS_ONLN };
long sysconf(int name);
int posix_memalign(void **memory, size_t alignment,
                   size_t bytes); /* malloc's alignment, and free */
const char *strsignal(int number);
char *strsep(char **rest, const char *separators);

/* Faults. One handler at a time, whatever the number. */
#define SIGBUS 7
struct sigaction {
    void (*sa_handler)(int number);
};
int sigaction(int number, const struct sigaction *action, struct sigaction *before);

typedef void *sigjmp_buf[5];
extern int stand_in_signal; /* that siglongjmp brings */
#define sigsetjmp(at, save) (__builtin_setjmp(at) ? stand_in_signal : 0)
#define siglongjmp(at, number) (stand_in_signal = (number), __builtin_longjmp(at, 1))

#endif
