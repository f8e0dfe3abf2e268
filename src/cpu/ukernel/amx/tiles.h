/*
 * tiles.h: AMX tiles for the tables on them. Included by amx/<type>.c first.
 *
 * A tile is 16 rows of 64 bytes. C (16 x 16 f32) += A (16 x 32 bf16) B (16 pairs x 16 x 2 bf16):
 *
 *     S  = K QT      A = 16 keys x 32 columns of K        B = QT, pairs of columns, 16 queries
 *     OT = V^T P     A = 16 columns of V x 32 keys        B = P, pairs of keys, 16 queries
 *     dV = P dO      A = 16 keys of P x 32 queries        B = dO, pairs of queries, 16 columns
 *
 * Denormal bf16 inputs count as zero (the instruction's definition). Tiles are configured by begin
 * and released by end, on the thread that runs an item: no tile state outlives a call.
 */
#include "cpu/ukernel/amx/instructions.h"

/* A product that nobody reads, between rows that are packed: the tile unit falls asleep without
 * products, and the next one waits for it. */
#define STAY_AWAKE() TILE_DP(0, 4, 6)

#include "cpu/ukernel/pairs/pairs.h"

/* A product of part `a` of A and part `b` of B. */
typedef struct part_product {
    int a, b;
} part_product;
