/*
 * dlfcn.h: stands in for the system's header (posix.c).
 */
#ifndef STAND_IN_DLFCN_H
#define STAND_IN_DLFCN_H

enum { RTLD_NOW = 2, RTLD_LOCAL = 0 };

void *dlopen(const char *name, int flags);
void *dlsym(void *library, const char *symbol);
const char *dlerror(void);

#endif
