/*
 * kit.h: the tools of every check of a kernel table: guarded memory, values, the scalar table run
 * lane by lane as the reference, and the record of failures.
 *
 * Panels and tiles are slots: memory that ends at an inaccessible page, filled with NaN, at an
 * address that is aligned to an element and no more. A locked slot is read-only. Memory right
 * before a slot holds a canary.
 */
#ifndef TESTS_CHECKATTN_KIT_H
#define TESTS_CHECKATTN_KIT_H

#include "cpu/ukernel/table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum slot {
    SLOT_K,
    SLOT_V,
    SLOT_QT,
    SLOT_S,
    SLOT_P,
    SLOT_OT,
    SLOT_M,
    SLOT_L,
    SLOT_ALPHA,
    SLOT_TOP,
    SLOT_BIAS,
    SLOT_LO,
    SLOT_HI,
    SLOT_SOURCE,
    SLOT_SOURCE_2,
    SLOT_VISIBLE,
    SLOT_TARGET,
    SLOTS
};

enum { KIT_MOST_D = 576, KIT_MOST_LANES = ATTN_MAX_STRIP, KIT_MOST_KEYS = ATTN_MAX_KEY_BLOCK };

typedef struct kernel_kit {
    const attn_ukernel *uk;     /* under test */
    const attn_ukernel *scalar; /* of the same arithmetic */
    bool same_bits;             /* as scalar */
    int32_t dtype;              /* of Q, K and V */
    uint64_t seed;
    bool quiet;         /* the self-test's tables are meant to fail */
    const char *member; /* being checked */
    char doing[200];    /* with what */
    int64_t calls;
    int failures, member_failures;
    double worst_qk, worst_pv, worst_exp2, worst_tanh; /* shares of the bound; ulps */
    struct {
        unsigned char *map, *first;
        size_t map_bytes;
        bool locked;
    } slot[SLOTS];
    unsigned control; /* of floating point, before a call */
} kernel_kit;

bool kit_open(kernel_kit *kit, const attn_ukernel *table, const attn_ukernel *scalar, int32_t dtype,
              uint64_t seed);
void kit_close(kernel_kit *kit);

/* bytes of NaN in a slot, writable; the slot's memory before is gone. */
void *kit_slot(kernel_kit *kit, enum slot slot, size_t bytes);
void kit_lock(kernel_kit *kit, enum slot slot);

/* Names the member under test, and the sentence that describes its call. */
void kit_member(kernel_kit *kit, const char *member);
void kit_doing(kernel_kit *kit, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Notes a failure of the member and prints the first few of them. */
void kit_fail(kernel_kit *kit, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Around each call of a member: canaries and the floating-point control bits must stay. */
void kit_before(kernel_kit *kit);
void kit_after(kernel_kit *kit);

/* The state of the processor that a table needs. */
void kit_begin(const attn_ukernel *table);
void kit_end(const attn_ukernel *table);

#define KIT_CALL(k, call) (kit_before(k), (call), kit_after(k))

/* ---- elements of type real ------------------------------------------------------------------- */

double kit_get(const kernel_kit *kit, const void *array, int64_t i);
void kit_put(const kernel_kit *kit, void *array, int64_t i, double x);

/* True for the same bits, or two NaN. */
bool kit_same(const kernel_kit *kit, const void *a, int64_t i, const void *b, int64_t j);

/* Fails unless a[count] and b[count] are the same. */
void kit_compare(kernel_kit *kit, const char *what, const void *got, const void *want,
                 int64_t count);

/* The same for the first `lanes` lanes of rows of a strip. */
void kit_compare_lanes(kernel_kit *kit, const char *what, const void *got, const void *want,
                       int64_t rows, int lanes);

/* u of the arithmetic: 2^-24 or 2^-53. */
double kit_unit(const kernel_kit *kit);

/* n u / (1 - n u), Higham's bound for n roundings. */
double kit_gamma(const kernel_kit *kit, double n);

/* A slot of `count` reals. */
void *kit_reals(kernel_kit *kit, enum slot slot, int64_t count);

/* a b + c, rounded once, and a + b, in the table's own arithmetic. */
double kit_fused(const kernel_kit *kit, double a, double b, double c);
double kit_sum(const kernel_kit *kit, double a, double b);

/* ---- values ---------------------------------------------------------------------------------- */

/* Kinds of inputs, each a different way to go wrong. */
enum values {
    VALUES_NORMAL,
    VALUES_CANCELLING,
    VALUES_HUGE,
    VALUES_TINY,
    VALUES_EQUAL,
    VALUES_SPECIAL,
    VALUES_KINDS
};

/* Element i of n. SPECIAL: normal, but for one NaN, infinity or zero now and then. */
double kit_value(const kernel_kit *kit, enum values kind, int stream, int64_t i, int64_t n);

/* A number from 0 to n - 1. */
int64_t kit_choice(const kernel_kit *kit, int stream, int64_t i, int64_t n);

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Number of lanes of the strip that hold rows: all in every other turn, in the others each number
 * in turn. */
int kit_lanes(const kernel_kit *kit, int64_t turn);

/* The scalar table's strip is narrower: rows x lanes of `from` from lane `first` on, and back.
 * Missing lanes repeat the last one. */
void kit_take_lanes(const kernel_kit *kit, void *to, const void *from, int64_t rows, int first);
void kit_give_lanes(const kernel_kit *kit, void *to, const void *from, int64_t rows, int first);

#endif
