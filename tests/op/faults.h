/*
 * faults.h: the problem at hand, told before the program ends where a call reads or writes memory
 * that it must not.
 */
#ifndef TESTS_OP_FAULTS_H
#define TESTS_OP_FAULTS_H

/* Its line; the caller writes it before each call. */
extern char faults_line[16384];

/* From now on, SIGSEGV and SIGBUS print the line first. */
void faults_watch(void);

#endif
