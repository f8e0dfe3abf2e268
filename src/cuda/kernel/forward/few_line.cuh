/*
 * few_line.cuh: a warp's keys of tiles into its part of shared memory where rows are straight
 * (attn_cuda_few.straight): as wide as tiles, a step apart that 32 bits hold; so are factors, which
 * are scales of f32 or absent. A lane has the address of its piece of a row, and goes from tile to
 * tile by a step, or to a page where the warp's keys of a tile lie in one (TURNS). Other rows
 * (few_load.cuh) take a chain of reads of shared memory as long as a tile's products.
 *
 * Behind a sequence's last key its row is read again.
 */
#pragma once
#include "cuda/kernel/forward/few_shape.cuh"
#include "cuda/kernel/ptx/entry.cuh"
#include "cuda/kernel/ptx/once.cuh"

template <class S> struct FewLine {
    static constexpr int PIECES = S::ROW / 16, AT_ONCE = 32 / PIECES; /* of a row; rows copied */
    const attn_cuda_few &few;
    /* Of the warp's first row of the next tile: the lane's piece of K and of V, the scale of K or
     * of V. */
    const char *k, *v, *scale; /* scale == NULL: absent */
    int scale_step;
    int left;    /* keys from there to the last one */
    uint32_t to; /* the next tile's stage */

    __device__ __forceinline__ FewLine(const attn_cuda_few &few_) : few(few_)
    {
    }

    /* Begins with an item's last tile. shared: the warp's. */
    __device__ __forceinline__ void begin(const attn_cuda_codes_params &c, const FewStart &start,
                                          unsigned char *shared)
    {
        const int piece = threadIdx.x % PIECES * 16;
        const uint32_t row = (uint32_t)(start.k_first + begin_at(start, shared));
        k = few_place(c, K_CODES, start.kv_head).at(start.tensor, row) + piece;
        v = few_place(c, V_CODES, start.kv_head).at(start.tensor, row) + piece;
        if constexpr (!S::Codes::PLAIN) {
            const FewPlace of = few_place(c, scales(), start.kv_head);
            scale = of.first == NULL ? NULL : of.at(start.tensor, row), scale_step = (int)of.row;
        }
    }
    /* The same, but for where its rows lie. Returns the warp's first key. */
    __device__ __forceinline__ int begin_at(const FewStart &start, unsigned char *shared)
    {
        const int key = start.last * S::KEYS + (int)threadIdx.x / 32 * S::EACH;
        to = ptx::opaque(ptx::shared_address(shared));
        left = start.keys - 1 - key;
        return key;
    }
    /* The number of the lane's scales. */
    static __device__ __forceinline__ int scales()
    {
        return threadIdx.x % 32 < S::EACH ? K_SCALE : V_SCALE;
    }
    /* Goes to the warp's first row of a tile, whose places in tensors lie at `places`; copy adds
     * the lane's piece, so that nothing waits for them here. */
    __device__ __forceinline__ void turn(const char *const *places)
    {
        k = places[K_TURN], v = places[V_TURN];
        if constexpr (!S::Codes::PLAIN) {
            scale = places[threadIdx.x % 32 < S::EACH ? K_SCALE_TURN : V_SCALE_TURN];
        }
    }

    /* Goes on to the same keys of KV head number `index`, counted over all sequences. */
    __device__ __forceinline__ void go_on(const FewItem &item, uint32_t index)
    {
        const int key = item.blocks.last * S::KEYS + (int)threadIdx.x / 32 * S::EACH,
                  piece = threadIdx.x % PIECES * 16;
        const uint32_t sequence = quotient(index, few.kv_heads),
                       kv_head = index - sequence * few.kv_heads.by;
        left = item.band.keys - 1 - key;
        k = few.k.data + kv_head * few.k.head + sequence * few.k.batch + key * few.k.row + piece;
        v = few.v.data + kv_head * few.v.head + sequence * few.v.batch + key * few.v.row + piece;
    }

    /* Makes the factors of a stage those of absent tensors. */
    static __device__ __forceinline__ void clear(unsigned char *stage)
    {
        const int lane = threadIdx.x % 32;
        float *factors = (float *)(stage + S::FACTORS_AT) + lane;
        factors[0] = factors[2 * S::EACH] = lane < S::EACH ? 1 : 0;
    }

    /* Starts the copies of the next tile. last: its stage is the last one. */
    __device__ __forceinline__ void copy(bool last)
    {
        const int lane = threadIdx.x % 32, first = lane / PIECES, piece = lane % PIECES * 16,
                  place = S::place(first, piece), behind = S::TURNS ? piece : 0;
        const uint32_t stage = S::ANY ? to : ptx::of_lane(to);
        copy_rows(stage, k + behind, (int)few.k.row, first, place);
        copy_rows(stage + S::TILE, v + behind, (int)few.v.row, first, place);
        if (!S::Codes::PLAIN && scale != NULL) {
            const int key = lane % S::EACH,
                      at = (lane < S::EACH ? K_SCALE : V_SCALE) * S::EACH + key;
            ptx::copy_async_4(to + S::FACTORS_AT + at * 4,
                              ptx::step_from(scale, min(key, left), scale_step));
            scale = S::TURNS ? scale : ptx::step_from(scale, -S::KEYS, scale_step);
        }
        if constexpr (!S::TURNS) {
            k = ptx::step_from(k, -S::KEYS, (int)few.k.row);
            v = ptx::step_from(v, -S::KEYS, (int)few.v.row);
        }
        left += S::KEYS;
        to += last ? -(S::STAGES - 1) * S::STAGE : S::STAGE;
    }

    /* The lane's pieces of the tile's rows. */
    __device__ __forceinline__ void copy_rows(uint32_t tile, const char *from, int step, int first,
                                              int place) const
    {
#pragma unroll
        for (int r = 0; r < S::EACH; r += AT_ONCE) {
            const uint32_t row_to = tile + S::beside(place, S::place(r, 0));
            const char *row = ptx::step_from(from, min(first + r, left), step);
            if constexpr (S::ANY) {
                ptx::copy_async_16(row_to, row);
            } else {
                ptx::copy_async_16_once(row_to, row);
            }
        }
    }
};
