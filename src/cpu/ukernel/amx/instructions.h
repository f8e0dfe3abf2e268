/*
 * instructions.h: the instructions of AMX tiles. tests/emulate/tiles.h has them in software.
 */
#ifndef ATTN_CPU_UKERNEL_AMX_INSTRUCTIONS_H
#define ATTN_CPU_UKERNEL_AMX_INSTRUCTIONS_H

#include "core/compiler.h"
#include <stdint.h>

/* One instruction each; the memory clobber orders them with ordinary loads and stores. */

#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride)                                                          \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(stride)) \
                     : "memory")
#define TILE_DP(c, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

/* All tiles of 16 rows of 64 bytes. */
ATTN_INLINE void tiles_begin(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

ATTN_INLINE void tiles_end(void)
{
    __asm__ volatile("tilerelease" ::: "memory");
}

#endif
