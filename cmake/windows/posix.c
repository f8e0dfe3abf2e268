/*
 * posix.c: see posix.h, sys/mman.h, dlfcn.h and fnmatch.h.
 */
#include "dlfcn.h"
#include "fnmatch.h"
#include "sys/mman.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

/* ---- memory ---------------------------------------------------------------------------------- */

long sysconf(int name)
{
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return (long)(name == _SC_PAGESIZE ? info.dwPageSize : info.dwNumberOfProcessors);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    (void)alignment;
    *memory = malloc(bytes);
    return *memory == NULL;
}

static DWORD protection_of(int protection)
{
    return protection == PROT_NONE   ? PAGE_NOACCESS
           : protection == PROT_READ ? PAGE_READONLY
                                     : PAGE_READWRITE;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int file, long offset)
{
    (void)at, (void)flags, (void)file, (void)offset;
    const DWORD commit = protection == PROT_NONE ? 0 : MEM_COMMIT;
    void *map = VirtualAlloc(NULL, bytes, MEM_RESERVE | commit, protection_of(protection));
    return map != NULL ? map : MAP_FAILED;
}

int mprotect(void *at, size_t bytes, int protection)
{
    DWORD before;
    if (protection != PROT_NONE && !VirtualAlloc(at, bytes, MEM_COMMIT, PAGE_READWRITE)) {
        return -1;
    }
    return VirtualProtect(at, bytes, protection_of(protection), &before) ? 0 : -1;
}

int munmap(void *at, size_t bytes)
{
    (void)bytes;
    return VirtualFree(at, 0, MEM_RELEASE) ? 0 : -1;
}

/* ---- faults ---------------------------------------------------------------------------------- */

int stand_in_signal;
static void (*handler)(int number);

const char *strsignal(int number)
{
    return number == SIGSEGV  ? "Segmentation fault"
           : number == SIGILL ? "Illegal instruction"
                              : "Arithmetic exception";
}

static void deliver(void)
{
    handler(stand_in_signal);
}

/* Goes on in `deliver` on the thread's own stack, from where the handler may jump. */
static LONG CALLBACK on_exception(EXCEPTION_POINTERS *found)
{
    const DWORD code = found->ExceptionRecord->ExceptionCode;
    const int number = code == EXCEPTION_ACCESS_VIOLATION      ? SIGSEGV
                       : code == EXCEPTION_ILLEGAL_INSTRUCTION ? SIGILL
                                                               : 0;
    if (number == 0 || handler == NULL) {
        return EXCEPTION_CONTINUE_SEARCH;
    }
    stand_in_signal = number;
    CONTEXT *context = found->ContextRecord;
    context->Rsp = ((context->Rsp - 4096) & ~(DWORD64)15) - 8;
    context->Rip = (DWORD64)(uintptr_t)deliver;
    return EXCEPTION_CONTINUE_EXECUTION;
}

int sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
    static bool watched;
    (void)number;
    if (!watched) {
        watched = AddVectoredExceptionHandler(1, on_exception) != NULL;
    }
    if (before != NULL) {
        before->sa_handler = handler;
    }
    handler = action->sa_handler;
    return 0;
}

/* ---- libraries and words --------------------------------------------------------------------- */

void *dlopen(const char *name, int flags)
{
    (void)flags;
    return LoadLibraryA(name);
}

void *dlsym(void *library, const char *symbol)
{
    FARPROC address = GetProcAddress(library, symbol);
    return (void *)(uintptr_t)address;
}

const char *dlerror(void)
{
    return "the library does not load";
}

char *strsep(char **rest, const char *separators)
{
    char *word = *rest;
    if (word != NULL) {
        char *end = word + strcspn(word, separators);
        *rest = *end != '\0' ? end + 1 : NULL;
        *end = '\0';
    }
    return word;
}

int fnmatch(const char *pattern, const char *name, int flags)
{
    (void)flags;
    for (; *pattern != '*' && *pattern != '\0'; pattern++, name++) {
        if (*name == '\0' || (*pattern != '?' && *pattern != *name)) {
            return 1;
        }
    }
    if (*pattern == '\0') {
        return *name != '\0';
    }
    do {
        if (fnmatch(pattern + 1, name, 0) == 0) {
            return 0;
        }
    } while (*name++ != '\0');
    return 1;
}
