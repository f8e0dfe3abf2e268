/*
 * faults.h: prints the problem at hand before a program ends because a call reads or writes memory
 * that it must not.
 */
#ifndef TESTS_OP_FAULTS_H
#define TESTS_OP_FAULTS_H

/* The problem's line. The caller writes it before each call. */
extern char faults_line[16384];

/* From now on, SIGSEGV and SIGBUS print the line first. */
void faults_watch(void);

#endif
