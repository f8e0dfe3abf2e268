/*
 * cluster.cuh: in place of src/cuda/kernel/ptx/cluster.cuh, on the emulated GPU.
 */
#pragma once
#include "cuda/kernel/ptx/ptx.cuh"

namespace cluster
{

inline uint32_t rank()
{
    return emulated::pair_rank();
}
inline void arrive()
{
    emulated::pair_arrive();
}
inline void wait()
{
    emulated::pair_wait();
}
inline uint32_t load_4(uint32_t from, uint32_t cta)
{
    uint32_t x;
    memcpy(&x, emulated::shared_of(cta, from), sizeof x);
    return x;
}
inline void mbarrier_arrive(uint32_t barrier, uint32_t cta)
{
    emulated::in_block(cta, [=] { emulated::mbarrier_arrive(barrier, 0); });
}
inline void sleep(uint32_t barrier, uint32_t parity)
{
    ptx::mbarrier_wait(barrier, parity);
}
inline void copy(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier, uint32_t cta)
{
    const unsigned char *const source = emulated::shared_at(from);
    emulated::in_block(cta, [=] {
        emulated::mbarrier_arrive(barrier, bytes);
        memcpy(emulated::shared_at(to), source, bytes);
        emulated::mbarrier_bytes(barrier, bytes);
    });
}

} // namespace cluster
