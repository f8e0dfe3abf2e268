/*
 * wgmma.cuh: in place of src/cuda/kernel/mma/wgmma.cuh, on the emulated GPU. A product is computed
 * when it is issued (products.h): operands that change before the wait are not found.
 */
#pragma once
#include "halves.h"
#include "products.h"

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

template <bool BF16, int N> struct Product {
    /* d += A B of the warpgroup, of which A's rows and B's columns that this thread holds */
    template <int ROWS_ALONG_K = 0, int B_ROWS_ALONG_K = ROWS_ALONG_K>
    static void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate)
    {
        const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
        float left[2][16];
        emulated::read_step(left[0], BF16, {a, ROWS_ALONG_K != 0}, row);
        emulated::read_step(left[1], BF16, {a, ROWS_ALONG_K != 0}, row + 8);
        emulated::multiply(d, N, left, BF16, {b, B_ROWS_ALONG_K != 0}, accumulate != 0);
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
        emulated::multiply(d, N, left, BF16, {b, ROWS_ALONG_K != 0}, accumulate != 0);
    }
};

} // namespace wgmma
