/*
 * kit.c: see kit.h.
 */
#include "kit.h"
#include "cpu/machine/host.h"
#include "inputs.h"
#include "problem.h"

#include <fenv.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { CANARY_BYTES = 64, CANARY = 0xA5, MOST_REPORTS = 4 };

/* ---- slots ----------------------------------------------------------------------------------- */

/* Enough for K of any table: three parts of 64-bit elements, a block of keys, the largest d and its
 * padding. */
static const size_t SLOT_BYTES = (size_t)3 * 8 * (KIT_MOST_KEYS + 64) * (KIT_MOST_D + 64);

bool kit_open(kernel_kit *kit, const attn_ukernel *table, const attn_ukernel *scalar, int32_t dtype,
              uint64_t seed)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (SLOT_BYTES + page - 1) / page * page;
    *kit = (kernel_kit){.uk = table,
                        .scalar = scalar,
                        .same_bits = table->bits == ATTN_BITS_SCALAR,
                        .dtype = dtype,
                        .seed = seed,
                        .member = ""};
    for (int s = 0; s < SLOTS; s++) {
        void *map = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED || mprotect((char *)map + bytes, page, PROT_NONE) != 0) {
            return false;
        }
        kit->slot[s].map = map;
        kit->slot[s].map_bytes = bytes;
        kit->slot[s].first = (unsigned char *)map + bytes;
    }
    return true;
}

void kit_close(kernel_kit *kit)
{
    for (int s = 0; s < SLOTS; s++) {
        munmap(kit->slot[s].map, kit->slot[s].map_bytes + (size_t)sysconf(_SC_PAGESIZE));
    }
}

static void protect(kernel_kit *kit, enum slot s, bool lock)
{
    if (kit->slot[s].locked != lock) {
        (void)mprotect(kit->slot[s].map, kit->slot[s].map_bytes,
                       lock ? PROT_READ : PROT_READ | PROT_WRITE);
        kit->slot[s].locked = lock;
    }
}

void *kit_slot(kernel_kit *kit, enum slot s, size_t bytes)
{
    protect(kit, s, false);
    kit->slot[s].first = kit->slot[s].map + kit->slot[s].map_bytes - bytes;
    memset(kit->slot[s].first - CANARY_BYTES, CANARY, CANARY_BYTES);
    memset(kit->slot[s].first, 0xFF, bytes);
    return kit->slot[s].first;
}

void kit_lock(kernel_kit *kit, enum slot s)
{
    protect(kit, s, true);
}

/* ---- failures -------------------------------------------------------------------------------- */

void kit_member(kernel_kit *kit, const char *member)
{
    kit->member = member;
    kit->member_failures = 0;
}

void kit_doing(kernel_kit *kit, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(kit->doing, sizeof kit->doing, format, args);
    va_end(args);
}

void kit_fail(kernel_kit *kit, const char *format, ...)
{
    va_list args;
    kit->failures++;
    kit->member_failures++;
    if (kit->quiet || kit->member_failures > MOST_REPORTS) {
        return;
    }
    printf("FAIL %s.%s %s: ", kit->uk->name, kit->member, kit->doing);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

void kit_begin(const attn_ukernel *table)
{
    table->begin();
    attn_host_flush(table->flushes);
}

void kit_end(const attn_ukernel *table)
{
    attn_host_flush(false);
    table->end();
}

/* Rounding mode, masks, flush-to-zero: all of MXCSR but its sticky flags. */
static unsigned control_bits(void)
{
#if defined(__x86_64__)
    return _mm_getcsr() & ~0x3Fu;
#else
    return (unsigned)fegetround();
#endif
}

void kit_before(kernel_kit *kit)
{
    kit->control = control_bits();
}

void kit_after(kernel_kit *kit)
{
    kit->calls++;
    if (control_bits() != kit->control) {
        kit_fail(kit, "changes the control bits of floating point");
    }
    for (int s = 0; s < SLOTS; s++) {
        const unsigned char *first = kit->slot[s].first;
        for (int i = 1; i <= CANARY_BYTES && first != kit->slot[s].map + kit->slot[s].map_bytes;
             i++) {
            if (first[-i] != CANARY) {
                kit_fail(kit, "writes %d bytes before slot %d", i, s);
                memset(kit->slot[s].first - CANARY_BYTES, CANARY, CANARY_BYTES);
            }
        }
    }
}

/* ---- elements -------------------------------------------------------------------------------- */

double kit_get(const kernel_kit *kit, const void *array, int64_t i)
{
    return kit->uk->real_size == 4 ? (double)((const float *)array)[i] : ((const double *)array)[i];
}

void kit_put(const kernel_kit *kit, void *array, int64_t i, double x)
{
    if (kit->uk->real_size == 4) {
        ((float *)array)[i] = (float)x;
    } else {
        ((double *)array)[i] = x;
    }
}

bool kit_same(const kernel_kit *kit, const void *a, int64_t i, const void *b, int64_t j)
{
    size_t size = (size_t)kit->uk->real_size;
    return memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)j * size, size) ==
               0 ||
           (isnan(kit_get(kit, a, i)) && isnan(kit_get(kit, b, j)));
}

/* Elements of `count` whose number is below `most` modulo `of`. */
static void compare(kernel_kit *kit, const char *what, const void *got, const void *want,
                    int64_t count, int64_t of, int64_t most)
{
    for (int64_t i = 0; i < count; i++) {
        if (i % of < most && !kit_same(kit, got, i, want, i)) {
            kit_fail(kit, "%s[%lld] = %.9g (%a), scalar has %.9g (%a)", what, (long long)i,
                     kit_get(kit, got, i), kit_get(kit, got, i), kit_get(kit, want, i),
                     kit_get(kit, want, i));
            return;
        }
    }
}

void kit_compare(kernel_kit *kit, const char *what, const void *got, const void *want,
                 int64_t count)
{
    compare(kit, what, got, want, count, 1, 1);
}

void kit_compare_lanes(kernel_kit *kit, const char *what, const void *got, const void *want,
                       int64_t rows, int lanes)
{
    compare(kit, what, got, want, rows * kit->uk->strip, kit->uk->strip, lanes);
}

double kit_unit(const kernel_kit *kit)
{
    return kit->uk->real_size == 4 ? 0x1p-24 : 0x1p-53;
}

double kit_gamma(const kernel_kit *kit, double n)
{
    return n * kit_unit(kit) / (1 - n * kit_unit(kit));
}

void *kit_reals(kernel_kit *kit, enum slot slot, int64_t count)
{
    return kit_slot(kit, slot, (size_t)(count * kit->uk->real_size));
}

double kit_fused(const kernel_kit *kit, double a, double b, double c)
{
    return kit->uk->real_size == 4 ? (double)fmaf((float)a, (float)b, (float)c) : fma(a, b, c);
}

double kit_sum(const kernel_kit *kit, double a, double b)
{
    return kit->uk->real_size == 4 ? (double)((float)a + (float)b) : a + b;
}

/* ---- values ---------------------------------------------------------------------------------- */

int64_t kit_choice(const kernel_kit *kit, int stream, int64_t i, int64_t n)
{
    return (int64_t)(inputs_bits(kit->seed, stream, i) >> 20) % n;
}

static double normal(const kernel_kit *kit, int stream, int64_t i)
{
    return inputs_value(INPUTS_NORMAL, kit->seed, stream, i);
}

static double special(const kernel_kit *kit, int stream, int64_t i)
{
    static const double values[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 0, -0.0};
    return values[kit_choice(kit, stream + 1, i, 5)];
}

double kit_value(const kernel_kit *kit, enum values kind, int stream, int64_t i, int64_t n)
{
    double x = normal(kit, stream, i);
    switch (kind) {
    /* the second half is the first with the other sign, in its even positions */
    case VALUES_CANCELLING:
        return i >= n / 2 && stream % 2 ? -normal(kit, stream, i - n / 2) : x;
    case VALUES_HUGE:
        return x * (kit->dtype == ATTN_F64 ? 1e140 : kit->dtype == ATTN_F16 ? 2e4 : 1e17);
    case VALUES_TINY:
        return x * (kit->dtype == ATTN_F64 ? 1e-308 : kit->dtype == ATTN_F16 ? 1e-7 : 1e-38);
    case VALUES_EQUAL:
        return 0.5;
    case VALUES_SPECIAL:
        return kit_choice(kit, stream + 2, i, 400) == 0 ? special(kit, stream, i) : x;
    default:
        return x;
    }
}

/* ---- lanes ----------------------------------------------------------------------------------- */

int kit_lanes(const kernel_kit *kit, int64_t turn)
{
    return turn % 2 == 0 ? kit->uk->strip : 1 + (int)(turn / 2 % kit->uk->strip);
}

void kit_take_lanes(const kernel_kit *kit, void *to, const void *from, int64_t rows, int first)
{
    int wide = kit->uk->strip, narrow = kit->scalar->strip;
    size_t size = (size_t)kit->uk->real_size;
    for (int64_t r = 0; r < rows; r++) {
        for (int lane = 0; lane < narrow; lane++) {
            int source = first + lane < wide ? first + lane : wide - 1;
            memcpy((char *)to + (size_t)(r * narrow + lane) * size,
                   (const char *)from + (size_t)(r * wide + source) * size, size);
        }
    }
}

void kit_give_lanes(const kernel_kit *kit, void *to, const void *from, int64_t rows, int first)
{
    int wide = kit->uk->strip, narrow = kit->scalar->strip;
    size_t size = (size_t)kit->uk->real_size;
    for (int64_t r = 0; r < rows; r++) {
        for (int lane = 0; lane < narrow && first + lane < wide; lane++) {
            memcpy((char *)to + (size_t)(r * wide + first + lane) * size,
                   (const char *)from + (size_t)(r * narrow + lane) * size, size);
        }
    }
}
