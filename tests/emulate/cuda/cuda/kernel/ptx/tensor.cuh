/*
 * tensor.cuh: in place of src/cuda/kernel/ptx/tensor.cuh, on the emulated GPU.
 */
#pragma once
#include "cuda/kernel/ptx/ptx.cuh"

namespace mma
{

template <bool TRANSPOSED> inline void load_4(uint32_t (&r)[4], uint32_t address)
{
    const auto places = emulated::exchange(address);
    const int lane = threadIdx.x % 32, row = lane / 4, column = 2 * (lane % 4);
    for (int matrix = 0; matrix < 4; matrix++) {
        uint16_t of[2];
        for (int i = 0; i < 2; i++) {
            of[i] = TRANSPOSED
                        ? ptx::load_shared<uint16_t>(places[8 * matrix + column + i] + 2 * row)
                        : ptx::load_shared<uint16_t>(places[8 * matrix + row] + 2 * (column + i));
        }
        r[matrix] = of[0] | (uint32_t)of[1] << 16;
    }
}

inline uint32_t transposed(uint32_t x)
{
    const auto all = emulated::exchange(x);
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const uint32_t low = all[4 * column + row / 2] >> 16 * (row % 2) & 0xffff;
    return low | all[4 * (column + 1) + row / 2] >> 16 * (row % 2) << 16;
}

/* A lane's words of both operands. */
struct operands {
    uint32_t a[4], b[2];
};

/* a[0], a[1]: columns 2 (l % 4) + {0, 1} of rows l / 4 and l / 4 + 8; a[2], a[3]: 8 columns on.
 * b[0], b[1]: rows 2 (l % 4) + {0, 1} of column l / 4, and 8 rows on. */
template <bool BF16> inline void product(float (&d)[4], const uint32_t *a, const uint32_t *b)
{
    const auto all = emulated::exchange(operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        double sum = 0;
        for (int k = 0; k < 16; k++) {
            const int pair = k % 8 / 2;
            const uint32_t left = all[4 * (row % 8) + pair].a[row / 8 + 2 * (k / 8)],
                           right = all[4 * column + pair].b[k / 8];
            sum += (double)emulated::half_of<BF16>(left, k % 2) *
                   (double)emulated::half_of<BF16>(right, k % 2);
        }
        d[i] = (float)(d[i] + sum);
    }
}

} // namespace mma
