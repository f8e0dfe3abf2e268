/*
 * machine.h: blocks of threads on a CPU. A block runs on one operating system thread, its threads
 * as fibres that change places where they wait: at barriers, at operations of a whole warp, and
 * where a kernel reads a word that another block writes. A block in which all wait is a deadlock,
 * which ends the process with a sentence. The two blocks of a pair (a cluster) run at once; one
 * whose threads all wait may wait for the other.
 */
#pragma once
#include <stddef.h>
#include <functional>
#include <stdint.h>
#include <string.h>
#include <vector>

/* The dynamic shared memory of the running block. Kernels name it. */
enum { EMULATED_SHARED_BYTES = 232448 };
extern thread_local unsigned char shared[];

namespace emulated
{

struct place {
    unsigned x, y, z;
};

/* Bytes on their way to shared memory, and zeros up to `room` of them. */
struct own_copy {
    uint32_t to, bytes, room, group;
    const void *from;
};

struct fibre {
    struct place place;
    uint32_t exchanges; /* operations of its warp that it has begun */
    std::vector<own_copy> copies;
    uint32_t groups;  /* of copies, closed */
    uint32_t meeting; /* of its pair, the last one that it has come to */
};

enum { GROUP_BARRIER = 16 };

/* The running thread, and its block. */
struct fibre &now();
struct block_state {
    struct place place, grid, threads;
};
struct block_state &block();

size_t shared_offset(const void *p);
inline unsigned char *shared_at(uint32_t offset)
{
    return shared + (int32_t)offset;
}

/* Lets the block's other threads run. */
void yield();

/* Lets them run until waits(of) is false; it is asked where this thread's turn would be. */
void wait_while(bool (*waits)(const void *of), const void *of);

template <class Waits> inline void wait_while(const Waits &waits)
{
    wait_while([](const void *of) { return (*(const Waits *)of)(); }, &waits);
}

/* Waits for the whole warp. */
void warp_wait();

/* Gives the warp's 32 values of up to 32 bytes; a copy. */
void exchange_bytes(const void *mine, size_t bytes, void *all);

template <class T> struct lanes {
    T of[32];
    const T &operator[](int lane) const
    {
        return of[lane];
    }
};

template <class T> inline lanes<T> exchange(const T &mine)
{
    lanes<T> all;
    exchange_bytes(&mine, sizeof mine, all.of);
    return all;
}

/* Barrier `id` of `threads` threads, 0 for all of the block. GROUP_BARRIER and the three after it
 * belong to the products of warpgroups. wait: until all have come; else the
 * thread only says that it has. Returns true if one of the threads said yes. */
bool barrier(int id, int threads, bool yes, bool wait);

/* mbarriers: 8 bytes of shared memory. */
void mbarrier_init(uint32_t at, uint32_t arrivals);
void mbarrier_arrive(uint32_t at, uint32_t more_bytes);
void mbarrier_bytes(uint32_t at, uint32_t bytes);
bool mbarrier_done(uint32_t at, uint32_t parity);

/* Does an asynchronous copy as late as it can be: when the block's threads wait for something. A
 * block's last copies may never be done. */
void later(std::function<void()> copy);

/* Copies of one thread (cp.async): done when it waits for their group, which `close` ends. wait:
 * for all closed groups but the last `left`. */
void copy_own(uint32_t to, const void *from, uint32_t bytes, uint32_t room);
void close_own();
void wait_own(uint32_t left);

/* Pairs: the block's number; the barrier of all threads that have not ended; work in the shared
 * memory of block `rank`, which its operating system thread does, block 0 as late as it can, block
 * 1 at once; a place there. */
uint32_t pair_rank();
void pair_arrive();
void pair_wait();
void in_block(uint32_t rank, std::function<void()> work);
const unsigned char *shared_of(uint32_t rank, uint32_t offset);

/* Runs all blocks of a grid. call(function, parameters) is one thread's work. paired: blocks 2 n
 * and 2 n + 1 are pairs. */
void run_grid(const struct place &grid, const struct place &threads, const char *name,
              void (*call)(const void *params), const void *params, bool paired);

} // namespace emulated
