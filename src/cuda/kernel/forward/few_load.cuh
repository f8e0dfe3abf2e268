/*
 * few_load.cuh: a warp's keys of tiles into its part of shared memory, by cp.async: 16 rows of K
 * and V, their factors, and the entries of the table that say where rows are. A lane finds the
 * place of one row. Nothing of a later tile is in registers, since what a register gets is waited
 * for before it moves on, behind all copies that were asked for earlier:
 *
 *     entry of tile n + 2 STAGES - 1 | rows of n + STAGES - 1 | ... | place, factors of n + STAGES
 *
 * Rows that are straight take none of that (few_line.cuh). In pages of whole tiles of a warp they
 * take an entry a tile, which is there long before.
 *
 * Behind a sequence's last key its row is read again: its scores are masked, and all codes are
 * finite numbers.
 */
#pragma once
#include "cuda/kernel/forward/few_line.cuh"
#include "cuda/kernel/ptx/entry.cuh"
#include "cuda/kernel/rows/score.cuh"

template <class S> struct FewLoader {
    /* A row of the tensors: its place in a page, or in its sequence's tensor, and the number of
     * that. */
    struct Row {
        uint32_t page, within;
    };
    static constexpr int PIECES = S::ROW / 16, AT_ONCE = 32 / PIECES; /* of a row; rows copied */
    const attn_cuda_codes_params &c;
    const FewItem &item;
    unsigned char *shared;                /* the warp's */
    int copy_row, copy_piece, copy_place; /* of the lane's first piece of a tile; bytes */
    int count;                            /* tiles of the items begun so far */
    uint32_t index;                       /* of the last of these */
    int early = -1;                       /* GOES_ON: the last tile that load_early loaded */
    FewLine<S> line;

    /* tiles: of the first item. */
    __device__ __forceinline__ FewLoader(const attn_cuda_codes_params &c_, const FewItem &item_,
                                         int tiles, unsigned char *shared_)
        : c(c_), item(item_), shared(shared_), copy_row(threadIdx.x % 32 / PIECES),
          copy_piece(threadIdx.x % PIECES * 16), copy_place(S::place(copy_row, copy_piece)),
          count(ptx::opaque(tiles)), index(blockIdx.x), line(c_.forward.few)
    {
    }

    __device__ __forceinline__ bool straight() const
    {
        return S::LINES ||
               (S::ANY && !S::SHARED && c.forward.few.straight && c.forward.few.entry == 0);
    }
    /* Prepares for the item's first tile. TURNS: asks for entries of the table, and enter waits for
     * them. */
    __device__ __forceinline__ void begin(const FewStart &start)
    {
        clear(shared, S::PLACES_AT);
        if (!S::Codes::PLAIN && (!S::ANY || c.forward.few.straight)) {
#pragma unroll
            for (int i = 0; i < S::STAGES; i++) {
                FewLine<S>::clear(shared + i * S::STAGE);
            }
        }
        if (straight()) {
            line.begin(c, start, shared);
        } else if (S::TURNS) {
            begin_pages(start);
        } else {
            look_first();
            find(0);
        }
    }
    /* Waits for the first entries. The places of codes are known. */
    __device__ __forceinline__ void enter(const FewStart &start)
    {
        if constexpr (S::TURNS) {
            if constexpr (!S::Codes::PLAIN) {
                line.scale_step = (int)item.places[line.scales()].row;
            }
            ptx::copy_async_wait<0>();
            __syncwarp();
            settle(start, 0);
            __syncwarp();
            line.turn(place(0, 0));
        }
    }
    /* Starts the copies of the n-th tile, for which the warp is prepared. */
    __device__ __forceinline__ void load(int n)
    {
        if (straight()) {
            if (n < count) {
                line.copy(n % S::STAGES == S::STAGES - 1);
            }
            if constexpr (S::GOES_ON) {
                if (n + 1 == count) {
                    go_on();
                }
            }
        } else if (S::TURNS) {
            if (n < count) {
                line.copy(n % S::STAGES == S::STAGES - 1);
            }
            line.turn(place(n + 1, 0)); /* read here, but not waited for */
        } else {
            copy(n);
            look_ahead(n + S::STAGES);
        }
    }
    /* Starts them before run_tiles would, while the warp has other things to do. */
    __device__ __forceinline__ void load_early(int n)
    {
        load(n);
        ptx::copy_async_commit();
        early = n;
    }
    /* Prepares for the n-th tile, behind all copies of the one before it. */
    __device__ __forceinline__ void prepare(int n) const
    {
        if (S::ANY && !straight()) {
            find(n);
        }
    }

    /* Goes on to the CTA's next item, if there is one: the same keys of another KV head. */
    __device__ __forceinline__ void go_on()
    {
        index += gridDim.x;
        if (index < c.forward.few.items) {
            count += item.blocks.count;
            line.go_on(item, index);
            copy_q();
        }
    }
    /* Starts the copies of the warp's rows of Q of the next item. */
    __device__ __forceinline__ void copy_q() const
    {
        constexpr int PARTS = S::Q_ROW / 16;
        const attn_cuda_few &few = c.forward.few;
        const int lane = threadIdx.x % 32, within = lane / PARTS,
                  r = (int)threadIdx.x / 32 * S::Q_ROWS + within;
        const uint32_t sequence = quotient(index, few.kv_heads),
                       kv_head = index - sequence * few.kv_heads.by;
        if (within < S::Q_ROWS && r < item.rows) {
            const int query = item.query(c, r), group = (int)few.group.by,
                      head = (int)kv_head * group + r - query * group;
            ptx::copy_async_16(ptx::shared_address(shared) + S::PLACES_AT + lane * 16,
                               few.q.data + sequence * few.q.batch + query * few.q.row +
                                   head * few.q.head + lane % PARTS * 16);
        }
    }

    /* The warp's first key of the item's n-th tile. */
    static __device__ __forceinline__ int first_key(const FewStart &start, int n)
    {
        return (start.last - n) * S::KEYS + (int)threadIdx.x / 32 * S::EACH;
    }
    /* TURNS: where the entry of the n-th tile lies. */
    __device__ __forceinline__ unsigned char *turn(int n) const
    {
        return shared + S::ENTRIES_AT + (uint32_t)n % S::AHEAD * 8;
    }
    /* TURNS: the place of the n-th tile's rows in a tensor. */
    __device__ __forceinline__ const char **place(int n, int which) const
    {
        return (const char **)(shared + S::PLACES_AT) + n % S::SETTLED * TURN_TENSORS + which;
    }
    /* Asks for the entry of the n-th tile. */
    __device__ __forceinline__ void look_at(const FewStart &start, int n) const
    {
        if (n < count) {
            ask(start.tensor, row_of(start, first_key(start, n)), turn(n));
        }
    }
    /* Makes places of the entries of S::SETTLED tiles from the n-th on: a lane one of a tensor. */
    __device__ __forceinline__ void settle(const FewStart &start, int n) const
    {
        constexpr int LAST = S::Codes::PLAIN ? V_TURN : TURN_TENSORS - 1;
        const int lane = threadIdx.x % 32, which = lane % TURN_TENSORS;
        n += lane / TURN_TENSORS;
        if (n < count && which <= LAST) {
            const Row r = found(start, turn(n), [&] { return first_key(start, n); });
            const FewPlace of = S::FINDS          ? item.places[turn_tensor(which)]
                                : which == K_TURN ? few_place(c, K_CODES, start.kv_head)
                                                  : few_place(c, V_CODES, start.kv_head);
            *place(n, which) =
                of.first == NULL ? NULL : of.at(r.page, r.within - r.within % S::EACH);
        }
    }
    /* begin() of TURNS. */
    __device__ __forceinline__ void begin_pages(const FewStart &start)
    {
        const int key = line.begin_at(start, shared), last = start.keys - 1;
        if (key > last) {
            line.left = last % S::EACH;
        }
        look_at(start, threadIdx.x % 32);
        ptx::copy_async_commit();
    }
    /* Before the n-th tile is awaited: settles entries if those so far are used up, and asks for as
     * many in their place. Returns the tile before which that is due next, `end` at most. */
    __device__ __forceinline__ int settle_due(int n, int end) const
    {
        if (!S::TURNS) {
            return end;
        }
        const int next = n + S::STAGES;
        if (next % S::SETTLED == 0) {
            const FewStart start(item);
            __syncwarp();
            settle(start, next);
            if (threadIdx.x % 32 < S::SETTLED) {
                look_at(start, next - S::SETTLED + S::AHEAD + threadIdx.x % 32);
            }
            __syncwarp();
        }
        return min(end, n + S::SETTLED - next % S::SETTLED);
    }

    static __device__ __forceinline__ bool values() /* the lane finds rows of V, else of K */
    {
        return threadIdx.x % 32 >= S::EACH;
    }
    /* The lane's key of the item's n-th tile. */
    __device__ __forceinline__ int lane_key(int n) const
    {
        return first_key(FewStart(item), n) + (int)threadIdx.x % S::EACH;
    }
    /* The row of a key; of keys in pages, the number of the entry that says which page, and its
     * place in that. */
    __device__ __forceinline__ Row row_of(const FewStart &start, int key) const
    {
        Row row = {start.tensor, (uint32_t)(start.k_first + min(key, start.keys - 1))};
        const attn_cuda_few &few = c.forward.few;
        if (S::TURNS || few.entry != 0) {
            const uint32_t size = (uint32_t)few.page;
            row.page = (uint32_t)((uint64_t)row.within * few.page_inverse >> 32); /* or one more */
            row.within -= row.page * size;
            if (row.within >= size) {
                row.page++, row.within -= size;
            }
        }
        return row;
    }
    /* Where the entry of the lane's row lies: 8 bytes, or 4 and then its place in the page. */
    __device__ __forceinline__ unsigned char *entry(int n) const
    {
        return shared + S::ENTRIES_AT + (n % S::STAGES * S::EACH + threadIdx.x % S::EACH) * 8;
    }
    /* Asks for the entry of the lane's row of the n-th tile. */
    __device__ __forceinline__ void look(int n) const
    {
        if (n < count) {
            ask((uint32_t)item.sequence.index, row_of(FewStart(item), lane_key(n)), entry(n));
        }
    }
    /* Asks for the entry of a row of a sequence. */
    __device__ __forceinline__ void ask(uint32_t sequence, const Row &r, unsigned char *to) const
    {
        const attn_cuda_few &few = c.forward.few;
        const char *from =
            few.table + sequence * few.table_sequence + (int)r.page * few.table_entry;
        if (few.entry == 8) {
            ptx::copy_entry<8>(ptx::shared_address(to), from);
        } else {
            ptx::copy_entry<4>(ptx::shared_address(to), from);
            *(uint32_t *)(to + 4) = r.within;
        }
    }
    /* The same of the first tiles, two at a time; waits for them. */
    __device__ __forceinline__ void look_first() const
    {
        if (c.forward.few.entry == 0) {
            return;
        }
#pragma unroll
        for (int n = 0; n < S::STAGES; n += 2) {
            const int mine = n + (int)values();
            if (mine < S::STAGES) {
                look(mine);
            }
        }
        ptx::copy_async_commit();
        ptx::copy_async_wait<0>();
        __syncwarp();
    }
    __device__ __forceinline__ void look_ahead(int n) const
    {
        if (c.forward.few.entry != 0 && !values()) {
            look(n);
        }
    }
    /* The row of key(), whose entry is at `at`. A page that the table names wrongly is cut to those
     * there are. */
    template <class Key>
    __device__ __forceinline__ Row found(const FewStart &start, const unsigned char *at,
                                         const Key &key) const
    {
        const attn_cuda_few &few = c.forward.few;
        if (!S::TURNS && few.entry == 0) {
            return row_of(start, key());
        }
        const uint2 words = *(const uint2 *)at;
        const int last = few.last_page, low = (int)words.x, high = (int)words.y;
        if (few.entry == 4) {
            return {(uint32_t)min(max(low, 0), last), words.y};
        }
        return {high == 0  ? min(words.x, (uint32_t)last)
                : high < 0 ? 0
                           : (uint32_t)last,
                row_of(start, key()).within};
    }
    /* Leaves the place of the lane's row of the n-th tile for the warp, and asks for the row's
     * factors. */
    __device__ __forceinline__ void find(int n) const
    {
        if (n >= count) {
            return;
        }
        const Row r = found(FewStart(item), entry(n), [&] { return lane_key(n); });
        const char **place = (const char **)(shared + S::PLACES_AT) + threadIdx.x % 32;
        *place = item.places[values() ? V_CODES : K_CODES].at(r.page, r.within);
        if (!S::Codes::PLAIN) {
            const FewPlace *of = item.places + (values() ? V_SCALE : K_SCALE);
            float *to = (float *)(stage(n) + S::FACTORS_AT) + (values() ? V_SCALE * S::EACH : 0) +
                        threadIdx.x % S::EACH;
            if (!S::ANY || c.forward.few.straight) {
                if (of[0].first != NULL) {
                    ptx::copy_async_4(ptx::shared_address(to), of[0].at(r.page, r.within));
                }
                return;
            }
            const int32_t dtype = values() ? c.v_scale.dtype : c.k_scale.dtype;
            factor(to, of[0], r, dtype, 1);
            factor(to + S::EACH, of[1], r, dtype, 0);
        }
    }
    /* A factor of the row; those of f32 are copied as rows are, others are waited for. */
    static __device__ __forceinline__ void factor(float *to, const FewPlace &of, const Row &r,
                                                  int32_t dtype, float absent)
    {
        if (of.first == NULL) {
            *to = absent;
        } else if (dtype == ATTN_F32) {
            ptx::copy_async_4(ptx::shared_address(to), of.at(r.page, r.within));
        } else {
            *to = load_real<float>(of.at(r.page, r.within), dtype);
        }
    }
    __device__ __forceinline__ unsigned char *stage(int n) const
    {
        return shared + n % S::STAGES * S::STAGE;
    }
    /* Makes numbers of `bytes` bytes of stages where columns of rows are not copied: those of K
     * meet zeros of Q. */
    __device__ __forceinline__ void clear(unsigned char *first, int bytes) const
    {
        const attn_cuda_few &few = c.forward.few;
        if (S::ANY && (S::Codes::PLAIN || S::Codes::HALVES) &&
            (few.k_bytes < S::ROW || few.v_bytes < S::ROW)) {
            for (int at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16) {
                *(uint4 *)(first + at) = make_uint4(0, 0, 0, 0);
            }
            __syncwarp();
        }
    }
    /* Prepares a stage that had other numbers. */
    __device__ __forceinline__ void renew(unsigned char *stage) const
    {
        if (S::ANY && !c.forward.few.straight) {
            clear(stage, S::LEFT);
        } else if constexpr (!S::Codes::PLAIN) {
            FewLine<S>::clear(stage);
        }
    }
    /* Starts the copies of the n-th tile, whose places all lanes have left. */
    __device__ __forceinline__ void copy(int n) const
    {
        if (n < count) {
            const char *const *places = (const char *const *)(shared + S::PLACES_AT);
            const uint32_t to = ptx::shared_address(stage(n));
            copy_rows(to, places, c.forward.few.k_bytes);
            copy_rows(to + S::TILE, places + S::EACH, c.forward.few.v_bytes);
        }
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
