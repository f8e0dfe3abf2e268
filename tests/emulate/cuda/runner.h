/*
 * runner.h: the state of a block on its operating system thread. Private to machine.cpp and
 * pairs.cpp.
 */
#pragma once
#include "machine.h"
#include <atomic>
#include <deque>
#include <mutex>

namespace emulated
{

enum { WARP = 32, BARRIERS = 20, SLOT_BYTES = 32 };

struct warp_state {
    /* Two exchanges may be under way: a lane is in the second only when all have begun it, so all
     * have read the first before a third overwrites it. */
    unsigned char slot[2][WARP * SLOT_BYTES];
    uint32_t begun[2];
    uint32_t completed;
};

struct barrier_state {
    int arrived;
    uint32_t phase;
    bool yes, result;
};

struct thread_state : fibre {
    void *at; /* its stack's place when it was left */
    unsigned char *stack;
    bool (*waits)(const void *of); /* NULL: it may go on */
    const void *of;
    bool done;
};

/* Two blocks that run at once. */
struct pair_state {
    std::mutex mutex;
    std::deque<std::function<void()>> work[2]; /* for each block, from the other one */
    const unsigned char *memory[2];
    size_t arrived, left; /* threads: at the barrier; that have not ended */
    std::atomic<uint32_t> meetings;
};

/* A block and the operating system thread's state. */
struct runner {
    block_state state;
    std::vector<thread_state> threads;
    std::vector<warp_state> warps;
    size_t count; /* threads of the grid's blocks */
    barrier_state barriers[BARRIERS];
    void *home; /* its stack's place while a fibre runs */
    thread_state *current;
    std::deque<std::function<void()>> copies; /* under way */
    uint64_t progress;                        /* changes that may free a waiting thread */
    bool spinning;                            /* a thread waits for another block */
    pair_state *pair;                         /* NULL: the block is alone */
    uint32_t rank;
    void (*call)(const void *);
    const void *params;
    const char *name;
};

extern thread_local runner *run;

static inline void changed()
{
    run->progress++;
}

/* A thread of the running block has ended. */
void leave_pair();

/* Takes what the pair's other block has left for this one. */
void take_work(runner &r);

} // namespace emulated
