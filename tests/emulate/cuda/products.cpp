/*
 * products.cpp: a step of a warpgroup's product (products.h).
 */
#include "words.h"
#include "products.h"
#include "halves.h"
#include <immintrin.h>

namespace emulated
{

enum { STEP = 16, MOST_COLUMNS = 256 / 4 }; /* a thread has every fourth pair of columns */

/* Byte of element k of row or column n of an operand. */
static inline uint32_t byte_of(const operand &from, int n, int k)
{
    const uint32_t start = (uint32_t)from.where << 4,
                   chunk = (uint32_t)(from.where >> 32 & 0xffff) << 4,
                   eight = (uint32_t)(from.where >> 48) << 4,
                   plain = from.rows_along_k
                               ? start + n / 64 * chunk + k / 8 * eight + k % 8 * 128 + n % 64 * 2
                               : start + n / 8 * eight + n % 8 * 128 + 2 * k;
    return plain ^ (plain >> 7 & 7) << 4;
}

/* Column n of an operand, or with PAIR columns n and n + 1 of an even n. */
template <bool PAIR> static void read(uint16_t (&to)[2][STEP], const operand &from, int n)
{
    const unsigned char *memory = shared_at(0);
    for (int k = 0; from.rows_along_k && k < STEP; k++) {
        uint16_t pair[2]; /* lie together */
        memcpy(pair, memory + byte_of(from, n & ~1, k), sizeof pair);
        to[0][k] = pair[n % 2], to[1][k] = pair[1];
    }
    for (int k = 0; !from.rows_along_k && k < STEP; k += 8) { /* so do eight of a column */
        for (int column = 0; column <= PAIR; column++) {
            memcpy(&to[column][k], memory + byte_of(from, n + column, k), 8 * sizeof **to);
        }
    }
}

static void to_floats(float (&to)[STEP], bool bf16, const uint16_t (&bits)[STEP])
{
    for (int k = 0; bf16 && k < STEP; k++) {
        to[k] = half_to_float<true>(bits[k]);
    }
    for (int k = 0; !bf16 && k < STEP; k += 8) {
        _mm256_storeu_ps(to + k, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(bits + k))));
    }
}

void read_step(float (&to)[STEP], bool bf16, const operand &from, int n)
{
    uint16_t bits[2][STEP];
    read<false>(bits, from, n);
    to_floats(to, bf16, bits[0]);
}

/* Columns 8 i + {0, 1} + first. */
static void read_columns(float (&to)[STEP][MOST_COLUMNS], int columns, bool bf16,
                         const operand &from, int first)
{
    for (int column = 0; column < columns; column += 2) {
        uint16_t bits[2][STEP];
        float step[2][STEP];
        read<true>(bits, from, column * 4 + first);
        to_floats(step[0], bf16, bits[0]);
        to_floats(step[1], bf16, bits[1]);
        for (int k = 0; k < STEP; k++) {
            to[k][column] = step[0][k], to[k][column + 1] = step[1][k];
        }
    }
}

/* The sums of two rows over columns side by side: vectors without another order of sums. */
static void add_products(double (&sum)[2][MOST_COLUMNS], int columns, const float (&left)[2][STEP],
                         const float (&right)[STEP][MOST_COLUMNS])
{
    for (int k = 0; k < STEP; k++) {
        const double top = left[0][k], low = left[1][k];
        for (int column = 0; column < columns; column++) {
            const double x = right[k][column];
            sum[0][column] += top * x;
            sum[1][column] += low * x;
        }
    }
}

void multiply(float *d, int columns, const float (&left)[2][STEP], bool bf16, const operand &b,
              bool add)
{
    const int first = 2 * (threadIdx.x % 4), mine = columns / 4;
    float right[STEP][MOST_COLUMNS];
    double sum[2][MOST_COLUMNS] = {};
    read_columns(right, mine, bf16, b, first);
    add_products(sum, mine, left, right);
    for (int column = 0; column < mine; column++) {
        for (int row = 0; row < 2; row++) {
            float &to = d[column / 2 * 4 + 2 * row + column % 2];
            to = (float)((add ? (double)to : 0) + sum[row][column]);
        }
    }
}

} // namespace emulated
