/*
 * wgmma.cuh: in place of src/cuda/kernel/mma/wgmma.cuh, on the emulated GPU. A product is computed
 * when it is issued: operands that change before the wait are not found. A step's 16 products are
 * summed in f64, which tensor cores do not.
 */
#pragma once
#include "halves.h"

namespace wgmma
{

/* Address, chunk and eight rows in shared memory, in 16 bytes as the hardware has them. */
inline uint64_t descriptor(uint32_t address, uint32_t chunk, uint32_t eight = 1024)
{
    return address >> 4 | (uint64_t)(chunk >> 4) << 32 | (uint64_t)(eight >> 4) << 48;
}

inline uint64_t at(uint64_t operand, uint32_t step)
{
    return operand + step;
}

inline void fence()
{
}
inline void commit()
{
}
/* A warpgroup's products are done together. */
template <int LEFT> inline void wait()
{
    emulated::barrier(emulated::GROUP_BARRIER + threadIdx.x / 128, 128, false, true);
}
template <int N> inline void hold(float (&)[N])
{
}
template <int PARTS, int N> inline void hold(uint32_t (&)[PARTS][N])
{
}
template <int N> inline void keep(const uint32_t (&)[N], uint32_t)
{
}

/* Element k of row or column n of an operand. */
template <bool BF16, bool ROWS_ALONG_K> inline float element(uint64_t operand, int n, int k)
{
    const uint32_t start = (uint32_t)operand << 4, chunk = (uint32_t)(operand >> 32 & 0xffff) << 4,
                   eight = (uint32_t)(operand >> 48) << 4,
                   plain = ROWS_ALONG_K
                               ? start + n / 64 * chunk + k / 8 * eight + k % 8 * 128 + n % 64 * 2
                               : start + n / 8 * eight + n % 8 * 128 + 2 * k,
                   at = plain ^ (plain >> 7 & 7) << 4;
    uint16_t bits;
    memcpy(&bits, emulated::shared_at(at), sizeof bits);
    return emulated::half_to_float<BF16>(bits);
}

template <bool BF16, int N> struct Product {
    /* d += the rows of A of this thread, left[2][16], times B */
    template <bool ROWS_ALONG_K>
    static void add(float (&d)[N / 2], const float (&left)[2][16], uint64_t b, int accumulate)
    {
        const int first = 2 * (threadIdx.x % 4);
        for (int column = 0; column < N / 4; column++) {
            const int n = column / 2 * 8 + first + column % 2;
            double sum[2] = {0, 0};
            for (int k = 0; k < 16; k++) {
                const double right = (double)element<BF16, ROWS_ALONG_K>(b, n, k);
                sum[0] += (double)left[0][k] * right;
                sum[1] += (double)left[1][k] * right;
            }
            for (int row = 0; row < 2; row++) {
                float &to = d[column / 2 * 4 + 2 * row + column % 2];
                to = (float)((accumulate ? (double)to : 0) + sum[row]);
            }
        }
    }

    template <int ROWS_ALONG_K = 0, int B_ROWS_ALONG_K = ROWS_ALONG_K>
    static void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate)
    {
        const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
        float left[2][16];
        for (int k = 0; k < 16; k++) {
            left[0][k] = element<BF16, ROWS_ALONG_K>(a, row, k);
            left[1][k] = element<BF16, ROWS_ALONG_K>(a, row + 8, k);
        }
        add<B_ROWS_ALONG_K>(d, left, b, accumulate);
    }

    struct words {
        uint32_t of[4];
    };

    template <int ROWS_ALONG_K>
    static void rs(float (&d)[N / 2], const uint32_t *a, uint64_t b, int accumulate)
    {
        const auto all = emulated::exchange(words{{a[0], a[1], a[2], a[3]}});
        const int quad = threadIdx.x % 32 / 4 * 4;
        float left[2][16];
        for (int k = 0; k < 16; k++) {
            for (int row = 0; row < 2; row++) {
                left[row][k] =
                    emulated::half_of<BF16>(all[quad + k % 8 / 2].of[row + 2 * (k / 8)], k % 2);
            }
        }
        add<ROWS_ALONG_K>(d, left, b, accumulate);
    }
};

} // namespace wgmma
