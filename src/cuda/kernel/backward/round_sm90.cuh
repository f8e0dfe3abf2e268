/*
 * round_sm90.cuh: dQ from the sums of ordered kernels: a CTA scales, rounds and stores a tile, or
 * zeros, if no key has added to it. Where the first keys of a sequence, the last ones to add, see
 * all tiles, the CTA that has them may do this as it goes (round_tile).
 */
#pragma once
#include "cuda/kernel/backward/turns_sm90.cuh"

/* Where a lane's fragments lie in a box of 16 rows of 64 columns. */
__device__ __forceinline__ uint32_t box_place(uint32_t box)
{
    const int lane = thread_number() % 32;
    return box + lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16;
}

/* Whether a row that is not finite (stage_halves) is there: left rows are from the lane's first one
 * on. */
__device__ __forceinline__ bool is_bad_row(int bad, int left)
{
    return bad != 0 && (left > 8 || (left > 0 && bad % 2 != 0));
}

/* Completes tile n of dQ, to which all other blocks of keys have added, where its sums were: for
 * each warp 16 rows of 64 columns, as the map of dQ takes them (hand_rounded_on). row: its first
 * one; head: that of the query. A warpgroup. */
template <class S>
__device__ __forceinline__ void
round_tile(const attn_cuda_backward_params &a, const GradMemory<S> &memory, const OrderedItem &o,
           QuerySums<S> &query, uint32_t n, int row, int head, int group)
{
    const uint32_t to = box_place(memory.sums() + (thread_number() - 128) / 32 * ROUNDED_BYTES);
    ptx::mbarrier_wait(memory.turn(n), n / 2 & 1); /* sums of the others are there */
    if (!adds_first(o.before, row / S::STEP)) {
        add_staged<S>(query, memory.sums());
    }
    __syncwarp(); /* all lanes have read them */
    const int bad = stage_halves<S::BF16>(to, query.dq, (float)a.grads.problem.scale);
    row += (S::STEP == 128 ? 64 * group : 0) + thread_number() / 32 % 4 * 16 +
           thread_number() % 32 / 4;
    if (is_bad_row(bad, (int)a.grads.problem.q.shape[1] - row)) {
        const int64_t block = row / 64, heads = a.grads.problem.heads,
                      columns = a.grads.problem.batch * heads;
        a.bad_rows[((a.grads.problem.q.shape[1] - 1) / 64 - block) * columns +
                   o.item.sequence.tensor * heads + head] = 1;
    }
}

/* Waits until the TMA has read what the warp gave it. All lanes. */
__device__ __forceinline__ void end_stores()
{
    if (thread_number() % 32 == 0) {
        tma::wait_stores_read();
    }
    __syncwarp();
}

/* Waits until dQ of the other warpgroup is done in the item's last tile. */
template <class S>
__device__ __forceinline__ void end_queries(const attn_cuda_backward_params &a,
                                            const OrderedItem &o, int group)
{
    if (S::STORES && o.all > 0) {
        ptx::barrier_sync(3 + group, 256);
    }
}

/* Whether an item's dK and dV leave from where its last tiles lay, which are given back when they
 * have (end_item). Else they go on to a rest. */
template <class S> __device__ __forceinline__ bool leaves_late(const OrderedItem &o)
{
    return S::LATE && o.part != GRAD_AHEAD;
}

/* Gives a warp's 16 rows of 128 sums times a factor to the TMA: columns 0 to 63 in one place of
 * shared memory, the others in another one. Returns what stage_halves says. */
template <class S>
__device__ __forceinline__ int give_rows(const attn_tensor_map *map, uint32_t low, uint32_t high,
                                         const float (&sum)[S::D / 2], float factor,
                                         const OrderedItem &o)
{
    const int warp = thread_number() / 32 - 4, key = (int)o.item.first + warp * 16,
              head = (int)o.item.head, batch = (int)o.item.sequence.tensor;
    low += warp * 2048, high += warp * 2048;
    int bad = stage_halves<S::BF16>(box_place(low), sum, factor);
    bad |= stage_halves<S::BF16, 32>(box_place(high), sum, factor);
    ptx::fence_proxy_async();
    __syncwarp();
    if (thread_number() % 32 == 0) {
        tma::store(map, low, 0, key, head, batch);
        tma::store(map, high, 64, key, head, batch);
        tma::commit_stores();
    }
    return bad;
}

/* Gives dV to the TMA, beside dQ and dK of the last tile, n: where the tile before was; of an item
 * of one tile where V is, which all warps have read, and which is given back later. */
template <class S>
__device__ __forceinline__ int give_values(const attn_cuda_backward_params &a,
                                           const GradMemory<S> &memory, const OrderedItem &o,
                                           const KeySums<S> &sums, uint32_t n)
{
    int bad = 0;
    if constexpr (S::LATE) {
        const bool one = o.all == 1;
        const uint32_t values = memory.fixed(1);
        if (leaves_late<S>(o)) {
            bad = give_rows<S>(&a.dv_map, one ? values : memory.streamed(n - 1, 0),
                               one ? values + S::FIXED * 128 : memory.streamed(n - 1, 1), sums.dv,
                               1, o);
        }
    }
    return bad;
}

/* The same of dK, once dQ of both warpgroups is done: where dS and dO are. Without tiles dV is 0,
 * too. */
template <class S>
__device__ __forceinline__ int give_last(const attn_cuda_backward_params &a,
                                         const GradMemory<S> &memory, const OrderedItem &o,
                                         const KeySums<S> &sums)
{
    const uint32_t low = memory.scores(), high = o.all == 0 ? low : memory.streamed(o.end() - 1, 1);
    if (o.all == 0) {
        (void)give_rows<S>(&a.dv_map, low, low, sums.dk, 1, o);
    }
    return give_rows<S>(&a.dk_map, low, high, sums.dk, (float)a.grads.problem.scale, o);
}

/* Gives back the stages of an item's last two tiles, once what left from there has been read. */
template <class S>
__device__ __forceinline__ void end_item(const GradMemory<S> &memory, const OrderedItem &o)
{
    if constexpr (!S::LATE) {
        return;
    }
    const uint32_t all = leaves_late<S>(o) ? o.all : 0, end = o.end();
    if (thread_number() % 32 == 0) {
        tma::wait_stores_read();
        for (uint32_t n = 1; n <= min(all, 2); n++) {
            ptx::mbarrier_arrive(memory.stages().empty(end - n));
        }
    }
    __syncwarp();
}

/* Gives a warp's dK and dV to the TMA, in its part of dS. left: keys of the group that are there.
 * Returns true if an element is not finite. */
template <class S>
__device__ __forceinline__ bool give_keys(const attn_cuda_backward_params &a,
                                          const GradMemory<S> &memory, const OrderedItem &o,
                                          const KeySums<S> &sums, int group, int left)
{
    const int warp = thread_number() / 32 - 4, lane = thread_number() % 32;
    const uint32_t dk = memory.scores() + warp * 2048, dv = dk + 128 * 128;
    int bad = 0;
    end_queries<S>(a, o, group);
    end_stores();
    bad = stage_halves<S::BF16>(box_place(dk), sums.dk, (float)a.grads.problem.scale);
    bad |= stage_halves<S::BF16>(box_place(dv), sums.dv, 1);
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
        const int key = (int)o.item.first + warp * 16, head = (int)o.item.head,
                  batch = (int)o.item.sequence.tensor;
        tma::store(&a.dk_map, dk, 0, key, head, batch);
        tma::store(&a.dv_map, dv, 0, key, head, batch);
        tma::commit_stores();
    }
    return is_bad_row(bad, left - warp % 4 * 16 - lane / 4);
}

/* Stores dK and dV of a warpgroup's keys, from key `first` of the item's sequence on, of which
 * `left` are there. bad: what give_values said. Returns true if an element is not finite. */
template <class S>
__device__ __forceinline__ bool
store_keys(const attn_cuda_backward_params &a, const GradMemory<S> &memory, const OrderedItem &o,
           const KeySums<S> &sums, int group, int first, int left, int bad)
{
    const attn_gradients &grads = a.grads;
    const int batch = (int)o.item.sequence.tensor, head = (int)o.item.head;
    const int64_t key = o.item.sequence.k_first + first;
    if constexpr (S::STORES && !S::LATE) {
        return give_keys<S>(a, memory, o, sums, group, left);
    }
    if constexpr (S::LATE) {
        end_queries<S>(a, o, group);
        bad |= give_last<S>(a, memory, o, sums);
        return is_bad_row(bad, left - thread_number() / 32 % 4 * 16 - thread_number() % 32 / 4);
    }
    const bool bad_keys = store_sums<S::BF16>(grads.dk, sums.dk, (float)grads.problem.scale, batch,
                                              key, head, left),
               bad_values = store_sums<S::BF16>(grads.dv, sums.dv, 1, batch, key, head, left);
    return bad_keys || bad_values;
}

/* A fragment of 4 sums is of two rows, 8 apart, and two columns. */
template <class S> __device__ __forceinline__ void round_sm90(const attn_cuda_backward_params &a)
{
    const attn_gradients &grads = a.grads;
    const attn_problem &p = grads.problem;
    __shared__ GradItem item;
    ptx::begin_next_launch();
    ptx::wait_for_last_launch();
    share_item(item, a, a.items, blockIdx.x);
    if (item.empty) {
        return;
    }
    constexpr int EACH = S::STEP * S::D / (256 * 4); /* fragments of a thread */
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32,
              row = (S::STEP == 128 ? 64 * group : 0) + threadIdx.x / 32 % 4 * 16 + lane / 4,
              column = S::STEP == 64 ? 8 * EACH * group : 0;
    const int64_t place =
                      grad_tile_place(p, item, item.head, S::STEP, a.slots) + item.first / S::STEP,
                  left = item.sequence.nq - item.first;
    const float factor = a.turns[S::WIDE ? 2 * place : place] > 0 ? (float)p.scale : 0;
    /* wide: fours of fragments of 8 warps */
    constexpr int SIDE = S::WIDE ? 4 : EACH;
    const float4 *sums =
        (const float4 *)(a.sums + place * (S::STEP * S::D)) + threadIdx.x / 32 * SIDE * 32 + lane;
    float back = S::OUTSIDE ? a.kept : S::DOWN;
    bool bad = false;
    if constexpr (!S::BF16) {
        back = power_of_2(-score_exponent(a, item.sequence.index, item.head / p.group));
        bad = has_faint_rows(a, item, row);
    }
    float4 x[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float4 none = {0, 0, 0, 0};
        x[i] = factor == 0 ? none : sums[(i / SIDE * 8 * SIDE + i % SIDE) * 32];
    }
#pragma unroll
    for (int i = 0; i < 2 * EACH; i += 4) {
        const int half = i / EACH, r = row + 8 * half;
        float values[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 &v = x[i % EACH + j];
            values[j][0] = (half ? v.z : v.x) * back * factor;
            values[j][1] = (half ? v.w : v.y) * back * factor;
        }
        char *const to = attn_at(&grads.dq, item.sequence.tensor,
                                 item.sequence.q_first + item.first + r, item.head, 0);
        bad |= store_row(grads.dq, to, column + i % EACH * 8, values, r < left);
    }
    bad = S::STEP == 64 ? __syncthreads_or(bad) : any_of_group(group, bad);
    const int64_t first = item.first + (S::STEP == 128 ? 64 * group : 0);
    if (threadIdx.x % (S::STEP == 64 ? 256 : 128) == 0 && first < item.sequence.nq) {
        a.bad_rows[grad_note(p, a.items, item, first)] = bad;
    }
}
