/*
 * scratch.h: files for the tests of the file readers: a fresh folder, files of given bytes in it,
 * and what opening one may cost. Included by one .c file per test program.
 */
#ifndef TESTS_FILES_SCRATCH_H
#define TESTS_FILES_SCRATCH_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char scratch_folder[64];
static char scratch_path[PATH_MAX]; /* of the file under test */
static char error[256];

static int scratch_create(void **state)
{
    (void)state;
    snprintf(scratch_folder, sizeof scratch_folder, "/tmp/attn-files-%ld", (long)getpid());
    snprintf(scratch_path, sizeof scratch_path, "%s/file", scratch_folder);
    return mkdir(scratch_folder, 0700);
}

static int scratch_remove(void **state)
{
    (void)state;
    unlink(scratch_path);
    return rmdir(scratch_folder); /* fails if a writer left a temporary file behind */
}

/* The file under test becomes these bytes. */
static void scratch_put(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes)
{
    FILE *f = fopen(scratch_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(head, 1, head_bytes, f), head_bytes);
    assert_int_equal(fwrite(tail, 1, tail_bytes, f), tail_bytes);
    assert_int_equal(fclose(f), 0);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* other processes do not count */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/* A refusal: one line with the path and the expected words, in under 10 ms of processor time (the
 * best of three tries), and in less than 1 MiB. */
#define assert_refused(call, words)                                                 \
    do {                                                                            \
        double best_ = 1e9;                                                         \
        long kib_ = peak_kib();                                                     \
        for (int try_ = 0; try_ < 3; try_++) {                                      \
            strcpy(error, "no sentence");                                           \
            double start_ = cpu_seconds();                                          \
            bool ok_ = (call);                                                      \
            double took_ = cpu_seconds() - start_;                                  \
            best_ = took_ < best_ ? took_ : best_;                                  \
            assert_false(ok_);                                                      \
        }                                                                           \
        if (strncmp(error, scratch_folder, strlen(scratch_folder)) != 0 ||          \
            strstr(error, (words)) == NULL || strpbrk(error, "\n\r\033") != NULL) { \
            fail_msg("expected \"%s\", got \"%s\"", (words), error);                \
        }                                                                           \
        assert_true(best_ < 0.01);                                                  \
        assert_true(peak_kib() - kib_ < 1024);                                      \
    } while (0)

#endif
