/*
 * fnmatch.h: stands in for the system's header: * and ? (posix.c).
 */
#ifndef STAND_IN_FNMATCH_H
#define STAND_IN_FNMATCH_H

int fnmatch(const char *pattern, const char *name, int flags); /* 0 = it matches */

#endif
