/*
 * bytes.h: a fuzzer's bytes as numbers, taken from the front; 0 behind the last one.
 */
#ifndef TESTS_FUZZ_BYTES_H
#define TESTS_FUZZ_BYTES_H

#include <attn/attn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)    \
    do {                      \
        if (!(condition)) {   \
            __builtin_trap(); \
        }                     \
    } while (0)

typedef struct input {
    const uint8_t *at, *end;
} input;

static inline uint64_t take(input *in, int bytes)
{
    uint64_t x = 0;
    for (; bytes > 0 && in->at < in->end; bytes--) {
        x = x << 8 | *in->at++;
    }
    return x;
}

static inline int64_t below(input *in, int64_t n)
{
    return (int64_t)take(in, n > 256 ? 2 : 1) % n;
}

static inline bool flip(input *in)
{
    return take(in, 1) & 1;
}

/* A number at an end of a range, or any. */
static inline int64_t wild(input *in)
{
    static const int64_t values[] = {0,
                                     1,
                                     -1,
                                     2,
                                     3,
                                     127,
                                     128,
                                     1 << 16,
                                     INT32_MAX,
                                     INT64_C(1) << 31,
                                     INT64_C(1) << 32,
                                     INT64_C(1) << 40,
                                     INT64_C(1) << 61,
                                     INT64_C(1) << 62,
                                     INT64_MAX,
                                     INT64_MIN};
    return flip(in) ? values[below(in, sizeof values / sizeof *values)]
                    : (int64_t)take(in, flip(in) ? 1 : 8);
}

/* A context of some threads, made once. */
static inline attn_context *fuzz_context(attn_context **context, int32_t threads)
{
    if (*context == NULL) {
        attn_context_config config = {.struct_size = sizeof config, .threads = threads};
        REQUIRE(attn_context_create(&config, context) == ATTN_OK);
    }
    return *context;
}

#endif
