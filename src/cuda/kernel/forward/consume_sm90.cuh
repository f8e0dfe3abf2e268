/*
 * consume_sm90.cuh: the consumer warpgroups of forward_sm90, 64 query rows each: the tile loop and
 * the results.
 */
#pragma once
#include "cuda/kernel/forward/split_sm90.cuh"
#include "cuda/kernel/forward/store_sm90.cuh"
#include "cuda/kernel/forward/swap_sm90.cuh"
#include "cuda/kernel/forward/wide_sm90.cuh"
#include "cuda/kernel/load/load.cuh"
#include "cuda/kernel/ptx/settle.cuh"

/* Ends P V of block n. */
template <class S>
__device__ __forceinline__ void finish_pv(const Memory<S> &memory, uint32_t n, Sum<S> &sum,
                                          Rows<S::DV> &rows, uint32_t (&p)[S::PARTS][S::BN / 4])
{
    wgmma::wait<0>();
    wgmma::hold(sum.o);
    wgmma::hold(p);
    if (threadIdx.x % 128 == 0) {
        ptx::mbarrier_arrive(memory.v_empty(n));
    }
    sum.add(rows);
}

/* Computes probabilities of a block's first keys with bases that stay, right or not, while P V of
 * block n - 1 goes on, and ends that. Products with block n are done. */
template <class S, class Exponents>
__device__ __forceinline__ void
weigh_ahead(const Memory<S> &memory, uint32_t n, const float (&s)[S::BN / 2], Exponents &e,
            Sum<S> &sum, Rows<S::DV> &rows, uint32_t (&p)[S::PARTS][S::BN / 4], Chains &chains)
{
    constexpr int FRESH = 4 * S::FRESH, AWAITED = 4 * S::AWAITED;
    uint32_t fresh[1][FRESH];
    weigh_words<S::DTYPE, true, NEAR_NONE, 0, FRESH>(s, e, rows.state, fresh, chains);
    ptx::settle<0, FRESH>(fresh[0], n);
    wgmma::wait<1>();
    weigh_words<S::DTYPE, true, NEAR_NONE, FRESH, AWAITED>(s, e, rows.state, p, chains);
    ptx::settle<FRESH, AWAITED>(p[0], n);
    finish_pv<S>(memory, n - 1, sum, rows, p);
#pragma unroll
    for (int w = 0; w < FRESH; w++) {
        p[0][w] = fresh[0][w];
    }
}

/* Probabilities of a block, with bases that stay, if that is right for all rows of the warp. Those
 * that are computed ahead are there, and in chains. */
template <class S, class Exponents>
__device__ __forceinline__ bool weigh_kept(const float (&s)[S::BN / 2], Exponents &e,
                                           RowState (&state)[2], uint32_t (&p)[S::PARTS][S::BN / 4],
                                           const Chains &chains)
{
    if constexpr (S::VANISHES) {
        if (e.far && e.vanishes(s, state)) {
#pragma unroll
            for (int i = 0; i < S::BN / 4; i++) {
                p[0][i] = 0;
            }
            return true;
        }
    }
    return keep_bases<S::DTYPE, 4 * S::AWAITED, S::PASSES>(s, e, state, p, chains);
}

/* Runs blocks from .. from + b.count - 1 of an item. b: the blocks that the group's rows see. */
template <class S>
__device__ __forceinline__ void run_blocks(const attn_cuda_forward_params &a, Rows<S::DV> &rows,
                                           const Memory<S> &memory, const WarpRows &warp,
                                           Steps<S> &steps, const Blocks b, const Walk<S> walk,
                                           uint32_t number, int from, Drops<S> &drops)
{
    const int group = row_group<S>();
    const bool leader = lean_thread<S, 2>() % 128 == 0;
    float s[S::BN / 2];
    uint32_t p[S::PARTS][S::BN / 4];
    Sum<S> sum(rows);
    const uint32_t q_first = memory.q() + group * 64 * 128,
                   q = operand_place(ptx::uniform(q_first));
    HeldQ<S> held;
    held.load(q_first);

    const int first = walk.block(0);
    if (S::HALVES && b.end <= first * S::BN + S::BN / 2) {
        first_block<S, S::BN / (S::HALVES ? 2 : 1)>(a, rows, memory, held, warp, steps, b, first, q,
                                                    number, from > 0, p, drops);
    } else {
        first_block<S, S::BN>(a, rows, memory, held, warp, steps, b, first, q, number, from > 0, p,
                              drops);
    }
    /* The group's number, by way of q: ptxas would read threadIdx again in each block. */
    const int turn =
        S::LEAN > 0 ? threadIdx.x / 128 : (q - operand_place(memory.q())) / (64 * 128 / 16) + 1;
    /* where the next tile of K is to be found, computed while products run */
    uint32_t n = ptx::opaque(number + 1);
    uint32_t k = operand_place(memory.k(n)), k_full = memory.k_full(n), parity = tile_parity<S>(n);
#pragma unroll 1
    for (int i = 1; i < b.count; i++, n++) {
        steps.fetch_copies(a, walk.block(i) * S::BN, i + 1 < b.count);
        ptx::mbarrier_wait(k_full, parity);
        begin_turn<S>(turn);
        wgmma::hold(p);
        wgmma::fence();
        issue_qk<S, S::BN>(s, S::LEAN > 0 ? operand_place(ptx::uniform(q_first)) : q, held, k,
                           &a.pages.k);
        ptx::mbarrier_wait(memory.v_full(n - 1), tile_parity<S>(n - 1));
        wgmma::fence();
        issue_pv<S>(sum.o, p, memory.v(n - 1), S::PARTS == 1 && i > 1, &a.pages.v);
        end_turn<S>();
        k = operand_place(memory.k(n + 1));
        k_full = memory.k_full(n + 1), parity = tile_parity<S>(n + 1);
        if (S::LEAN < 2) { /* else they are computed when they are needed */
            k = ptx::opaque(k), k_full = ptx::opaque(k_full), parity = ptx::opaque(parity);
        }
        const int block = walk.block(i);
        const bool masked = b.masked(block);
        bool begins = false;
        if constexpr (!S::PASSES) {
            begins = (S::MASKS || b.masked(walk.block(i - 1))) && any_begins(rows.state);
        }
        auto e = steps.exponents(a, block * S::BN);
        if constexpr (S::VANISHES) {
            e.template foresee<S::BN / 2>(rows.state);
        }
        if (S::PARTS == 1) {
            steps.fetch_mask(a, block * S::BN);
        }
        if constexpr (S::PASSES) {
            begins = steps.begins(rows.state);
        }
        drops.begin_block(a, block * S::BN);
        wgmma::wait<S::AHEAD ? 2 : 0>();
        wgmma::hold(s);
        if (leader) {
            ptx::mbarrier_arrive(memory.k_empty(n));
        }
        if (!S::AHEAD) {
            finish_pv<S>(memory, n - 1, sum, rows, p);
        }
        if constexpr (S::STEPS) {
            if (S::PARTS > 1) { /* f32 has registers for P only now */
                steps.fetch_mask(a, block * S::BN);
            }
            steps.apply(a, warp, block * S::BN, masked, s);
        }
        Chains chains;
        if constexpr (S::AHEAD) {
            weigh_ahead<S>(memory, n, s, e, sum, rows, p, chains);
        }
        const bool kept =
            !(masked || begins || steps.look(e)) && weigh_kept<S>(s, e, rows.state, p, chains);
        if (!kept) {
            bool few[2] = {false, false};
            if constexpr (S::STEPS) {
                steps.hide(a, s);
                few[0] = steps.template few<S::BN / 2>(0),
                few[1] = steps.template few<S::BN / 2>(1);
            } else {
                steps.prepare(e, block * S::BN, s);
                if (masked) {
                    mask_block(warp, block * S::BN, s, few);
                }
            }
            float alpha[2];
            move_bases<S::DTYPE>(s, e, few, rows.state, alpha);
            drops.lower(alpha);
            probabilities<S::DTYPE>(s, e, rows.state, p);
            rescale_moved(rows.o, alpha);
        }
        steps.learn(e);
        drops.take(a, block * S::BN, p);
    }
    if (S::PARTS == 1 && leader) {
        ptx::mbarrier_arrive(memory.q_empty(q_piece<S>()));
    }
    n--;
    ptx::mbarrier_wait(memory.v_full(n), tile_parity<S>(n));
    wgmma::hold(p);
    wgmma::fence();
    issue_pv<S>(sum.o, p, memory.v(n), S::PARTS == 1 && b.count > 1, &a.pages.v);
    wgmma::wait<0>();
    wgmma::hold(sum.o);
    sum.add(rows);
    if (leader) {
        ptx::mbarrier_arrive(memory.v_empty(n));
    }
}

/* Loads the group's own rows of Q in parts. f32. */
template <class S>
__device__ __forceinline__ void load_q(const attn_cuda_forward_params &a, const Memory<S> &memory,
                                       const Item &item)
{
    const int first = (threadIdx.x / 128 - 1) * 64,
              rows = (int)(item.sequence.nq_used - item.first_row) - first;
    const int64_t row = item.sequence.q_first + item.first_row + first;
    Fetched<64, S::D, 128> q;
    q.fetch(a.problem.q, attn_at(&a.problem.q, item.sequence.tensor, row, item.head, 0), rows,
            a.aligned & ATTN_CUDA_ALIGNED_Q);
    meet<S>(); /* products of the item before have read its rows */
    q.template put<S::BM>(memory.q() + first * 128);
    ptx::fence_proxy_async();
    meet<S>();
}

/* The type of the warp's rows: WarpRows or FoldedRows. */
template <class S>
__device__ __forceinline__ auto warp_rows(const attn_cuda_forward_params &a, int2 *bounds)
{
    const int place = (threadIdx.x / 32 - 4) * 16, first = S::SHARED ? place % 64 : place;
    const WarpRows rows = {first, bounds + place, S::SHARED ? S::DV : 0};
    if constexpr (S::PAGED) {
        return PagedRows(rows, a.schedule);
    } else if constexpr (S::DROPS) {
        return DroppedRows<FoldedRows>{FoldedRows(rows, a.schedule), {false, false}};
    } else if constexpr (S::RAGGED) {
        return FoldedRows(rows, a.schedule);
    } else {
        return rows;
    }
}

/* The end of an item's rows, each by itself. Whether some of them see less than others is asked of
 * the item's own blocks: those of a group are all masked where maxima are asked for, which may
 * change no bit. Returns true if some are left, to be done once more. */
template <class S, class Warp, class Store>
__device__ __forceinline__ bool finish_alone(const attn_cuda_forward_params &a, const Post &post,
                                             const Warp &warp, Rows<S::DV> &rows,
                                             const Store &store)
{
    constexpr bool STEPPED = S::SCORES != ATTN_CUDA_SCALED;
    const bool masked = post.blocks.any_masked() || (S::MASKS && a.steps_sm90.masks);
    const bool again = S::TMA && masked && !post.clean && rows_differ<S>(a);
    if (S::RAGGED && a.schedule.splits > 1) {
        return finish_split<S>(a, post, masked, warp, rows) && again;
    }
    return finish_rows<S::DTYPE, S::WIDEST, STEPPED, (S::PARTS > 1)>(
        a, post.item, masked, post.nonfinite, warp, rows, store, again);
}

/* How O leaves. */
template <class S>
__device__ __forceinline__ auto row_store(const attn_cuda_forward_params &a,
                                          const Memory<S> &memory)
{
    if constexpr (S::STAGED) {
        return StagedStore<S>{a, memory.o(ptx::uniform(ptx::opaque(threadIdx.x) / 32) - 4)};
    } else if constexpr (S::BOXED) {
        return PieceStore<S>(a);
    } else {
        return DirectStore<S::DTYPE>{a.problem};
    }
}

/* The blocks that the group's rows see, once more: with score steps there is no register beyond 128
 * columns that keeps their address over the tile loop. */
template <class S> __device__ __forceinline__ const Blocks &seen_blocks(const Post &post)
{
    const int group =
        S::STEPS && S::WIDEST > 128 ? ptx::opaque(threadIdx.x) / 128 - 1 : row_group<S>();
    return post.groups[group];
}

/* The end of an item's rows. */
template <class S, class Warp>
__device__ __forceinline__ void finish(const attn_cuda_forward_params &a, const Memory<S> &memory,
                                       Post &post, const Warp &warp, Rows<S::DV> &rows)
{
    bool left = false;
    const auto store = row_store<S>(a, memory);
    bool done = false;
    if constexpr (S::BOXED) {
        done = post.ending != ENDS_ALONE && !post.nonfinite &&
               finish_boxed<S>(a, post, warp, rows, store, left);
    }
    if (__builtin_expect(!done, !S::BOXED)) {
        left = finish_alone<S>(a, post, warp, rows, store);
    }
    if (__builtin_expect(left, false) && threadIdx.x % 32 == 0) {
        atomicOr(&post.again, 1);
    }
}

/* Blocks of the item that come before those that the group's rows see. */
__device__ __forceinline__ int first_seen(const Blocks &item, const Blocks &group)
{
    return group.count > 0 ? item.last - group.last : item.count;
}

/* Passes over the blocks behind those that the group's rows have seen. */
template <class S>
__device__ __forceinline__ void pass_rest(const attn_cuda_forward_params &a,
                                          const Memory<S> &memory, const Post &post)
{
    /* else all rows of whole sequences see block 0 */
    if (!S::SWAPS && (S::RAGGED || a.problem.window_left != ATTN_UNBOUNDED)) {
        const Blocks &seen = seen_blocks<S>(post);
        pass_blocks<S>(memory, post.number, first_seen(post.blocks, seen) + seen.count,
                       post.blocks.count);
    }
}

template <class S>
__device__ __forceinline__ void consume(const attn_cuda_forward_params &a, const Memory<S> &memory)
{
    const auto warp = warp_rows<S>(a, memory.bounds());
    if (S::TURNS && threadIdx.x / 128 == S::GROUPS) {
        ptx::barrier_arrive(1, 256); /* the first group has the first turn */
    }
#pragma unroll 1
    for (uint32_t posts = 0;; posts++) {
        Post &post = memory.await_post(posts);
        if (post.end) {
            break;
        }
        const Blocks &b = post.blocks;
        if (b.count > 0) {
            Rows<S::DV> rows;
            Drops<S> drops;
            rows.state[0] = rows.state[1] = {NO_BASE, -0.0f, -INFINITY};
            const Blocks &mine = post.groups[row_group<S>()];
            if constexpr (S::PARTS > 1) {
                load_q<S>(a, memory, post.item);
            }
            if (mine.any_masked()) {
                note_bounds(post.item, warp);
            }
            const uint32_t number = post.number;
            const int from = first_seen(b, mine);
            if (S::PARTS == 1) {
                ptx::mbarrier_wait(memory.q_full(q_piece<S>()), post.tiles & 1);
            }
            if constexpr (!S::SWAPS) {
                pass_blocks<S>(memory, number, 0, from);
            }
            if (mine.count > 0) {
                Steps<S> steps(memory);
                steps.begin(a, post.item, warp);
                drops.begin(a, post.item, warp);
                if constexpr (S::SWAPS) {
                    run_swapped<S>(a, rows, memory, warp, mine.uniform(), ptx::uniform(number),
                                   post.tiles);
                } else if constexpr (S::SHARED) {
                    run_shared<S>(a, rows, memory, warp, steps, mine.uniform(),
                                  ptx::uniform(number));
                } else {
                    const Blocks blocks = mine.uniform();
                    const Walk<S> walk(a, post.item, blocks);
                    run_blocks<S>(a, rows, memory, warp, steps, blocks, walk.uniform(),
                                  ptx::uniform(number + from), from, drops);
                }
            } else if (S::PARTS == 1 && threadIdx.x % 128 == 0) {
                ptx::mbarrier_arrive(memory.q_empty(q_piece<S>()));
            }
            /* opaque: else the place is kept over the tile loop, and spilled */
            Post &done = S::STEPS ? post : memory.post(ptx::opaque(posts));
            pass_rest<S>(a, memory, done);
            finish<S>(a, memory, done, drops.rows(a, warp), rows);
        } else if (S::RAGGED && a.schedule.splits > 1) {
            finish_empty_split(a, post, warp);
        } else {
            finish_empty<S::DTYPE>(a.problem, post.item, warp);
        }
        __syncwarp();
        /* opaque: else the barrier's address is kept over the tile loop, and spilled */
        if (threadIdx.x % 32 == 0) {
            ptx::mbarrier_arrive(memory.post_empty(ptx::opaque(posts)));
        }
    }
    if (S::STAGED) {
        tma::wait_stores_read(); /* the TMA has read O: shared memory ends with the CTA */
    }
}
