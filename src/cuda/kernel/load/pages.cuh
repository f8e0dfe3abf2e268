/*
 * pages.cuh: tiles of K and V that lie in pages, by ordinary threads: each piece where load.cuh
 * puts it. Not here: pages that come by TMA (forward/paged_sm90.cuh).
 *
 * Places of a tile's rows wait in shared memory, found a tile ahead by a thread for each row: an
 * entry of the table and a division would else be asked for once a piece.
 */
#pragma once
#include "cuda/kernel/load/load.cuh"

/* A page of the tensors, and a row in it. */
typedef int2 PagePlace;

/* Finds the places of keys from `first` on; behind the sequence's last key, its place. A page that
 * the table names wrongly is cut to those there are. */
template <int ROWS>
__device__ __forceinline__ void find_places(PagePlace (&places)[ROWS],
                                            const attn_cuda_forward_params &a,
                                            const attn_sequence &s, int first)
{
    const int i = ptx::opaque(threadIdx.x);
    if (i < ROWS) {
        const uint32_t row = (uint32_t)attn_kv_row(&s, min(first + i, (int)s.nk - 1));
        uint32_t page = (uint32_t)((uint64_t)row * a.pages.inverse >> 32), /* or one more */
            within = row - page * a.pages.size;
        if (within >= (uint32_t)a.pages.size) {
            page++, within -= a.pages.size;
        }
        const int64_t entry = attn_kv_entry(&a.problem.table, s.index, page);
        places[i] = {(int)attn_clamp(entry, 0, a.problem.k.shape[0] - 1), (int)within};
    }
}

/* Loads ROWS x D elements of SIZE bytes of one head from places in pages. Rows from `valid` on and
 * missing columns are 0. address(row, piece): of 16 bytes in shared memory. */
template <int SIZE, int ROWS, int D, int THREADS, class Address>
__device__ __forceinline__ void load_placed(const attn_tensor &t, const PagePlace (&places)[ROWS],
                                            int kv_head, int valid, bool aligned,
                                            const Address &address)
{
    constexpr int EACH = 16 / SIZE, PIECES = D / EACH;
    const int columns = (int)t.shape[3];
    const int64_t step = t.stride[3] * SIZE;
#pragma unroll 1
    for (int i = ptx::opaque(threadIdx.x); i < ROWS * PIECES; i += THREADS) {
        const int r = i / PIECES, piece = i % PIECES;
        const int count = r < valid ? min(max(columns - EACH * piece, 0), EACH) : 0;
        const char *from = attn_at(&t, places[r].x, places[r].y, kv_head, 0) + EACH * piece * step;
        if (aligned) {
            ptx::copy_async_16(address(r, piece), count > 0 ? from : t.data, SIZE * count);
        } else {
            ptx::store_shared_16(address(r, piece), gather_16<SIZE>(from, step, count));
        }
    }
}
