/*
 * tile_state.h: a thread's tiles in software (tiles.h), one set for all tables: a thread's stack
 * holds them, and some threads have small ones.
 */
#include <stdint.h>

extern __thread struct emulated_tiles {
    int configured;
    uint32_t tile[8][16][16];
} emulated;
