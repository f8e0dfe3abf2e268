/*
 * machine.cpp: see machine.h.
 */
#include "runner.h"
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <thread>
#include <vector>

alignas(1024) thread_local unsigned char shared[EMULATED_SHARED_BYTES];

/* Keeps what a call keeps on the stack and the stack's place at *left; goes on where another call
 * left `to`. A kernel waits too often for setjmp, or for swapcontext with its system call. */
extern "C" void emulated_switch(void **left, void *to);
asm(R"(
    .text
    .type emulated_switch, @function
emulated_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size emulated_switch, . - emulated_switch
)");

namespace emulated
{

enum { STACK_BYTES = 256 << 10, BLOCKS_AT_ONCE = 4 };

thread_local runner *run;

fibre &now()
{
    return *run->current;
}

block_state &block()
{
    return run->state;
}

size_t shared_offset(const void *p)
{
    return (uint32_t)((const unsigned char *)p - shared);
}

void yield()
{
    run->spinning = true;
    emulated_switch(&run->current->at, run->home);
}

void wait_while(bool (*waits)(const void *), const void *of)
{
    if (waits(of)) {
        thread_state &thread = *run->current;
        thread.waits = waits, thread.of = of;
        emulated_switch(&thread.at, run->home);
    }
}

void later(std::function<void()> copy)
{
    run->copies.push_back(std::move(copy));
}

void copy_own(uint32_t to, const void *from, uint32_t bytes, uint32_t room)
{
    fibre &self = now();
    self.copies.push_back({to, bytes, room, self.groups, from});
}

void close_own()
{
    now().groups++;
}

void wait_own(uint32_t left)
{
    fibre &self = now();
    std::vector<own_copy> under_way;
    for (const own_copy &x : self.copies) {
        if (x.group + left < self.groups) {
            memset(shared_at(x.to), 0, x.room);
            memcpy(shared_at(x.to), x.from, x.bytes);
        } else {
            under_way.push_back(x);
        }
    }
    self.copies = std::move(under_way);
}

/* ---- warps ----------------------------------------------------------------------------------- */

void exchange_bytes(const void *mine, size_t bytes, void *all)
{
    fibre &self = now();
    warp_state &warp = run->warps[self.place.x / WARP];
    const uint32_t number = self.exchanges++;
    const int buffer = number & 1;
    if (bytes > SLOT_BYTES) {
        abort();
    }
    memcpy(warp.slot[buffer] + self.place.x % WARP * bytes, mine, bytes);
    if (++warp.begun[buffer] == WARP) {
        warp.begun[buffer] = 0;
        warp.completed = number + 1;
        changed();
    }
    wait_while([&] { return warp.completed != number + 1 && warp.completed != number + 2; });
    memcpy(all, warp.slot[buffer], WARP * bytes);
}

void warp_wait()
{
    (void)exchange(0);
}

/* ---- barriers -------------------------------------------------------------------------------- */

bool barrier(int id, int threads, bool yes, bool wait)
{
    barrier_state &at = run->barriers[id];
    const int all = threads ? threads : (int)run->state.threads.x;
    const uint32_t phase = at.phase;
    at.yes = at.yes || yes;
    if (++at.arrived == all) {
        at.arrived = 0, at.phase++;
        at.result = at.yes, at.yes = false;
        changed();
    }
    if (wait) {
        wait_while([&] { return at.phase == phase; });
    }
    return at.result;
}

struct mbarrier {
    uint16_t expected, pending : 15, phase : 1;
    int32_t bytes; /* still to come */
};
static_assert(sizeof(mbarrier) == 8, "a barrier's place");

static mbarrier &mbarrier_at(uint32_t at)
{
    return *(mbarrier *)shared_at(at);
}

static void complete(mbarrier &b)
{
    if (b.pending == 0 && b.bytes == 0) {
        b.pending = b.expected & 0x7fff;
        b.phase = !b.phase;
        changed();
    }
}

void mbarrier_init(uint32_t at, uint32_t arrivals)
{
    mbarrier_at(at) = {(uint16_t)arrivals, (uint16_t)(arrivals & 0x7fff), 0, 0};
}

void mbarrier_arrive(uint32_t at, uint32_t more_bytes)
{
    mbarrier &b = mbarrier_at(at);
    b.bytes += (int32_t)more_bytes;
    b.pending = (b.pending - 1) & 0x7fff;
    complete(b);
}

void mbarrier_bytes(uint32_t at, uint32_t bytes)
{
    mbarrier &b = mbarrier_at(at);
    b.bytes -= (int32_t)bytes;
    complete(b);
}

bool mbarrier_done(uint32_t at, uint32_t parity)
{
    return mbarrier_at(at).phase != parity;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void fibre_main()
{
    run->call(run->params);
    run->current->done = true;
    leave_pair();
    changed();
    emulated_switch(&run->current->at, run->home);
}

/* At the stack's end six registers, the place to go on at, and the place that it returns to. */
static void begin(thread_state &thread)
{
    void *const frame[8] = {0, 0, 0, 0, 0, 0, (void *)fibre_main, 0};
    thread.at = thread.stack + STACK_BYTES - sizeof frame;
    memcpy(thread.at, frame, sizeof frame);
    thread.waits = NULL, thread.done = false;
}

/* Goes on with a thread, unless it still waits. */
static void enter(runner &r, thread_state &thread)
{
    if (thread.waits == NULL || !thread.waits(thread.of)) {
        thread.waits = NULL;
        r.current = &thread;
        emulated_switch(&r.home, thread.at);
    }
}

/* Runs the threads in turn until all are done. */
static void run_block(runner &r)
{
    size_t left = r.count;
    while (left > 0) {
        const uint64_t before = r.progress;
        r.spinning = r.pair != NULL;
        left = 0;
        take_work(r);
        for (size_t n = 0; n < r.count; n++) {
            if (!r.threads[n].done) {
                enter(r, r.threads[n]);
                left += !r.threads[n].done;
            }
        }
        if (left > 0 && r.progress == before) {
            if (!r.copies.empty()) {
                r.copies.front()();
                r.copies.pop_front();
                continue;
            }
            if (!r.spinning) {
                fprintf(stderr, "emulated GPU: deadlock of %zu threads in %s, block %u\n", left,
                        r.name, r.state.place.x);
                abort();
            }
            std::this_thread::yield();
        }
    }
}

static void start_block(runner &r, const place &at, pair_state *pair, uint32_t rank)
{
    r.pair = pair, r.rank = rank;
    r.state.place = at;
    r.progress = 0, r.copies.clear();
    memset(r.barriers, 0, sizeof r.barriers);
    for (warp_state &warp : r.warps) {
        warp = {};
    }
    for (size_t n = 0; n < r.count; n++) {
        thread_state &thread = r.threads[n];
        thread.place = {(unsigned)n, 0, 0};
        thread.exchanges = thread.groups = thread.meeting = 0;
        thread.copies.clear();
        begin(thread);
    }
    memset(shared, 0xFF, sizeof shared); /* nothing is left of blocks before */
}

/* Runners are kept for later grids: their stacks are large. */
static std::mutex kept_mutex;
static std::vector<std::unique_ptr<runner>> kept;

static std::unique_ptr<runner> take_runner()
{
    const std::lock_guard<std::mutex> lock(kept_mutex);
    if (kept.empty()) {
        return std::make_unique<runner>();
    }
    std::unique_ptr<runner> last = std::move(kept.back());
    kept.pop_back();
    return last;
}

static void give_back(std::unique_ptr<runner> r)
{
    const std::lock_guard<std::mutex> lock(kept_mutex);
    kept.push_back(std::move(r));
}

static void prepare(runner &r, size_t threads)
{
    for (size_t n = r.threads.size(); n < threads; n++) {
        thread_state made{};
        void *stack =
            mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED) {
            abort();
        }
        made.stack = (unsigned char *)stack;
        r.threads.push_back(made);
    }
    r.warps.resize((threads + WARP - 1) / WARP);
    r.count = threads;
}

void run_grid(const place &grid, const place &threads, const char *name, void (*call)(const void *),
              const void *params, bool paired)
{
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z, ctas = paired ? 2 : 1;
    std::atomic<uint64_t> next{0};
    const auto begin_runs = [&] {
        std::unique_ptr<runner> taken = take_runner();
        runner &mine = *taken;
        mine.state.grid = grid, mine.state.threads = threads;
        mine.call = call, mine.params = params, mine.name = name;
        prepare(mine, threads.x);
        run = &mine;
        return taken;
    };
    const auto run_one = [&](uint64_t n, pair_state *pair, uint32_t rank) {
        start_block(*run,
                    {(unsigned)(n % grid.x), (unsigned)(n / grid.x % grid.y),
                     (unsigned)(n / grid.x / grid.y)},
                    pair, rank);
        if (pair) {
            const std::lock_guard<std::mutex> lock(pair->mutex);
            pair->memory[rank] = shared;
        }
        run_block(*run);
    };
    const auto work = [&] {
        std::unique_ptr<runner> taken = begin_runs();
        for (uint64_t n; (n = next.fetch_add(ctas)) < blocks;) {
            pair_state pair{};
            pair.left = 2 * threads.x;
            std::thread other;
            if (paired) {
                other = std::thread([&, n] {
                    std::unique_ptr<runner> others = begin_runs();
                    run_one(n + 1, &pair, 1);
                    give_back(std::move(others));
                });
            }
            run_one(n, paired ? &pair : NULL, 0);
            if (paired) {
                other.join();
            }
        }
        give_back(std::move(taken));
    };
    std::vector<std::thread> runners;
    for (uint64_t n = 0; n < blocks && n < BLOCKS_AT_ONCE; n += ctas) {
        runners.emplace_back(work);
    }
    for (std::thread &each : runners) {
        each.join();
    }
}

} // namespace emulated
