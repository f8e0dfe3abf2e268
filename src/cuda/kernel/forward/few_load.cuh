/*
 * few_load.cuh: a warp's keys of tiles into its part of shared memory, by cp.async: 16 rows of K
 * and V and their factors. A lane finds the place of one row: the entry of the table one tile ahead
 * of the place, the place one ahead of the copy, factors on their way until then. Behind a
 * sequence's last key its row is read again: its scores are masked, and all codes are finite
 * numbers.
 */
#pragma once
#include "cuda/kernel/forward/few_shape.cuh"
#include "cuda/kernel/ptx/entry.cuh"
#include "cuda/kernel/rows/score.cuh"

template <class S> struct FewLoader {
    /* A row of the tensors: its place in a page, or in its sequence's tensor, and the number of
     * that. An entry of the table stays as it came, in two words of which the second counts if the
     * table is wide, until the row's place is found: whatever is made of it waits for it. */
    struct Row {
        uint32_t low, high;
        int within;
    };
    struct Factors {
        float scale, shift;
    };
    static constexpr int PIECES = S::ROW / 16, AT_ONCE = 32 / PIECES; /* of a row; rows copied */
    const attn_cuda_codes_params &c;
    const FewItem &item;
    unsigned char *shared;                /* the warp's */
    int copy_row, copy_piece, copy_place; /* of the lane's first piece of a tile; bytes */

    __device__ __forceinline__ FewLoader(const attn_cuda_codes_params &c_, const FewItem &item_,
                                         unsigned char *shared_)
        : c(c_), item(item_), shared(shared_), copy_row(threadIdx.x % 32 / PIECES),
          copy_piece(threadIdx.x % PIECES * 16), copy_place(S::place(copy_row, copy_piece))
    {
    }

    static __device__ __forceinline__ bool values() /* the lane finds rows of V, else of K */
    {
        return threadIdx.x % 32 >= S::EACH;
    }
    /* The lane's row of the item's n-th tile; behind the last key, its row. */
    __device__ __forceinline__ Row look(int n) const
    {
        const attn_problem &p = c.forward.problem;
        const int key = (item.blocks.last - n) * S::KEYS +
                        (int)(threadIdx.x / 32 * S::EACH + threadIdx.x % S::EACH);
        Row row = {(uint32_t)item.sequence.tensor, 0,
                   (int)item.sequence.k_first + min(max(key, 0), item.band.keys - 1)};
        if (p.paged) {
            const int size = c.forward.pages.size;
            const uint64_t within = (uint32_t)row.within;
            int page = (int)(within * item.inverse >> 32); /* or one more */
            row.within -= page * size;
            if (row.within >= size) {
                page++, row.within -= size;
            }
            const int64_t entry =
                item.sequence.index * p.table.stride[0] + page * p.table.stride[1];
            ptx::load_entry((const char *)p.table.data + (entry << (item.wide ? 3 : 2)), item.wide,
                            row.low, row.high);
        }
        return row;
    }
    /* A page that the table names wrongly is cut to those there are. */
    __device__ __forceinline__ uint32_t page_of(const Row &row) const
    {
        const attn_problem &p = c.forward.problem;
        if (!p.paged) {
            return row.low;
        }
        const uint32_t last = (uint32_t)(p.k.shape[0] - 1);
        const int high = item.wide ? (int)row.high : (int)row.low >> 31;
        return high == 0 ? min(row.low, last) : high < 0 ? 0 : last;
    }
    /* Leaves the row's place for the warp, and asks for its factors. */
    __device__ __forceinline__ Factors find(int n, const Row &row) const
    {
        const char **place =
            (const char **)(shared + S::PLACES_AT) + n % 2 * 2 * S::EACH + threadIdx.x % 32;
        Factors f = {1, 0};
        const uint32_t page = page_of(row), within = (uint32_t)row.within;
        *place = item.places[values() ? V_CODES : K_CODES].at(page, within);
        if (S::Codes::PLAIN) {
            return f;
        }
        const FewPlace *of = item.places + (values() ? V_SCALE : K_SCALE);
        const int32_t dtype = values() ? c.v_scale.dtype : c.k_scale.dtype;
        if (of[0].first != NULL) {
            f.scale = load_real<float>(of[0].at(page, within), dtype);
        }
        if (of[1].first != NULL) {
            f.shift = load_real<float>(of[1].at(page, within), dtype);
        }
        return f;
    }
    __device__ __forceinline__ unsigned char *stage(int n) const
    {
        return shared + n % S::STAGES * S::STAGE;
    }
    __device__ __forceinline__ void put(int n, const Factors &f) const
    {
        if (S::Codes::PLAIN) {
            return;
        }
        float *to = (float *)(stage(n) + S::FACTORS_AT) + (values() ? V_SCALE * S::EACH : 0) +
                    threadIdx.x % S::EACH;
        to[0] = f.scale, to[S::EACH] = f.shift;
    }
    /* Makes numbers of `bytes` bytes of stages where columns of rows are not copied: those of K
     * meet zeros of Q. */
    __device__ __forceinline__ void clear(unsigned char *first, int bytes) const
    {
        const attn_problem &p = c.forward.problem;
        if (S::Codes::PLAIN && (p.d < S::D || p.dv < S::D)) {
            for (int at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16) {
                *(uint4 *)(first + at) = make_uint4(0, 0, 0, 0);
            }
            __syncwarp();
        }
    }
    /* Starts the copies of the n-th tile, whose places all lanes have left. */
    __device__ __forceinline__ void copy(int n) const
    {
        if (n < item.blocks.count) {
            const char *const *places =
                (const char *const *)(shared + S::PLACES_AT) + n % 2 * 2 * S::EACH;
            const attn_problem &p = c.forward.problem;
            const uint32_t to = ptx::shared_address(stage(n));
            copy_rows(to, places, (int)p.d * S::Codes::BITS / 8);
            copy_rows(to + S::TILE, places + S::EACH, (int)p.dv * S::Codes::BITS / 8);
        }
        ptx::copy_async_commit();
    }
    /* bytes: of a row. Columns beyond them keep what was there, codes or cleared, all of which are
     * finite numbers, times 0. */
    __device__ __forceinline__ void copy_rows(uint32_t tile, const char *const *places,
                                              int bytes) const
    {
        const char *from[S::EACH / AT_ONCE]; /* all at once, since each takes its time */
#pragma unroll
        for (int r = 0; r < S::EACH; r += AT_ONCE) {
            from[r / AT_ONCE] = places[copy_row + r] + copy_piece;
        }
        if (copy_piece < bytes) {
#pragma unroll
            for (int r = 0; r < S::EACH; r += AT_ONCE) {
                ptx::copy_async_16(tile + S::beside(copy_place, S::place(r, 0)), from[r / AT_ONCE]);
            }
        }
    }
};
