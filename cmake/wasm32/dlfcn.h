/*
 * dlfcn.h: stands in for the system's header where there are no shared libraries.
 */
#ifndef WASM32_DLFCN_H
#define WASM32_DLFCN_H

#include <stddef.h>

enum { RTLD_NOW = 2 };

static inline void *dlopen(const char *name, int flags)
{
    (void)name, (void)flags;
    return NULL;
}

static inline void *dlsym(void *library, const char *symbol)
{
    (void)library, (void)symbol;
    return NULL;
}

static inline const char *dlerror(void)
{
    return "no shared libraries";
}

#endif
