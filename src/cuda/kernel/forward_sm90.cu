/*
 * forward_sm90.cu: the forward pass for 16-bit inputs on sm_90a: FlashAttention-2's algorithm in the shape of
 * FlashAttention-3 (arXiv 2407.08608): a producer warpgroup feeds tiles through shared memory to consumer warpgroups of
 * 64 rows each, whose softmax runs while the tensor cores do the next Q K^T, the last P V, and other warpgroups' work.
 *
 *     producer:  for each item:  K(0) Q [K(i) V(i-1)].. V(n-1)      block 0 is the rightmost one: masked blocks first
 *     consumer:  S = Q K(0)^T, softmax
 *                for i = 1 .. n-1:  issue S' = Q K(i)^T | issue O += P V(i-1) | softmax of S' | O *= alpha, P = P'
 *                O += P V(n-1), epilogue
 *
 * Shared memory: Q [BM][D] | K [2][BN][D] | V [2][BN][D] | barriers; every operand in chunks of 64 columns (wgmma.cuh).
 * A CTA is persistent: items index, then index + grid, .. with every second round reversed, so that heavy and light
 * items even out. Not here: scores with bias, mask tensor, ALiBi or softcap (forward_generic.cu); lengths, causality and
 * windows are intervals of keys (core/mask.h).
 */
#include "epilogue.cuh"
#include "load.cuh"
#include "schedule.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

template <bool BF16_, int D_, int GROUPS_, int BN_, int REGISTERS_, bool TURNS_>
struct Shape {
    static constexpr bool BF16 = BF16_;
    static constexpr int D = D_, GROUPS = GROUPS_, BN = BN_, BM = 64 * GROUPS, REGISTERS = REGISTERS_;
    static constexpr bool TURNS = TURNS_; /* consumers take turns at issuing products */
    static constexpr int THREADS = 128 * (GROUPS + 1);
    static constexpr int Q_BYTES = BM * D * 2, KV_BYTES = BN * D * 2;
};

enum { STAGES = 2 };

/* Addresses in shared memory. */
template <class S>
struct Memory {
    uint32_t base;
    __device__ __forceinline__ uint32_t q() const { return base; }
    __device__ __forceinline__ uint32_t k(uint32_t n) const { return base + S::Q_BYTES + n % STAGES * S::KV_BYTES; }
    __device__ __forceinline__ uint32_t v(uint32_t n) const { return k(n) + STAGES * S::KV_BYTES; }
    __device__ __forceinline__ uint32_t barrier(uint32_t i) const
    {
        return base + S::Q_BYTES + 2 * STAGES * S::KV_BYTES + 8 * i;
    }
    __device__ __forceinline__ uint32_t q_full() const { return barrier(0); }
    __device__ __forceinline__ uint32_t q_empty() const { return barrier(1); }
    __device__ __forceinline__ uint32_t k_full(uint32_t n) const { return barrier(2 + n % STAGES); }
    __device__ __forceinline__ uint32_t k_empty(uint32_t n) const { return barrier(4 + n % STAGES); }
    __device__ __forceinline__ uint32_t v_full(uint32_t n) const { return barrier(6 + n % STAGES); }
    __device__ __forceinline__ uint32_t v_empty(uint32_t n) const { return barrier(8 + n % STAGES); }
};

/* The parity of the n-th use of a ring of STAGES slots. */
__device__ __forceinline__ uint32_t parity(uint32_t n)
{
    return n / STAGES & 1;
}

/* The key blocks of an item, and which of them all rows see in full. */
struct Blocks {
    int last, count; /* block i is last - i */
    int full_first, full_last;
};

template <class S>
__device__ __forceinline__ Blocks key_blocks(const attn_problem &p, const Item &item)
{
    attn_rows_mask m = attn_mask_range(&p, &item.sequence, item.first_row, item.first_row + S::BM);
    Blocks b = {0, 0, 0, 0};
    if (m.hull.lo < m.hull.hi) {
        int first = (int)m.hull.lo / S::BN;
        b.last = ((int)m.hull.hi - 1) / S::BN;
        b.count = b.last - first + 1;
        b.full_first = ((int)m.common.lo + S::BN - 1) / S::BN;
        b.full_last = (int)m.common.hi / S::BN; /* exclusive */
    }
    return b;
}

/* The item of this CTA's round; false if it has none in this round. */
__device__ __forceinline__ bool next_item(const attn_cuda_forward_params &a, int64_t round, Item &item)
{
    asm volatile("" : "+l"(round)); /* looked up again rather than kept in registers through the tile loop */
    int64_t place = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x, index = round * gridDim.x + place;
    if (index >= a.schedule.items) {
        return false;
    }
    item = schedule_item(a.problem, a.schedule, index);
    return !item.empty;
}

__device__ __forceinline__ int64_t rounds(const attn_cuda_forward_params &a)
{
    return (a.schedule.items + gridDim.x - 1) / gridDim.x;
}

/* ---- producer ---------------------------------------------------------------------------------------------------- */

/* By TMA: one thread. */
template <class S>
struct TmaLoader {
    const attn_cuda_forward_params &a;
    const Memory<S> &memory;
    int head, kv_head, batch;

    template <int ROWS>
    __device__ __forceinline__ void tile(uint32_t to, const attn_tensor_map &map, uint32_t barrier, int row, int h,
                                         uint64_t hint)
    {
        ptx::mbarrier_arrive_expect(barrier, ROWS * S::D * 2);
#pragma unroll
        for (int c = 0; c < S::D / 64; c++) {
            tma::load(to + c * ROWS * 128, &map, barrier, 64 * c, row, h, batch, hint);
        }
    }
    __device__ __forceinline__ void begin(const Item &item)
    {
        head = item.head, kv_head = item.head / (int)a.problem.group, batch = (int)item.sequence.tensor;
    }
    __device__ __forceinline__ void q(const Item &item)
    {
        tile<S::BM>(memory.q(), a.q_map, memory.q_full(), (int)item.first_row, head, tma::EVICT_FIRST);
    }
    __device__ __forceinline__ void k(const Item &, uint32_t n, int block)
    {
        tile<S::BN>(memory.k(n), a.k_map, memory.k_full(n), block * S::BN, kv_head, tma::EVICT_LAST);
    }
    __device__ __forceinline__ void v(const Item &, uint32_t n, int block)
    {
        tile<S::BN>(memory.v(n), a.v_map, memory.v_full(n), block * S::BN, kv_head, tma::EVICT_LAST);
    }
    __device__ __forceinline__ void finish() {}
};

/* By all threads of the warpgroup; a tile's arrival is announced when the next one is under way. */
template <class S>
struct ThreadLoader {
    const attn_cuda_forward_params &a;
    const Memory<S> &memory;
    uint32_t pending;
    int kv_head;

    template <int LEFT>
    __device__ __forceinline__ void announce()
    {
        if (pending != 0) {
            ptx::copy_async_wait<LEFT>();
            ptx::fence_proxy_async();
            ptx::mbarrier_arrive(pending);
        }
    }
    template <int ROWS>
    __device__ __forceinline__ void tile(uint32_t to, const attn_tensor &t, uint32_t barrier, int64_t batch,
                                         int64_t row, int h, int64_t valid, bool aligned)
    {
        load_rows<ROWS, S::D>(to, t, batch, row, h, (int)min(valid, (int64_t)ROWS), aligned);
        ptx::copy_async_commit();
        announce<1>();
        pending = barrier;
    }
    __device__ __forceinline__ void begin(const Item &item)
    {
        kv_head = item.head / (int)a.problem.group;
    }
    __device__ __forceinline__ void q(const Item &i)
    {
        tile<S::BM>(memory.q(), a.problem.q, memory.q_full(), i.sequence.tensor, i.sequence.q_first + i.first_row,
                    i.head, i.sequence.nq_used - i.first_row, a.aligned & ATTN_CUDA_ALIGNED_Q);
    }
    __device__ __forceinline__ void k(const Item &i, uint32_t n, int block)
    {
        tile<S::BN>(memory.k(n), a.problem.k, memory.k_full(n), i.sequence.tensor, i.sequence.k_first + block * S::BN,
                    kv_head, i.sequence.nk - block * S::BN, a.aligned & ATTN_CUDA_ALIGNED_K);
    }
    __device__ __forceinline__ void v(const Item &i, uint32_t n, int block)
    {
        tile<S::BN>(memory.v(n), a.problem.v, memory.v_full(n), i.sequence.tensor, i.sequence.k_first + block * S::BN,
                    kv_head, i.sequence.nk - block * S::BN, a.aligned & ATTN_CUDA_ALIGNED_V);
    }
    __device__ __forceinline__ void finish()
    {
        announce<0>();
        pending = 0;
    }
};

template <class S, class Loader>
__device__ __forceinline__ void produce(const attn_cuda_forward_params &a, const Memory<S> &memory, Loader load)
{
    uint32_t number = 0, items = 0;
    const int64_t end = rounds(a);
#pragma unroll 1
    for (int64_t round = 0; round < end; round++) {
        Item item;
        if (!next_item(a, round, item)) {
            continue;
        }
        const Blocks b = key_blocks<S>(a.problem, item);
        if (b.count == 0) {
            continue;
        }
        load.begin(item);
        ptx::mbarrier_wait(memory.k_empty(number), parity(number) ^ 1);
        load.k(item, number, b.last);
        ptx::mbarrier_wait(memory.q_empty(), (items & 1) ^ 1);
        load.q(item);
#pragma unroll 1
        for (int i = 1; i <= b.count; i++) {
            uint32_t n = number + i;
            if (i < b.count) {
                ptx::mbarrier_wait(memory.k_empty(n), parity(n) ^ 1);
                load.k(item, n, b.last - i);
            }
            ptx::mbarrier_wait(memory.v_empty(n - 1), parity(n - 1) ^ 1);
            load.v(item, n - 1, b.last - i + 1);
        }
        number += b.count;
        items++;
    }
    load.finish();
}

/* ---- consumers --------------------------------------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void issue_qk(float (&s)[S::BN / 2], uint32_t q, uint32_t k)
{
    const uint64_t a = wgmma::descriptor(q, 0), b = wgmma::descriptor(k, 0);
#pragma unroll
    for (int step = 0; step < S::D / 16; step++) {
        int chunk = step / 4, within = step % 4 * 2;
        wgmma::Product<S::BF16, S::BN>::ss(s, a + chunk * S::BM * 8 + within, b + chunk * S::BN * 8 + within, step > 0);
    }
    wgmma::commit();
}

template <class S>
__device__ __forceinline__ void issue_pv(float (&o)[S::D / 2], const uint32_t (&p)[S::BN / 4], uint32_t v,
                                         int accumulate)
{
    const uint64_t b = wgmma::descriptor(v, S::BN * 128);
#pragma unroll
    for (int step = 0; step < S::BN / 16; step++) {
        wgmma::Product<S::BF16, S::D>::rs(o, p + 4 * step, b + step * 128, step > 0 ? 1 : accumulate);
    }
    wgmma::commit();
}

/* What a consumer thread keeps of its item. */
template <class S>
struct Rows {
    float o[S::D / 2];
    RowState state[2];
    int lo[2], hi[2]; /* keys that this thread's rows see */
};

template <class S>
__device__ __forceinline__ void softmax_block(float (&s)[S::BN / 2], Rows<S> &rows, const Blocks &b, int block, float c,
                                              float (&alpha)[2])
{
    if (block < b.full_first || block >= b.full_last) {
        mask_scores(s, block * S::BN, rows.lo, rows.hi);
    }
    online_softmax(s, c, rows.state, alpha);
}

/* The key blocks of an item. group: this warpgroup among the consumers; leader: the thread that speaks for it. */
template <class S>
__device__ __forceinline__ void run_blocks(Rows<S> &rows, const Memory<S> &memory, const Blocks &b, float c,
                                           uint32_t number, uint32_t items, int group, bool leader)
{
    float s[S::BN / 2], alpha[2];
    uint32_t p[S::BN / 4];
    const uint32_t q = memory.q() + group * 64 * 128;
    const int mine = 1 + group, next = 1 + (group + 1) % S::GROUPS;

    ptx::mbarrier_wait(memory.q_full(), items & 1);
    ptx::mbarrier_wait(memory.k_full(number), parity(number));
    wgmma::fence();
    issue_qk<S>(s, q, memory.k(number));
    wgmma::wait<0>();
    wgmma::hold(s);
    if (leader) {
        ptx::mbarrier_arrive(memory.k_empty(number));
    }
    softmax_block<S>(s, rows, b, b.last, c, alpha);
    pack_probabilities<S::BF16>(s, p);
#pragma unroll 1
    for (int i = 1; i < b.count; i++) {
        uint32_t n = number + i;
        ptx::mbarrier_wait(memory.k_full(n), parity(n));
        if (S::TURNS) {
            ptx::barrier_sync(mine, 256);
        }
        wgmma::hold(p);
        wgmma::fence();
        issue_qk<S>(s, q, memory.k(n));
        ptx::mbarrier_wait(memory.v_full(n - 1), parity(n - 1));
        wgmma::fence();
        issue_pv<S>(rows.o, p, memory.v(n - 1), i > 1);
        if (S::TURNS) {
            ptx::barrier_arrive(next, 256);
        }
        wgmma::wait<1>();
        wgmma::hold(s);
        if (leader) {
            ptx::mbarrier_arrive(memory.k_empty(n));
        }
        softmax_block<S>(s, rows, b, b.last - i, c, alpha);
        wgmma::wait<0>();
        wgmma::hold(rows.o);
        wgmma::hold(p);
        if (leader) {
            ptx::mbarrier_arrive(memory.v_empty(n - 1));
        }
        pack_probabilities<S::BF16>(s, p);
        rescale(rows.o, alpha);
    }
    if (leader) {
        ptx::mbarrier_arrive(memory.q_empty());
    }
    uint32_t n = number + b.count - 1;
    ptx::mbarrier_wait(memory.v_full(n), parity(n));
    wgmma::hold(p);
    wgmma::fence();
    issue_pv<S>(rows.o, p, memory.v(n), b.count > 1);
    wgmma::wait<0>();
    wgmma::hold(rows.o);
    if (leader) {
        ptx::mbarrier_arrive(memory.v_empty(n));
    }
}

template <class S>
__device__ __forceinline__ void finish_rows(const attn_cuda_forward_params &a, Rows<S> &rows, int64_t round,
                                            int64_t offset, bool masked)
{
    const attn_problem &p = a.problem;
    const int lane = threadIdx.x % 32;
    Item item;
    next_item(a, round, item);
    const int64_t first_row = item.first_row + offset;
    uint32_t careful[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float m = rows.state[r].m, l = quad_sum(rows.state[r].l), exponent = m * a.scale_log2;
        OutputRow w = {item.sequence, item.head, first_row + lane / 4 + 8 * r, m != -INFINITY};
        w.seen &= w.row < item.sequence.nq_used;
        bool finite = fabsf(l) <= 3.4e38f, far = w.seen && fabsf(exponent) > 4194304; /* 2^22 */
#pragma unroll
        for (int i = 2 * r; i < S::D / 2; i += 4) {
            finite &= fabsf(rows.o[i]) <= 3.4e38f && fabsf(rows.o[i + 1]) <= 3.4e38f;
        }
        careful[r] = __ballot_sync(~0u, w.seen && (far || (!finite && masked)));
        uint32_t quad = careful[r] >> (lane & ~3) & 15;
        bool write = quad == 0 && w.row < item.sequence.nq;
        float factor = finish_row(p, w, exponent * 0.693147181f, l, write && lane % 4 == 0);
        char *to = attn_at(&p.o, item.sequence.tensor, item.sequence.q_first + w.row, item.head, 0);
        if (!w.seen) {
#pragma unroll
            for (int i = 2 * r; i < S::D / 2; i += 4) {
                rows.o[i] = rows.o[i + 1] = 0;
            }
        }
        store_row<S::BF16>(p, rows.o, r, factor, to, write);
    }
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        if ((i < 8 ? careful[0] : careful[1]) >> (i % 8 * 4) & 15) {
            OutputRow w = {item.sequence, item.head, first_row + i, true};
            careful_row<S::BF16, S::D>(p, w);
        }
    }
}

template <class S>
__device__ __forceinline__ void consume(const attn_cuda_forward_params &a, const Memory<S> &memory, int group)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int64_t end = rounds(a);
    uint32_t number = 0, items = 0;
    if (S::TURNS && group == S::GROUPS - 1) {
        ptx::barrier_arrive(1, 256); /* the first turn is the first group's */
    }
#pragma unroll 1
    for (int64_t round = 0; round < end; round++) {
        Item item;
        if (!next_item(a, round, item)) {
            continue;
        }
        const Blocks b = key_blocks<S>(a.problem, item);
        const int offset = 64 * group + 16 * warp; /* of this warp's first row */
        Rows<S> rows;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            attn_interval keys = attn_mask_row(&a.problem, &item.sequence,
                                               item.first_row + offset + lane / 4 + 8 * r);
            rows.lo[r] = (int)keys.lo, rows.hi[r] = (int)keys.hi;
            rows.state[r] = {-INFINITY, 0};
        }
        if (b.count > 0) {
            run_blocks<S>(rows, memory, b, a.scale_log2, number, items, group, threadIdx.x % 128 == 0);
            items++;
        } else {
#pragma unroll
            for (int i = 0; i < S::D / 2; i++) {
                rows.o[i] = 0;
            }
        }
        number += b.count;
        bool masked = b.last - b.count + 1 < b.full_first || b.last >= b.full_last;
        finish_rows<S>(a, rows, round, offset, masked);
    }
}

template <class S>
__device__ __forceinline__ void forward(const attn_cuda_forward_params &a)
{
    extern __shared__ unsigned char shared[];
    const Memory<S> memory = {(ptx::shared_address(shared) + 1023) & ~1023u};
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 10; i++) {
            bool full = i == 0 || i == 2 || i == 3 || i == 6 || i == 7;
            ptx::mbarrier_init(memory.barrier(i), !full ? S::GROUPS : a.tma ? 1 : 128);
        }
        ptx::fence_mbarrier_init();
        if (a.tma) {
            tma::prefetch_map(&a.q_map);
            tma::prefetch_map(&a.k_map);
            tma::prefetch_map(&a.v_map);
        }
    }
    __syncthreads();
    if (group == 0) {
        ptx::registers_lower<32>();
        if (!a.tma) {
            produce<S>(a, memory, ThreadLoader<S>{a, memory, 0, 0});
        } else if (threadIdx.x == 0) {
            produce<S>(a, memory, TmaLoader<S>{a, memory, 0, 0, 0});
        }
    } else {
        ptx::registers_raise<S::REGISTERS>();
        consume<S>(a, memory, group - 1);
    }
}

#define ATTN_FORWARD_SM90(name, bf16, d, groups, bn, registers, turns)                                         \
    extern "C" __global__ __launch_bounds__(128 * (groups + 1), 1) void name(                                  \
        const __grid_constant__ attn_cuda_forward_params a)                                                    \
    {                                                                                                          \
        forward<Shape<bf16, d, groups, bn, registers, turns>>(a);                                              \
    }
#include "cuda/kernels.inc"
