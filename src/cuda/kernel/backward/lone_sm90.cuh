/*
 * lone_sm90.cuh: tiles of a mask or a bias alone, which the TMA copies (loader_sm90.cuh): rows of
 * 128 bytes, whose pieces of 16 turn with the row, a mask's 128 keys or 64 of a bias. A warp reads
 * its 16 keys as transposed matrices and gives the tile back as soon as it has: the next one
 * arrives while this one's products run.
 */
#pragma once
#include "cuda/kernel/backward/shape_sm90.cuh"
#include "cuda/kernel/backward/tables_sm90.cuh"

/* A warp gives tile n back. All lanes, which have read it. */
template <class S>
__device__ __forceinline__ void release_table(const GradMemory<S> &memory, uint32_t n)
{
    __syncwarp();
    if (thread_number() % 32 == 0) {
        ptx::mbarrier_arrive(memory.table_stage().empty(n));
    }
}

/* Reads what the mask shows of tile n: a word (read_bits) for each 64 rows. All lanes. */
template <class S>
__device__ __forceinline__ void read_mask(const GradMemory<S> &memory, uint32_t n,
                                          uint32_t (&shown)[S::STEP / 64])
{
    const int lane = thread_number() % 32, piece = thread_number() / 32 - 4;
    const uint32_t at = memory.table() + lane * 128 + (piece ^ lane % 8) * 16;
    memory.table_stage().await_full(n);
#pragma unroll
    for (int i = 0; i < S::STEP / 64; i++) {
        shown[i] = read_bits(at + i * 64 * 128, 32 * 128);
    }
    release_table(memory, n);
}

/* Hides ROWS rows from FROM on of a warpgroup's 64 keys, by such words. */
template <int FROM, int ROWS, int N, int WORDS>
__device__ __forceinline__ void hide_table(const uint32_t (&shown)[WORDS], float (&s)[N])
{
#pragma unroll
    for (int i = FROM; i < FROM + ROWS; i += 32) { /* of a word's bits half at a time */
        hide_exponents<32>(s + i / 2, shown[i / 64] >> i % 64 / 8);
    }
}

/* Adds the bias of a warpgroup's 64 keys to exponents of ROWS rows of tile n from FROM on: the
 * first ones, then the last ones. All lanes. */
template <class S, int FROM, int ROWS>
__device__ __forceinline__ void add_table(const GradMemory<S> &memory, uint32_t n, int group,
                                          float (&s)[S::STEP / 2])
{
    if (FROM == 0) {
        memory.table_stage().await_full(n);
    }
    const int lane = thread_number() % 32, row = lane / 16 * 8 + lane % 8,
              piece = thread_number() / 32 % 4 * 2 + lane / 8 % 2;
    const uint32_t at = memory.table() + (group * S::STEP + row) * 128 + (piece ^ lane % 8) * 16;
#pragma unroll
    for (int j = FROM / 16; j < (FROM + ROWS) / 16; j++) {
        uint32_t x[4];
        mma::load_4<true>(x, at + j * 16 * 128);
        add_bias<S::BF16>(s + 8 * j, x);
    }
    if (FROM + ROWS == S::STEP) {
        release_table(memory, n);
    }
}
