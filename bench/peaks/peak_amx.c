/*
 * peak_amx.c: the loop behind peak_amx: products of bf16 tiles, four accumulators and one tile
 * loaded from the L1 cache per product, as in the inner loop of a matrix product. The data are
 * random, because the unit is up to a quarter faster on zeros.
 */
#include "peak.h"

#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>)
#define HAVE_AMX
#endif
#endif

#ifdef HAVE_AMX
#include "half.h"
#include "inputs.h"

#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdbool.h>

/* 16 KiB of tiles: half for the left side, half for the right */
enum { TILES = 16, ELEMENTS = 16 * 32, PRODUCTS = 4 };

static _Alignas(64) uint16_t tile[TILES][ELEMENTS];

static void fill(void)
{
    for (int i = 0; i < TILES * ELEMENTS; i++) {
        tile[i / ELEMENTS][i % ELEMENTS] =
            half_bf16_from_double(inputs_normal(inputs_bits(1, INPUTS_Q, i)));
    }
}

__attribute__((target("amx-tile,amx-bf16"))) static void multiply(long n)
{
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long i = 0; i < n; i++) {
        const uint16_t(*left)[ELEMENTS] = tile + 2 * (i % 4), (*right)[ELEMENTS] = left + TILES / 2;
        _tile_loadd(4, left[0], 64);
        _tile_loadd(5, right[0], 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, left[1], 64);
        _tile_dpbf16ps(1, 6, 5);
        _tile_loadd(7, right[1], 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 6, 7);
    }
    _tile_release();
}

/* Emulated kernels do not mean that the processor has tiles. */
static bool has_tiles(void)
{
    unsigned a, b, c, d;
    /* AMX-BF16, AMX-TILE */
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
}

double peak_amx_loop(long n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!has_tiles()) {
        return 0;
    }
    pthread_once(&once, fill);
    multiply(n);
    return 2.0 * 16 * 16 * 32 * PRODUCTS * (double)n;
}

#else

double peak_amx_loop(long n)
{
    (void)n;
    return 0;
}

#endif
