/*
 * host.h: the state of a thread that runs our tasks, which must come back as it was: its
 * floating-point environment (rounding mode, flush-to-zero, flags), and errno, which exp and log
 * may set. In between the default environment holds, so results do not depend on the settings of a
 * host or of one of its threads. It encloses plans, which round scales, and each task. It must be
 * cheap, and fenv.h on x86-64 is not: it saves the x87 unit, which nothing here uses.
 */
#ifndef ATTN_CPU_HOST_H
#define ATTN_CPU_HOST_H

#include <errno.h>
#include <stdbool.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned attn_fp;
/* the value at a process' start */
#define ATTN_FP_SAVE(fp) (*(fp) = _mm_getcsr(), _mm_setcsr(0x1F80))
#define ATTN_FP_RESTORE(fp) _mm_setcsr(*(fp))
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
