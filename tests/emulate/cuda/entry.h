/*
 * entry.h: the kernels that the emulated driver finds by name. A file here includes a kernel's
 * source, then names its kernels again with ENTRY.
 */
#pragma once
#include "machine.h"
#include <string.h>

namespace emulated
{

/* A kernel: its work as a function of the parameters' address, and their size; whether its blocks
 * are pairs. */
struct entry {
    const char *name;
    void (*call)(const void *params);
    size_t bytes;
    bool paired;
    entry *next;

    entry(const char *name, void (*call)(const void *), size_t bytes, bool paired);
};

extern entry *entries;

template <class Params> Params params_of(void (*)(Params));

template <auto kernel> void call_kernel(const void *params)
{
    kernel(*(const decltype(params_of(kernel)) *)params);
}

} // namespace emulated

#define ENTRY_OF(name, paired)                                              \
    static emulated::entry entry_##name(#name, emulated::call_kernel<name>, \
                                        sizeof(decltype(emulated::params_of(name))), paired);
#define ENTRY(name) ENTRY_OF(name, false)
#define PAIRED_ENTRY(name) ENTRY_OF(name, true)
