/*
 * faults.c: see faults.h.
 */
#include "faults.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

char faults_line[16384];

static void on_signal(int number)
{
    static const char text[] = "\nFAIL memory fault in: ";
    ssize_t n = write(STDOUT_FILENO, text, sizeof text - 1);
    n = write(STDOUT_FILENO, faults_line, strlen(faults_line));
    n = write(STDOUT_FILENO, "\n", 1);
    (void)n;
    signal(number, SIG_DFL);
    raise(number);
}

void faults_watch(void)
{
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
}
