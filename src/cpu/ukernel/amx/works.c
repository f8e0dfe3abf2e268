/*
 * works.c: a trial of tile products on this machine. A processor, a hypervisor and an operating
 * system have to agree on the state of tiles; only the instruction itself can tell.
 */
#include "cpu/ukernel/amx/instructions.h"
#include "core/half.h"
#include "cpu/machine/features.h"

enum { ROWS = 16, PAIRS = 16, COLUMNS = 16 };

bool attn_amx_works(void)
{
    uint16_t a[ROWS][2 * PAIRS], b[PAIRS][2 * COLUMNS];
    float c[ROWS][COLUMNS];
    bool right = true;
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < 2 * PAIRS; k++) {
            a[i][k] = attn_f32_to_bf16((float)(i - 3 * k));
            /* pair i, column k / 2, element k % 2 */
            b[i][k] = attn_f32_to_bf16((float)(2 * k - 5 * i));
        }
    }
    tiles_begin();
    TILE_ZERO(0);
    TILE_LOAD(1, a, 64);
    TILE_LOAD(2, b, 64);
    TILE_DP(0, 1, 2);
    TILE_STORE(0, c, 64);
    tiles_end();
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            int sum = 0; /* bf16 and f32 hold all these values and sums, which are integers */
            for (int k = 0; k < 2 * PAIRS; k++) {
                sum += (i - 3 * k) * (2 * (2 * j + k % 2) - 5 * (k / 2));
            }
            right = right && c[i][j] == (float)sum;
        }
    }
    return right;
}
