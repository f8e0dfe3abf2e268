/*
 * host.h: the state of a thread that runs our tasks, which must come back as it was: its
 * floating-point environment (rounding mode, flush-to-zero, flags), and errno, which exp and log
 * may set. In between the default environment holds, so results do not depend on the settings of a
 * host or of one of its threads. It encloses plans, which round scales, and each task. It must be
 * cheap, and fenv.h on x86-64 is not: it saves all of the x87 unit.
 */
#ifndef ATTN_CPU_HOST_H
#define ATTN_CPU_HOST_H

#include "system/system.h"
#include <errno.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef struct attn_fp {
    unsigned sse;
    uint16_t x87;
} attn_fp;

/* The unit of exp and log on a system whose threads begin with various precisions. */
static inline void attn_x87_leave(attn_fp *fp)
{
#if ATTN_SYSTEM_X87
    const uint16_t precise = 0x37F;
    __asm__ volatile("fnstcw %0\n\tfldcw %1" : "=m"(fp->x87) : "m"(precise));
#else
    fp->x87 = 0;
#endif
}

static inline void attn_x87_return(const attn_fp *fp)
{
#if ATTN_SYSTEM_X87
    __asm__ volatile("fldcw %0" : : "m"(fp->x87));
#else
    (void)fp;
#endif
}

/* the values at a process' start */
#define ATTN_FP_SAVE(fp) ((fp)->sse = _mm_getcsr(), _mm_setcsr(0x1F80), attn_x87_leave(fp))
#define ATTN_FP_RESTORE(fp) (_mm_setcsr((fp)->sse), attn_x87_return(fp))
#define ATTN_FP_FLUSH(on) _mm_setcsr((on) ? 0x9F80 : 0x1F80)
#else
#include <fenv.h>
typedef fenv_t attn_fp;
#define ATTN_FP_SAVE(fp) (fegetenv(fp), fesetenv(FE_DFL_ENV))
#define ATTN_FP_RESTORE(fp) fesetenv(fp)
#define ATTN_FP_FLUSH(on) ((void)(on)) /* no table asks for it */
#endif

typedef struct attn_host {
    attn_fp fp;
    int error;
} attn_host;

static inline void attn_host_leave(attn_host *h)
{
    h->error = errno;
    ATTN_FP_SAVE(&h->fp);
}

/* Between the two calls results below the smallest normal number become 0, or stay. */
static inline void attn_host_flush(bool on)
{
    ATTN_FP_FLUSH(on);
}

static inline void attn_host_return(const attn_host *h)
{
    ATTN_FP_RESTORE(&h->fp);
    errno = h->error;
}

#endif
