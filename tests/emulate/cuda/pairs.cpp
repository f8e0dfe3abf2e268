/*
 * pairs.cpp: two blocks that run at once, each on its operating system thread (machine.h).
 */
#include "runner.h"

namespace emulated
{

uint32_t pair_rank()
{
    return run->rank;
}

/* With the pair's mutex. */
static void end_meeting(pair_state &pair)
{
    if (pair.arrived > 0 && pair.arrived == pair.left) {
        pair.arrived = 0;
        pair.meetings++;
    }
}

void pair_arrive()
{
    pair_state &pair = *run->pair;
    const std::lock_guard<std::mutex> lock(pair.mutex);
    now().meeting = pair.meetings;
    pair.arrived++;
    end_meeting(pair);
}

void pair_wait()
{
    const pair_state &pair = *run->pair;
    const uint32_t meeting = now().meeting;
    wait_while([&] { return pair.meetings == meeting; });
}

void leave_pair()
{
    if (run->pair) {
        const std::lock_guard<std::mutex> lock(run->pair->mutex);
        run->pair->left--;
        end_meeting(*run->pair);
    }
}

void in_block(uint32_t rank, std::function<void()> work)
{
    const std::lock_guard<std::mutex> lock(run->pair->mutex);
    run->pair->work[rank].push_back(std::move(work));
}

const unsigned char *shared_of(uint32_t rank, uint32_t offset)
{
    return run->pair->memory[rank] + (int32_t)offset;
}

void take_work(runner &r)
{
    if (r.pair) {
        std::deque<std::function<void()>> given;
        {
            const std::lock_guard<std::mutex> lock(r.pair->mutex);
            given.swap(r.pair->work[r.rank]);
        }
        for (std::function<void()> &work : given) {
            if (r.rank == 0) { /* as late as it can be, in the other block at once */
                r.copies.push_back(std::move(work));
            } else {
                work();
            }
        }
    }
}

} // namespace emulated
