/*
 * amx_f16.c: the table for f16 on AMX tiles. An f16 is the exact sum of two bf16 parts, x = x0 +
 * x1, and all four products of parts are taken: Q K^T is exact but for f32 sums. Probabilities are
 * rounded to two parts too, 16 bits: 2^-16 of p |v| at most, far below what rounding O to f16
 * costs.
 *
 * Panels and the rest are in amx_body.h.
 */

#define NAME f16
#define PARTS 2
#define INPUT_LOSS 0
#define WEIGHT_LOSS 0x1p-16
#include "cpu/ukernel/amx/amx_tiles.h"

typedef uint16_t element;

/* Columns c .. c+15 of a row of n, in f32; zero beyond n. */
static vec load_columns(const void *row, int64_t stride, int64_t c, int64_t n)
{
    const uint16_t *x = row;
    uint16_t column[16] = {0};
    if (stride == 1) {
        int64_t left = n - c;
        __mmask16 some = (__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, x + c));
    }
    for (int64_t i = 0; i < 16 && c + i < n; i++) {
        column[i] = x[(c + i) * stride];
    }
    return v_load_f16(column);
}

#include "cpu/ukernel/amx/amx_split.h"

static const part_product products[] = {{1, 1}, {1, 0}, {0, 1}, {0, 0}};

#include "cpu/ukernel/amx/amx_exp2.h"
#include "cpu/ukernel/amx/amx_body.h"
